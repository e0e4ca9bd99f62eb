"""The data of a night: versions of the lake's tables, cut at the session."""

import datetime as dt
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset, add_features
from pipelines.dataset.market import Market, build_market
from pipelines.dataset.tables import input_versions, newest_tickers, read_tables
from pipelines.errors import DataError
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import schema
from pipelines.nightly import result
from pipelines.progress import Progress
from pipelines.run.identity import feature_store


@dataclass(frozen=True, eq=False)
class NightData:
    """What a night knows: nothing that is dated after its session; labels that end later are NaN."""

    session: dt.date
    versions: Mapping[str, int]
    config: Config
    tables: Mapping[str, pl.DataFrame]
    market: Market
    lake: Lake
    progress: Progress = field(default_factory=Progress)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The market with features and targets on all sessions, as training needs it and scoring does not."""
        store = feature_store(self.config, self.progress)
        return add_features(self.market, self.tables, self.config, store)

    @functools.cached_property
    def renames(self) -> pl.DataFrame:
        """Rows of the table ``renames`` that are known at the session; the tables follow them already."""
        version = self.versions.get("renames")
        none = schema("renames").create_empty()
        return none if version is None else result.known_renames(self.lake, self.session, version)

    @property
    def data_versions(self) -> str:
        """The versions as JSON, as they are stored with signals and nights."""
        return json.dumps(dict(sorted(self.versions.items())))


def night_data(
    config: Config,
    lake: Lake,
    session: dt.date | None,
    progress: Progress,
    versions: Mapping[str, int] | None = None,
) -> NightData:
    """Read what is known at the close of a session."""
    versions = input_versions(lake) if versions is None else versions
    if session is None:
        session = newest_session(lake, versions)
    with progress.stage("prices"):
        tables = read_tables(lake, versions, session)
        last: dt.date = tables["prices"]["date"].max()  # type: ignore[assignment]  # dates of a known schema
        if last != session:
            newest = newest_session(lake, versions)
            raise DataError(
                f"The lake {lake.root} has no prices on {session}; the last session before it is {last} and "
                f"the newest one is {newest}. Choose one of its sessions, or ingest the missing one."
            )
        market = build_market(tables, config, newest_tickers(lake, versions, session))
    return NightData(session, dict(versions), config, tables, market, lake, progress)


def newest_session(lake: Lake, versions: Mapping[str, int]) -> dt.date:
    """Return the newest session in the prices of a lake at some versions."""
    dates = lake.read("prices", version=versions["prices"], columns=["date"], ordered=False)
    newest: dt.date = dates["date"].max()  # type: ignore[assignment]  # dates of a known schema
    return newest


def signal_history(
    config: Config, data: NightData, champion: result.ModelVersion, challenger: result.ModelVersion | None
) -> pl.DataFrame:
    """Read the signals of the nights up to this one: each night's champion's, and today's challenger's."""
    tonight = (data.session, data.data_versions)
    used = result.read_signals(data.lake, config.name, through=data.session, tonight=tonight)
    nights = result.read_nights(data.lake, config.name).filter(pl.col("session") < data.session)
    rival = nights.filter(pl.col("challenger") == str(challenger)).select("session", version="challenger")
    roles = [
        ("champion", champion, nights.select("session", "version")),
        ("challenger", challenger, rival),
    ]
    parts = [
        pl.concat([before.drop_nulls("version"), _tonight(data.session, version)]).with_columns(
            role=pl.lit(role)
        )
        for role, version, before in roles
        if version is not None
    ]
    signals = used.join(pl.concat(parts), on=["session", "version"], how="inner")
    columns = ("session", "role", "version", "ticker", "signal", "seed_dispersion", "in_universe")
    return result.follow(signals.select(columns), data.renames).sort("role", "session", "ticker")


def _tonight(session: dt.date, version: result.ModelVersion) -> pl.DataFrame:
    """Session and version of this night, which the table does not hold yet."""
    return pl.DataFrame({"session": [session], "version": [str(version)]})


def champion_signals(
    signals: pl.DataFrame, nights: pl.DataFrame, session: dt.date, champion: result.ModelVersion
) -> pl.DataFrame:
    """Keep the signals of the champion of each night."""
    traded = nights.filter((pl.col("session") < session) & (pl.col("state") != "failed"))
    champions = pl.concat([traded.select("session", "version"), _tonight(session, champion)])
    rows = signals.join(champions, on=["session", "version"], how="semi")
    return rows.select("session", "ticker", "version", "signal").sort("session", "ticker")
