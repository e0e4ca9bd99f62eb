"""Books with 0, -30% and -55% for delistings for unknown reasons: by hand, in a run, and in its report."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from ending_markets import securities_table

from features.panel.delistings import DelistingRule
from features.panel.panel import Panel, build_panel
from pipelines.config.load import check_config
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.progress import Progress
from pipelines.results.evaluate_run import ending_table, evaluate_run
from pipelines.run.fetch import ingest_config
from pipelines.run.open import reopen_run
from pipelines.sources.simulated.firms import securities_frame
from pipelines.stages import train_config, write_report

SESSIONS = 8
FREE = {"half_spread_bps": 0.0, "commission_bps": 0.0, "borrow_bps_per_year": 0.0}


def panel_of(last: dict[str, int], *securities: dict[str, object]) -> Panel:
    """Build a panel of constant prices. Each firm trades until its last session."""
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=t) for t in range(SESSIONS)]
    rows = [
        {"date": day, "ticker": ticker, "close": 10.0}
        for ticker, end in last.items()
        for day in days[: end + 1]
    ]
    unknown = pl.lit(None, dtype=pl.Float64)
    prices = pl.DataFrame(rows).with_columns(
        *(unknown.alias(name) for name in ("open", "high", "low", "volume")),
        split_ratio=pl.lit(1.0),
        dividend=pl.lit(0.0),
    )
    return build_panel(prices, securities_table(securities), delisting_rule=DelistingRule(stale_sessions=1))


def table_of(panel: Panel, tiny: dict[str, Any]) -> pl.DataFrame | None:
    """Hold A and B long and C and D short, half of the NAV each, from the first session on."""
    books = {
        "long_short": {"kind": "quantile_long_short", "quantiles": 2, "rebalance_every": 100},
        "long_only": {"kind": "top_k_long_only", "k": 2, "rebalance_every": 100},
    }
    label = {"horizon": 1, "delay": 0}
    config: Config = check_config(
        {**tiny, "label": label, "backtest": {"books": books, "costs": FREE}}, origin="tiny"
    )
    shape = panel.close_TN.shape
    dataset = Dataset(
        panel=panel,
        universe_TN=panel.traded_TN,
        channels_TNC=np.zeros((*shape, 1), np.float32),
        characteristics_TNF=np.zeros((*shape, 1), np.float32),
        labels={},
        target_TN=np.zeros(shape, np.float32),
        channel_names=("c",),
        characteristic_names=("f",),
        notes=(),
    )
    signal_TN = np.where(panel.traded_TN, [4.0, 3.0, 2.0, 1.0], np.nan)
    return ending_table({"mine": {0: signal_TN}}, dataset, config)


def test_each_side_under_each_return_by_hand(tiny: dict[str, Any]) -> None:
    # A (long) and C (short) stop trading after session 2 and are paid out at session 4, each half of the NAV.
    table = table_of(panel_of({"A": 2, "B": 7, "C": 2, "D": 7}), tiny)
    assert table is not None
    rows = {(row["book"], row["side"]): row for row in table.iter_rows(named=True)}
    assert list(rows) == [
        ("long_short", "book"),
        ("long_short", "long"),
        ("long_short", "short"),
        ("long_only", "book"),
    ]
    counts = {key: row["paid_out"] for key, row in rows.items()}
    assert counts == dict(zip(rows, (2, 1, 1, 1), strict=True))
    for suffix, paid in (("0", 0.0), ("30", -0.3), ("55", -0.55)):
        for key, earned in zip(rows, (0.0, paid / 2, -paid / 2, paid / 2), strict=True):
            annual = (1 + earned) ** (365 / SESSIONS) - 1
            assert rows[key][f"annual_return_net_{suffix}"] == pytest.approx(annual, rel=1e-12, abs=1e-12)
            sharpe = rows[key][f"sharpe_net_{suffix}"]
            returns_T = np.zeros(SESSIONS)
            returns_T[4] = earned
            if earned:
                assert sharpe == pytest.approx(
                    returns_T.mean() / returns_T.std(ddof=1) * np.sqrt(365), rel=1e-12
                )


def test_a_recorded_return_or_reason_is_not_an_unknown_delisting(tiny: dict[str, Any]) -> None:
    delisted = {"valid_from": dt.date(2024, 1, 1), "delisted_on": dt.date(2024, 1, 4)}
    securities: tuple[dict[str, object], ...] = (
        {"ticker": "A", **delisted, "delisting_return": -0.8},
        {"ticker": "C", **delisted, "delisting_reason": "merger"},
        {"ticker": "D", **delisted, "delisting_reason": "performance"},
    )
    panel = panel_of({"A": 2, "B": 7, "C": 2, "D": 2}, *securities)
    assert panel.delisted_TN.any(axis=0).tolist() == [True, False, True, True]
    assert table_of(panel, tiny) is None
    assert table_of(panel_of(dict.fromkeys("ABCD", 7)), tiny) is None


@pytest.mark.slow(3)
def test_unknown_delistings_are_in_the_report_of_a_run_that_has_some(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = {**tiny["source"], "market": {**tiny["source"]["market"], "delistings_per_year": 1.5}}
    label = {"horizon": 1, "delay": 0, "extra_delays": [1]}
    settings = {**tiny, "source": source, "models": {"reversal": {}}, "label": label}

    def without_reasons(*args: Any) -> pl.DataFrame:  # noqa: ANN401  # relayed
        nothing = (pl.lit(None, pl.Float64), pl.lit(None, pl.String))
        return securities_frame(*args).with_columns(delisting_return=nothing[0], delisting_reason=nothing[1])

    for name, frame in (("unknown", without_reasons), ("known", securities_frame)):
        monkeypatch.setattr("pipelines.sources.simulated.source.securities_frame", frame)
        config = check_config({**settings, "lake": f"lake_{name}"}, origin="tiny")
        ingest_config(config, lambda _: None)
        run, dataset, lake = reopen_run(train_config(config), Path("runs"), Progress())
        evaluation = evaluate_run(run, dataset, lake, Progress())
        page = write_report(run, evaluation, dataset, lake, Progress()).read_text(encoding="utf-8")
        assert ("Books by the return of unknown delistings" in page) == (name == "unknown")
        assert any("the last price is paid" in hazard for hazard in dataset.panel.hazards) == (
            name == "unknown"
        )
        table = evaluation.read_table("endings")
        assert (table is not None) == (name == "unknown")
        if table is not None:
            ladder = evaluation.table("ladder").filter(delay=1)  # which can be traded
            own = table.filter((pl.col("book") == "long_short") & (pl.col("side") == "book"))
            assert own["sharpe_net_0"].item() == pytest.approx(ladder["long_short.sharpe_net"].item())
            assert own["paid_out"].item() > 0
            assert own["sharpe_net_55"].item() != own["sharpe_net_0"].item()
