"""Rows flagged as in another unit earn nothing, by the rule and with a file of fills or positions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import night_world
import polars as pl
import pytest
from night_world import DAYS, FIRMS, FIRST, MODEL, World, play, store
from places import ROOT

from pipelines.config.load import load_config
from pipelines.lake.lake import Lake

NIGHTS = DAYS[DAYS.index(FIRST) :][:6]
FLAGGED_ON, LATER = NIGHTS[3], NIGHTS[5]
FIRM = "F05"


@pytest.mark.parametrize("filled", ["rule", "fills", "positions"])
@pytest.mark.parametrize("rule", ["currency_jump", "split_without_return", "dividend_above_price"])
def test_a_row_in_another_unit_earns_nothing(
    rule: str, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 shares of two firms at 100 are held, and the other one rises by a tenth in the last session."""
    never = dt.date.max
    own = {"SPLIT": FIRM, "SPLIT_ON": FLAGGED_ON if rule == "split_without_return" else never}
    own |= {"PAYER": FIRM, "DIVIDEND_ON": FLAGGED_ON if rule == "dividend_above_price" else never}
    for name, value in own.items():
        monkeypatch.setattr(night_world, name, value)
    monkeypatch.setattr(night_world, "DELISTED_ON", never)
    world, lake = World(troubled=False), Lake(tmp_path / "lake")
    jump = 100.0 if rule == "currency_jump" else 1.0
    world.close = {firm: dict.fromkeys(DAYS, 100.0) for firm in FIRMS}
    world.close[FIRM] |= {day: 100.0 * jump for day in DAYS if day >= FLAGGED_ON}
    world.close["F06"] |= {day: 110.0 for day in DAYS if day >= LATER}

    file, account = tmp_path / "file.csv", []
    if filled == "fills":
        trades = [f"{NIGHTS[1]},{FIRM},5000,100,0", f"{NIGHTS[1]},F06,5000,100,0"]
        trades.append(f"{LATER},{FIRM},-1000,100,0")
        file.write_text("\n".join(["session,ticker,shares,price,fee", *trades]) + "\n")
    if filled == "positions":
        held = [f"{NIGHTS[1]},{FIRM},5000", f"{NIGHTS[1]},F06,5000", f"{LATER},{FIRM},4000"]
        file.write_text("\n".join(["session,ticker,shares", *held, f"{LATER},F06,5000"]) + "\n")
    if filled != "rule":
        account.append(f"nightly.account.{filled}={file}")
    free = [f"backtest.costs.{name}=0" for name in ("half_spread_bps", "commission_bps")]
    places = [f"lake={tmp_path / 'lake'}", f"output={tmp_path / 'runs'}", "universe.min_history=5"]
    book = "backtest.books={long_short: {kind: top_k_long_only, k: 2}}"
    terms = ["backtest.execution={price: close, lot: 10}", "backtest.capital=1e6"]
    free.append("backtest.costs.impact_coefficient=0")
    config = load_config(ROOT / "configs" / "nightly_demo.yaml", [*places, *free, *account, book, *terms])
    flag = {"table": "prices", "row_hash": "x", "date": FLAGGED_ON, "ticker": FIRM, "rule": rule}
    flag |= {"evidence": "", "cleared": False, "known_on": FLAGGED_ON}
    nav, shares = {}, {}
    for session in NIGHTS:
        world.deliver(lake, session)
        if session >= FLAGGED_ON:
            store(lake, "flags", [flag | {"flagged_at": dt.datetime(2021, 1, 1, tzinfo=dt.UTC)}])
        rows = [
            (day, firm, str(MODEL), 1.0 if firm in {FIRM, "F06"} else -1.0 - n)
            for day in NIGHTS
            if day <= session
            for n, firm in enumerate(FIRMS)
        ]
        signals = pl.DataFrame(rows, schema=["session", "ticker", "version", "signal"], orient="row")
        made = play(lake, config, session, signals)
        nav[session] = made.tables["profits"]["nav"][-1]
        of_firm = made.tables["positions"].filter((pl.col("ticker") == FIRM) & (pl.col("session") == session))
        shares[session] = of_firm["shares"].sum()
    assert [nav[session] for session in NIGHTS[:-1]] == pytest.approx([1e6] * 5)
    assert nav[LATER] == pytest.approx(1.05e6)
    last = 5250 if filled == "rule" else 4000
    assert [shares[session] for session in NIGHTS[1:]] == pytest.approx([5000] * 4 + [last])
    order = made.tables["books"].row(by_predicate=pl.col("ticker") == FIRM, named=True)
    assert order["price"] == pytest.approx(100)
    assert order["shares"] == pytest.approx(5250 - last, abs=1e-6)
