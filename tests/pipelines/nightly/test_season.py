"""Twenty nights on a market whose data arrive session by session, with retraining and corrections.

`peerglass nightly` plays them: its delivery, training, scoring and upkeep. The signals of every night are
compared with an evaluation of the same model versions on the data of that night: the whole dataset, the
forecasts as rows of the lake, and the ensemble of the backtest. Five nights are also compared with a run of
dated folds, which trains the same model again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from counted import cut_tables
from growing_lakes import Tables, deliver, same_bits, sessions_of

from pipelines.commands.signals import explain_differences
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, build_dataset
from pipelines.dataset.tables import input_versions, open_lake, read_tables
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import STAMPS
from pipelines.nightly.data import night_data
from pipelines.nightly.night import play_nights
from pipelines.nightly.result import (
    ModelVersion,
    read_nights,
    read_revision,
    read_signals,
    write_signals,
)
from pipelines.nightly.scoring import score
from pipelines.nightly.versions import Reason, aliases, set_alias
from pipelines.progress import Progress
from pipelines.results.evaluate import forecasts_to_arrays
from pipelines.results.forecast_tables import ensemble_table
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.fetch import make_source
from pipelines.run.open import prepare_run
from pipelines.run.record import open_run
from pipelines.sources.base import SourceTables
from pipelines.sources.simulated.source import SimulatedSource
from pipelines.train.task import collect_arrays, to_tensors
from pipelines.train.walkforward import train

MODEL = "temporal_peer"
FIRST, NIGHTS, RETRAIN, PROMOTED = 250, 20, 8, 261  # the challenger of the second training is promoted
SPLITS = {254: 2.0, 267: 0.1}  # night's session -> ratio
DELISTED_ON, LISTED_ON, RESTATED_ON = 265, 261, 266
WRONG_PRICE, CORRECTED_ON = 256, 260  # session of the wrong price, session with which its correction arrives
LATE_STATEMENT, DELIVERED_ON = 257, 268  # when a statement was published, and when it is delivered


@pytest.fixture(scope="module")
def config(tiny_settings: Mapping[str, Any], every_model: dict[str, dict[str, Any]]) -> Config:
    settings = {
        **tiny_settings,
        "name": "season",
        "source": {
            "kind": "simulated",
            "seed": 10,
            "market": {"firms": 16, "sessions": 300, "bad_ticks": 0, "delistings_per_year": 0.0},
        },
        "universe": {"min_history": 8},
        "label": {"horizon": 2, "delay": 1, "transform": "demean"},
        "folds": {"scheme": "expanding", "train": 100, "valid": 25, "test": 20, "embargo": 0},
        "models": {MODEL: every_model[MODEL]},
        "seeds": [0, 1],
        "audit": {"enabled": False},
        "nightly": {"retrain": {"when": "sessions", "every": RETRAIN}, "attributed": 0},
    }
    return check_config(settings, origin="season")


@dataclass
class Market:
    """A market in which something happens to one firm each, and what is delivered of it."""

    tables: dict[str, pl.DataFrame]
    days: list[dt.date] = field(init=False)
    firms: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.days = sessions_of(self.tables)
        counted = self.tables["prices"].group_by("ticker").len().sort("len", "ticker", descending=True)
        self.firms = counted.filter(pl.col("len") == len(self.days))["ticker"].sort().to_list()
        for firm, (session, ratio) in zip(self.firms, SPLITS.items(), strict=False):
            self._split(firm, self.days[session], ratio)
        self._delist(self.firms[2], self.days[DELISTED_ON])
        self._list(self.firms[3], self.days[LISTED_ON])
        self._restate(self.firms[4], self.days[RESTATED_ON], late=self.days[LATE_STATEMENT])

    def delivered(self, session: int) -> Tables:
        """The tables as the source delivers them at the close of a session: wrong where not yet corrected."""
        tables = dict(self.tables)
        if session < CORRECTED_ON:
            wrong = (pl.col("ticker") == self.firms[5]) & (pl.col("date") == self.days[WRONG_PRICE])
            spoilt = [pl.when(wrong).then(pl.col(n) * 1.07).otherwise(pl.col(n)).alias(n) for n in _QUOTES]
            tables["prices"] = tables["prices"].with_columns(spoilt)
        if session < DELIVERED_ON:
            late = (pl.col("ticker") == self.firms[4]) & (pl.col("known_at") == self.days[LATE_STATEMENT])
            tables["fundamentals"] = tables["fundamentals"].filter(~late)
        return tables

    def _split(self, firm: str, day: dt.date, ratio: float) -> None:
        after = (pl.col("ticker") == firm) & (pl.col("date") >= day)
        prices = [pl.when(after).then(pl.col(n) / ratio).otherwise(pl.col(n)).alias(n) for n in _QUOTES]
        self.tables["prices"] = self.tables["prices"].with_columns(
            *prices,
            pl.when(after).then(pl.col("volume") * ratio).otherwise(pl.col("volume")).alias("volume"),
            pl.when(after & (pl.col("date") == day))
            .then(ratio)
            .otherwise(pl.col("split_ratio"))
            .alias("split_ratio"),
        )

    def _delist(self, firm: str, day: dt.date) -> None:
        of_firm = pl.col("ticker") == firm
        self.tables["prices"] = self.tables["prices"].filter(~(of_firm & (pl.col("date") >= day)))
        self.tables["securities"] = self.tables["securities"].with_columns(
            pl.when(of_firm).then(pl.lit(day)).otherwise("delisted_on").alias("delisted_on"),
            pl.when(of_firm).then(-0.4).otherwise("delisting_return").alias("delisting_return"),
            pl.when(of_firm)
            .then(pl.lit("performance"))
            .otherwise("delisting_reason")
            .alias("delisting_reason"),
        )

    def _list(self, firm: str, day: dt.date) -> None:
        of_firm = pl.col("ticker") == firm
        self.tables["prices"] = self.tables["prices"].filter(~(of_firm & (pl.col("date") < day)))
        self.tables["securities"] = self.tables["securities"].with_columns(
            pl.when(of_firm).then(pl.lit(day)).otherwise("valid_from").alias("valid_from"),
            pl.when(of_firm).then(pl.lit(day)).otherwise("listed_on").alias("listed_on"),
            # a group that no other firm has, so that codes of groups are renumbered
            pl.when(of_firm).then(pl.lit("A new industry")).otherwise("industry").alias("industry"),
        )

    def _restate(self, firm: str, day: dt.date, late: dt.date) -> None:
        """Restate the newest statement in time, and another one in a delivery that comes too late."""
        known = self.tables["fundamentals"].filter((pl.col("ticker") == firm) & (pl.col("known_at") < late))
        newest = known.filter(pl.col("period_end") == pl.col("period_end").max())
        newest = newest.unique(["period_end", "item"], keep="last", maintain_order=True)
        again = [
            newest.with_columns(pl.lit(when).alias("known_at"), pl.col("value") * by, filing_id=pl.lit(name))
            for when, by, name in ((day, 1.3, "restated"), (late, 0.8, "late"))
        ]
        self.tables["fundamentals"] = pl.concat([self.tables["fundamentals"], *again])


_QUOTES = ("open", "high", "low", "close")


@pytest.fixture(scope="module")
def market(config: Config) -> Market:
    source = make_source(config)
    assert isinstance(source, SimulatedSource)
    fetched = source.fetch().tables
    now = pl.lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).cast(pl.Datetime("us", "UTC"))
    prices = fetched["prices"].with_columns(pl.lit("simulated").alias("source"), now.alias("ingested_at"))
    return Market(
        {"prices": prices, "securities": fetched["securities"], "fundamentals": fetched["fundamentals"]}
    )


@dataclass(frozen=True)
class Delivery:
    """A source that delivers what it knew at the close of a session, wrong where not yet corrected."""

    market: Market
    through: dt.date
    name: str = "simulated"

    def fetch(self) -> SourceTables:
        tables = cut_tables(self.market.delivered(self.market.days.index(self.through)), self.through)
        return SourceTables({table: rows.drop(STAMPS, strict=False) for table, rows in tables.items()})


@dataclass
class Season:
    """What the nights left behind; champion and challenger of each, the champion first."""

    config: Config
    market: Market
    lake: Lake
    versions: dict[dt.date, list[ModelVersion]]
    evaluated: dict[tuple[dt.date, ModelVersion], pl.DataFrame]


@pytest.fixture(scope="module")
def season(config: Config, market: Market, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Season]:
    """Play the nights with the function of the command; the tracking store takes no part."""
    folder = tmp_path_factory.mktemp("season")
    config = config.model_copy(update={"lake": str(folder / "lake"), "output": str(folder / "runs")})
    made = Season(config, market, open_lake(config), {}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipelines.nightly.delivery.make_source", lambda config, *, through: Delivery(market, through)
        )
        patch.setattr("pipelines.nightly.play.telling.sync", lambda *_: None)
        for session in range(FIRST, FIRST + NIGHTS):
            if session == PROMOTED:
                set_alias(
                    made.lake,
                    config.name,
                    "champion",
                    aliases(made.lake, config.name)["challenger"],
                    Reason("newer", "ann@desk"),
                )
            play(made, market.days[session])
        yield made


def play(season: Season, day: dt.date) -> None:
    """Play one night, and evaluate its versions on what the lake holds then."""
    play_nights(season.config, day, echo=lambda _: None)
    (night,) = read_nights(season.lake, season.config.name).filter(pl.col("session") == day).to_dicts()
    assert night["state"] in ("done", "warned"), night["error"]
    used = [ModelVersion.parse(night[role]) for role in ("version", "challenger") if night[role] is not None]
    season.versions[day] = used
    tables = read_tables(season.lake, input_versions(season.lake))
    dataset = build_dataset(tables, season.config)
    for version in used:
        season.evaluated[day, version] = evaluated(version, season.config, dataset)


def evaluated(version: ModelVersion, config: Config, dataset: Dataset) -> pl.DataFrame:
    """Evaluate a version's newest session as a backtest does, on all that the lake holds now."""
    run = open_run(version.run_id, Path(config.output))
    assert run.config.features == config.features
    arrays = collect_arrays(dataset, run.config.features.window)
    last = np.array([dataset.panel.n_sessions - 1])
    rows = []
    for seed in run.config.seeds:
        fitted, inputs = load_checkpoint(run.checkpoint(version.model, 0, seed))
        forecast_N = fitted.forecast(to_tensors(arrays, inputs, "cpu"), last)[0].astype(np.float64)
        known = np.flatnonzero(np.isfinite(forecast_N))
        rows.append(
            pl.DataFrame(
                {
                    "date": [dataset.panel.dates_T[-1].astype("datetime64[D]").item()] * len(known),
                    "ticker": np.array(dataset.panel.tickers_N)[known],
                    "forecast": forecast_N[known],
                }
            ).with_columns(pl.lit(version.model).alias("model"), pl.lit(seed).alias("seed"))
        )
    return ensemble_table(forecasts_to_arrays(pl.concat(rows), dataset.panel), dataset.panel).sort("ticker")


@pytest.mark.slow(36)
def test_every_night_says_what_an_evaluation_on_its_data_says(season: Season) -> None:
    stored = read_signals(season.lake, season.config.name)
    assert stored["session"].unique().sort().to_list() == season.market.days[FIRST : FIRST + NIGHTS]
    champions = [season.versions[day][0] for day in season.market.days[FIRST : FIRST + NIGHTS]]
    assert len(set(champions[: PROMOTED - FIRST])) == 1
    assert champions[PROMOTED - FIRST :] == [season.versions[season.market.days[PROMOTED - 1]][1]] * (
        FIRST + NIGHTS - PROMOTED
    )
    trained = {version for used in season.versions.values() for version in used}
    assert len(trained) == len(range(0, NIGHTS, RETRAIN))
    assert stored.select("session", "version").n_unique() == len(season.evaluated) > NIGHTS
    for (day, version), expected in season.evaluated.items():
        of_night = (pl.col("session") == day) & (pl.col("version") == str(version))
        rows = stored.filter(of_night & pl.col("in_universe"))
        assert rows.height >= 12
        assert rows["ticker"].to_list() == expected["ticker"].to_list()
        assert same_bits(rows["signal"], expected["signal"]), (day, version)
        assert same_bits(rows["seed_dispersion"], expected["seed_dispersion"]), (day, version)


def champions_signals(season: Season) -> pl.DataFrame:
    """One row per session and ticker: the signals of the champion of each night."""
    used = [(day, str(versions[0])) for day, versions in season.versions.items()]
    champions = pl.DataFrame(used, schema={"session": pl.Date, "version": pl.String}, orient="row")
    stored = read_signals(season.lake, season.config.name)
    return stored.join(champions, on=["session", "version"], how="semi")


def test_the_events_of_the_season_happened(season: Season) -> None:
    days, firms = season.market.days, season.market.firms
    stored = champions_signals(season)

    def sessions(firm: str, *, inside: bool) -> list[dt.date]:
        of_firm = stored.filter((pl.col("ticker") == firm) & (pl.col("in_universe") | (not inside)))
        return of_firm["session"].sort().to_list()

    assert sessions(firms[2], inside=True)[-1] == days[DELISTED_ON - 1]
    assert sessions(firms[3], inside=False)[0] == days[LISTED_ON]
    assert sessions(firms[3], inside=True)[0] == days[LISTED_ON + 7], "min_history is 8"
    assert stored.filter(~pl.col("in_universe"))["signal"].null_count() == 7
    ranks = (
        stored.filter(pl.col("in_universe"))
        .group_by("session")
        .agg(pl.col("rank").min().alias("low"), pl.col("rank").max().alias("high"), pl.col("rank").mean())
    )
    assert (ranks["low"] == 0.0).all()
    assert (ranks["high"] == 1.0).all()
    np.testing.assert_allclose(ranks["rank"].to_numpy(), 0.5)


@pytest.mark.slow(8)
def test_todays_data_differ_exactly_where_a_correction_explains_it(season: Season) -> None:
    days, firms = season.market.days, season.market.firms
    price = ("prices", firms[5], days[WRONG_PRICE], "corrected")
    statement = ("fundamentals", firms[4], days[LATE_STATEMENT], "added")
    differing = []
    for session in range(FIRST, FIRST + NIGHTS - 1):
        day, version = days[session], season.versions[days[session]][0]
        today = score(version, season.config, night_data(season.config, season.lake, day, Progress()))
        assert write_signals(season.lake, today) == 2
        first, second = (read_revision(season.lake, season.config.name, day, version, n) for n in (1, 2))
        found = explain_differences(season.lake, first, second)
        expected = [statement] if LATE_STATEMENT <= session < DELIVERED_ON else []
        expected += [price] if WRONG_PRICE <= session < CORRECTED_ON else []
        assert found.corrections.rows() == expected, day
        if not expected:
            assert found.firms.is_empty(), day
            assert same_bits(first["signal"], second["signal"])
            assert "equals revision 1" in found.describe()
        elif not found.firms.is_empty():
            differing.append(session)
            assert f"for {found.firms.height} firms" in found.describe()
    assert set(range(WRONG_PRICE, CORRECTED_ON)) <= set(differing), (
        "a price enters the windows of every night"
    )
    assert DELIVERED_ON - 1 in differing, "the statement changes characteristics"
    day = days[WRONG_PRICE + 1]
    version = season.versions[day][0]
    corrected = explain_differences(
        season.lake,
        *(read_revision(season.lake, season.config.name, day, version, n) for n in (1, 2)),
    )
    assert f"prices of {firms[5]} were corrected on {days[WRONG_PRICE]}" in corrected.describe()
    first_revisions = read_signals(season.lake, season.config.name)
    assert first_revisions["revision"].unique().to_list() == [1]
    newest = season.lake.read("signals").group_by("session", "version").agg(pl.col("revision").max())
    used = newest.filter(pl.col("session") < days[FIRST + NIGHTS - 1])
    assert used.filter(pl.col("revision") == 2)["session"].n_unique() == NIGHTS - 1


def test_a_run_of_dated_folds_gives_the_same_signals(season: Season, tmp_path: Path, config: Config) -> None:
    """The same sessions train and validate; the nights after the training are the test."""
    days, last = season.market.days, FIRST + 5  # before the listing, so that all nights have the same firms
    folds = open_run(season.versions[days[FIRST]][0].run_id, Path(season.config.output)).read_table("folds")
    assert folds is not None
    (live,) = folds.to_dicts()
    dated = {
        "scheme": "dated",
        "train_from": live["train_from"],
        "valid_from": live["valid_from"],
        "test_from": days[FIRST + 1],
        "test_to": days[last],
        "embargo": 0,
    }
    settings = {**config.model_dump(mode="json"), "folds": dated, "lake": str(tmp_path / "lake")}
    again = check_config({**settings, "output": str(tmp_path / "runs")}, origin="dated")
    lake, progress = open_lake(again), Progress()
    deliver(lake, season.market.delivered(last), days[last])
    run, dataset, _ = prepare_run(again, progress)
    train(run, dataset, lake, progress)
    forecasts = lake.read("forecasts", filters=pl.col("run_id") == run.run_id)
    tested = ensemble_table(forecasts_to_arrays(forecasts, dataset.panel), dataset.panel)
    stored = read_signals(season.lake, config.name)
    for session in range(FIRST + 1, last + 1):
        rows = stored.filter((pl.col("session") == days[session]) & pl.col("in_universe"))
        expected = tested.filter(pl.col("date") == days[session]).sort("ticker")
        assert expected["ticker"].to_list() == rows["ticker"].to_list()
        assert same_bits(rows["signal"], expected["signal"]), session
