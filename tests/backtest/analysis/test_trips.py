"""Round trips against a plain loop over the sessions of every firm."""

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest

from backtest.analysis.history import round_trips

DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=day) for day in range(40)]


def by_loop(positions: pl.DataFrame) -> list[dict[str, Any]]:
    """Walk through every firm's sessions with the open position at hand."""
    found = []
    for (ticker,), rows in positions.sort("ticker", "date").group_by("ticker", maintain_order=True):
        trip: dict[str, Any] | None = None
        for row in rows.iter_rows(named=True):
            weight, leaving = row["weight"], trip
            if trip is not None:
                trip["gross"] += row["pnl"]
                trip["sessions"] += 1
                if np.sign(weight) != trip["sign"]:
                    trip["exit"], trip = row["date"], None
            if weight != 0 and trip is None:
                opening = {"ticker": ticker, "sign": np.sign(weight), "entry": row["date"], "exit": None}
                trip = opening | {"sessions": 0, "weight": 0.0, "gross": 0.0, "cost": 0.0}
                found.append(trip)
                if leaving is None:
                    trip["gross"] += row["pnl"]
            payer = trip if trip is not None else leaving
            if payer is not None:
                payer["cost"] += row["cost"]
                payer["weight"] = max(payer["weight"], abs(weight))
    return found


@pytest.fixture(scope="module")
def positions() -> pl.DataFrame:
    """Random positions that open, grow, shrink, turn and close; rows only where a firm is held or traded."""
    rng = np.random.default_rng(3)
    rows = []
    for firm in range(30):
        weight = 0.0
        for day in DAYS:
            before = weight
            if rng.random() < 0.3:
                weight = float(rng.choice([-0.02, -0.01, 0.0, 0.0, 0.01, 0.02]))
            if before or weight:
                traded = abs(weight - before)
                pnl = rng.normal(0, 1e-3) if before else 1e-5
                rows.append((day, f"F{firm:02d}", weight, pnl, 1e-3 * traded + 1e-6))
    return pl.DataFrame(rows, schema=["date", "ticker", "weight", "pnl", "cost"], orient="row")


def test_trips_are_those_of_a_plain_loop(positions: pl.DataFrame) -> None:
    expected, trips = by_loop(positions), round_trips(positions.sample(fraction=1.0, shuffle=True, seed=1))
    assert trips.height == len(expected) > 100
    assert trips["exit"].null_count() > 5, "some are open at the end"
    assert trips["entry"].is_in(trips["exit"].implode()).any()
    for row, one in zip(trips.iter_rows(named=True), expected, strict=True):
        assert row["side"] == ("long" if one["sign"] > 0 else "short")
        for name in ("ticker", "entry", "exit", "sessions"):
            assert row[name] == one[name]
        for name in ("weight", "gross", "cost"):
            assert row[name] == pytest.approx(one[name], abs=1e-15)


def test_trips_add_up_to_the_book(positions: pl.DataFrame) -> None:
    trips = round_trips(positions)
    assert trips["gross"].sum() == pytest.approx(positions["pnl"].sum(), abs=1e-12)
    assert trips["cost"].sum() == pytest.approx(positions["cost"].sum(), abs=1e-12)
    assert trips["net"].sum() == pytest.approx((positions["pnl"] - positions["cost"]).sum(), abs=1e-12)


def test_a_position_that_turns_is_two_trips() -> None:
    held = {"weight": [0.1, -0.2, -0.2], "pnl": [0.0, 0.01, 0.02], "cost": [0.001, 0.003, 0.0]}
    trips = round_trips(pl.DataFrame({"date": DAYS[:3], "ticker": "A"} | held))
    assert trips["side"].to_list() == ["long", "short"]
    assert trips["exit"].to_list() == [DAYS[1], None]
    assert trips["gross"].to_list() == pytest.approx([0.01, 0.02])
    assert trips["cost"].to_list() == pytest.approx([0.001, 0.003])
    assert trips["sessions"].to_list() == [1, 1]


def test_no_positions_are_no_trips() -> None:
    empty = pl.DataFrame(
        schema={
            "date": pl.Date,
            "ticker": pl.String,
            "weight": pl.Float32,
            "pnl": pl.Float32,
            "cost": pl.Float32,
        }
    )
    assert round_trips(empty).height == 0
    assert "net" in round_trips(empty).columns
