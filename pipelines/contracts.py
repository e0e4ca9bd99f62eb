"""Data contracts: what a row of each lake table must satisfy, and how a batch is split by them.

A row that breaks a contract is rejected under the first rule it breaks, in this order: a value that cannot be
read, a value that is missing, the schema's own rules as written below, a key that is not unique. So
``received = valid + rejected + collapsed`` holds for every batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import dataframely as dy
import polars as pl
from dataframely._rule import RuleFactory

from pipelines.errors import DataError

RANGE_TOLERANCE: Final = 0.005
"""How far, relative to the bound, a close or an open may lie outside [low, high]: vendors round and adjust
the four prices separately. In the Nasdaq files 78 closes of 3.7 million are outside, 48 by more than this."""

TICKER_PATTERN: Final = r"^[A-Za-z0-9^=][A-Za-z0-9.^=_-]{0,31}$"
"""Letters, digits and ``. - _ ^ =``: admits BRK.B, BF-B, ^GSPC, 7203.T, EURUSD=X; no slash, angle bracket,
quote, ampersand or space, so that a name from data is never a path and never markup."""

INPUT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"
"""Names of a user's own inputs become feature names."""

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Run ids name partition folders, so they are as plain as tickers."""


def _plain_ticker(column: str) -> pl.Expr:
    return pl.col(column).str.contains(TICKER_PATTERN) & ~pl.col(column).str.contains("..", literal=True)


def _finite(column: str) -> pl.Expr:
    return pl.col(column).is_finite()


def _positive(column: str) -> pl.Expr:
    return _finite(column) & (pl.col(column) > 0)


def _measure(*, nullable: bool = False) -> dy.Float64:
    """Make a float column whose range is checked by a named rule of the schema rather than by dataframely."""
    return dy.Float64(nullable=nullable, allow_nan=True, allow_inf=True)


def _key_date() -> dy.Date:
    return dy.Date(primary_key=True)


def _key_text() -> dy.String:
    return dy.String(primary_key=True)


def within_range(column: str) -> pl.Expr:
    """Tell whether a price lies in ``[low (1 - tol), high (1 + tol)]``, tol = `RANGE_TOLERANCE`.

    True where the bound in question or the price is null, or where high < low (another rule's matter).
    """
    above = (pl.col(column) <= pl.col("high") * (1.0 + RANGE_TOLERANCE)).fill_null(value=True)
    below = (pl.col(column) >= pl.col("low") * (1.0 - RANGE_TOLERANCE)).fill_null(value=True)
    return (above & below) | (pl.col("high") < pl.col("low")).fill_null(value=False)


def _rule(holds: pl.Expr) -> RuleFactory:
    """Make a rule of a schema, named by the attribute that it is assigned to; null counts as holding."""

    def validate(cls: type[dy.Schema]) -> pl.Expr:
        return holds

    return dy.rule()(validate)


class Prices(dy.Schema):
    """Daily bars as quoted, one row a session and firm; null open, high, low or volume = not known."""

    date = _key_date()
    ticker = _key_text()
    open = _measure(nullable=True)
    high = _measure(nullable=True)
    low = _measure(nullable=True)
    close = _measure()
    volume = _measure(nullable=True)
    split_ratio = _measure()
    dividend = _measure()
    source = dy.String()
    ingested_at = dy.Datetime(time_unit="us", time_zone="UTC")

    ticker_is_plain = _rule(_plain_ticker("ticker"))
    close_is_positive = _rule(_positive("close"))
    open_is_positive = _rule(_positive("open"))
    high_is_positive = _rule(_positive("high"))
    low_is_positive = _rule(_positive("low"))
    high_not_below_low = _rule(pl.col("high") >= pl.col("low"))
    close_within_range = _rule(within_range("close"))
    open_within_range = _rule(within_range("open"))
    volume_is_finite_and_not_negative = _rule(_finite("volume") & (pl.col("volume") >= 0))
    split_ratio_is_positive = _rule(_positive("split_ratio"))
    dividend_is_finite_and_not_negative = _rule(_finite("dividend") & (pl.col("dividend") >= 0))


class Securities(dy.Schema):
    """What a firm was called and where it belonged, for valid_from <= t < valid_to (null = still)."""

    ticker = _key_text()
    valid_from = _key_date()
    name = dy.String(nullable=True)
    sector = dy.String(nullable=True)
    industry = dy.String(nullable=True)
    listed_on = dy.Date(nullable=True)
    delisted_on = dy.Date(nullable=True)
    delisting_return = _measure(nullable=True)
    currency = dy.String(nullable=True)
    exchange = dy.String(nullable=True)
    valid_to = dy.Date(nullable=True)

    ticker_is_plain = _rule(_plain_ticker("ticker"))
    valid_to_after_valid_from = _rule(pl.col("valid_to") > pl.col("valid_from"))
    delisted_not_before_listed = _rule(pl.col("delisted_on") >= pl.col("listed_on"))
    delisting_return_at_least_minus_one = _rule(
        _finite("delisting_return") & (pl.col("delisting_return") >= -1.0)
    )


class Fundamentals(dy.Schema):
    """Statement items as published; a restatement is another row with a later known_at."""

    ticker = _key_text()
    period_end = _key_date()
    known_at = _key_date()
    item = _key_text()
    value = _measure()
    unit = dy.String(nullable=True)
    filing_id = dy.String(nullable=True)
    months = dy.Int64(nullable=True, min=1)  # span of a flow (3, 6, 9, 12); null: an instant, or not said
    assumed = dy.Bool()  # known_at is period_end plus an assumed lag, not a date on which somebody published

    ticker_is_plain = _rule(_plain_ticker("ticker"))
    known_after_period_end = _rule(pl.col("known_at") >= pl.col("period_end"))
    value_is_finite = _rule(_finite("value"))


class Membership(dy.Schema):
    """Spells of index membership, from_date <= t < to_date (null = still)."""

    universe = _key_text()
    ticker = _key_text()
    from_date = _key_date()
    to_date = dy.Date(nullable=True)

    ticker_is_plain = _rule(_plain_ticker("ticker"))
    to_date_after_from_date = _rule(pl.col("to_date") > pl.col("from_date"))


class Inputs(dy.Schema):
    """A user's own numbers by date and firm, as delivered; whether known by then is for the audit."""

    name = _key_text()
    date = _key_date()
    ticker = _key_text()
    value = _measure()

    ticker_is_plain = _rule(_plain_ticker("ticker"))
    name_is_plain = _rule(pl.col("name").str.contains(INPUT_PATTERN))
    value_is_finite = _rule(_finite("value"))


class Forecasts(dy.Schema):
    """One forecast a date, firm, model, fold and seed; null label = not known yet."""

    run_id = _key_text()
    model = _key_text()
    fold = dy.Int64(primary_key=True, min=0)
    seed = dy.Int64(primary_key=True)
    date = _key_date()
    ticker = _key_text()
    forecast = _measure()
    label = _measure(nullable=True)

    run_id_is_plain = _rule(pl.col("run_id").str.contains(RUN_ID_PATTERN))
    forecast_is_finite = _rule(_finite("forecast"))
    label_is_finite = _rule(_finite("label"))


class Quarantine(dy.Schema):
    """Rejected rows: the row as JSON with its values as text, and the first rule that it broke."""

    table = _key_text()
    row_hash = _key_text()
    row = dy.String()
    rule = dy.String()
    first_seen = dy.Datetime(time_unit="us", time_zone="UTC")


class TruthMu(dy.Schema):
    """The simulated market's conditional mean return per decision date and firm, and its three parts."""

    date = _key_date()
    ticker = _key_text()
    mu = _measure()
    temporal = _measure()
    peer = _measure()
    characteristic = _measure()

    parts_are_finite = _rule(
        pl.all_horizontal(_finite(c) for c in ("mu", "temporal", "peer", "characteristic"))
    )


class TruthEdges(dy.Schema):
    """The simulated market's graph: what the leader's shock adds to the follower's mean after lag sessions.

    The edge acts on decision dates in [valid_from, valid_to); ``explained`` says that features show it,
    ``rule`` why it is there and ``via`` which firm lies between when hop = 2.
    """

    leader = _key_text()
    follower = _key_text()
    lag = dy.Int64(primary_key=True, min=0)
    hop = dy.Int64(primary_key=True, min=1)
    valid_from = _key_date()
    valid_to = dy.Date(nullable=True)
    weight = _measure()
    explained = dy.Bool()
    rule = dy.String(nullable=True)
    via = dy.String(nullable=True)

    weight_is_finite = _rule(_finite("weight"))
    valid_to_after_valid_from = _rule(pl.col("valid_to") > pl.col("valid_from"))


class TruthDays(dy.Schema):
    """What the firm's own return k sessions before the decision date adds to its temporal part: day_k."""

    date = _key_date()
    ticker = _key_text()
    turbulent = dy.Bool()
    shock = _measure()
    day_0 = _measure()
    day_1 = _measure()
    day_2 = _measure()
    day_3 = _measure()
    day_4 = _measure()

    parts_are_finite = _rule(
        pl.all_horizontal(_finite(c) for c in ("shock", "day_0", "day_1", "day_2", "day_3", "day_4"))
    )


class Sources(dy.Schema):
    """What each source last said of its data: notes and hazards, as JSON lists of sentences."""

    source = _key_text()
    notes = dy.String()
    hazards = dy.String()


class Trials(dy.Schema):
    """The ledger of every configuration that was trained and evaluated, kept or thrown away."""

    trial_id = _key_text()
    run_id = dy.String()
    model = dy.String()
    config = dy.String()
    created_at = dy.Datetime(time_unit="us", time_zone="UTC")


SCHEMAS: Final[Mapping[str, type[dy.Schema]]] = {
    "prices": Prices,
    "securities": Securities,
    "fundamentals": Fundamentals,
    "membership": Membership,
    "inputs": Inputs,
    "forecasts": Forecasts,
    "quarantine": Quarantine,
    "truth_mu": TruthMu,
    "truth_edges": TruthEdges,
    "truth_days": TruthDays,
    "trials": Trials,
    "sources": Sources,
}

SOURCE_TABLES: Final = (
    "prices",
    "securities",
    "fundamentals",
    "membership",
    "inputs",
    "truth_mu",
    "truth_edges",
    "truth_days",
)
"""The tables a source may give; the others are written by the pipeline itself."""

STAMPS: Final = frozenset({"ingested_at", "first_seen", "created_at"})
"""Columns that say when a row was written; a different stamp alone is not a change of the row."""

_DEFAULTS: Final[Mapping[str, Mapping[str, float | bool]]] = {
    "prices": {"split_ratio": 1.0, "dividend": 0.0},
    "fundamentals": {"assumed": False},
}


@dataclass(frozen=True, slots=True)
class Checked:
    """A batch split by its contract.

    Attributes
    ----------
    valid
        Rows that satisfy the contract, with its columns and types.
    rejected
        One row per rejected row: ``table``, ``row_hash``, ``row``, ``rule`` (the first rule broken).
    collapsed
        Number of rows left out because an identical row is kept or rejected in their place.
    """

    valid: pl.DataFrame
    rejected: pl.DataFrame
    collapsed: int

    def by_rule(self) -> dict[str, int]:
        """Count the rejected rows by rule, most frequent first."""
        counts = self.rejected.group_by("rule").len().sort("len", "rule", descending=[True, False])
        return dict(counts.iter_rows())


def keys(table: str) -> list[str]:
    """Return the key columns of a lake table.

    Raises
    ------
    ValueError
        If the lake has no table of that name.
    """
    return list(schema(table).primary_key())


def schema(table: str) -> type[dy.Schema]:
    """Return the contract of a lake table; ValueError if the lake has no table of that name."""
    if table not in SCHEMAS:
        raise ValueError(f"the lake has no table {table!r}; its tables are {', '.join(SCHEMAS)}")
    return SCHEMAS[table]


def check(table: str, frame: pl.DataFrame) -> Checked:
    """Split a batch into rows that satisfy the table's contract and rows that do not.

    Absent nullable columns are filled with null, an absent or null split ratio is 1 and dividend 0, NaN in a
    nullable column is null, and columns that the contract does not know are left out. Rows that are identical
    (stamps aside) collapse to one; rows that share a key and differ are all rejected.

    Parameters
    ----------
    table
        Name of the lake table.
    frame
        The batch. Types are cast; a value that cannot be cast rejects its row.

    Raises
    ------
    DataError
        If a required column is missing.
    """
    contract = schema(table)
    unique, collapsed = _collapse(_conform(table, contract, frame), keys(table))
    dated, undated = _read_text_dates(table, contract, unique)
    valid, failure = contract.filter(dated, cast=True)
    broken = _rejected(table, contract, failure.details()) if len(failure) else undated.clear()
    return Checked(valid=pl.DataFrame(valid), rejected=pl.concat([undated, broken]), collapsed=collapsed)


def require(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the batch as the contract has it; for frames made by the pipeline, where a breach is a bug.

    Raises
    ------
    ValueError
        If any row breaks the contract or is there twice.
    """
    checked = check(table, frame)
    if checked.rejected.height or checked.collapsed:
        broken = {**checked.by_rule(), **({"identical_rows": checked.collapsed} if checked.collapsed else {})}
        what = ", ".join(f"{rule} ({count})" for rule, count in broken.items())
        raise ValueError(
            f"rows for {table} break its contract: {what}; split them with contracts.check first"
        )
    return checked.valid


def _conform(table: str, contract: type[dy.Schema], frame: pl.DataFrame) -> pl.DataFrame:
    defaults = _DEFAULTS.get(table, {})
    columns: list[pl.Expr] = []
    missing: list[str] = []
    for name, column in contract.columns().items():
        if name not in frame.columns:
            if name in defaults:
                columns.append(pl.lit(defaults[name]).alias(name))
            elif column.nullable:
                columns.append(pl.lit(None, dtype=column.dtype).alias(name))
            else:
                missing.append(name)
            continue
        value = pl.col(name)
        if column.nullable and frame.schema[name].is_float():
            value = value.fill_nan(None)
        columns.append(value.fill_null(defaults[name]) if name in defaults else value)
    if missing:
        raise DataError(
            f"table {table} lacks the column(s) {', '.join(missing)}; it has {', '.join(frame.columns)}: "
            "add them, or map them from the names they have"
        )
    return frame.select(columns)


def _collapse(frame: pl.DataFrame, key: list[str]) -> tuple[pl.DataFrame, int]:
    repeated = frame.select(pl.struct(key).is_duplicated()).to_series()
    if not repeated.any():
        return frame, 0
    subset = [name for name in frame.columns if name not in STAMPS]
    twins = frame.filter(repeated)
    kept = twins.unique(subset=subset, keep="first", maintain_order=True)
    return pl.concat([frame.filter(~repeated), kept]), twins.height - kept.height


def _read_text_dates(
    table: str, contract: type[dy.Schema], frame: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parse ISO dates that came as text, which polars does not cast; return the rest as rejected rows."""
    names = [c for c, column in contract.columns().items() if isinstance(column, dy.Date)]
    texts = [c for c in names if frame.schema[c] == pl.String]
    parsed = {c: pl.col(c).str.to_date("%Y-%m-%d", strict=False) for c in texts}
    rule = pl.coalesce(
        pl.lit(None, dtype=pl.String),
        *(
            pl.when(pl.col(c).is_not_null() & day.is_null()).then(pl.lit(f"{c}_unreadable"))
            for c, day in parsed.items()
        ),
    )
    bad = frame.filter(rule.is_not_null()) if texts else frame.clear()
    good = frame.filter(rule.is_null()).with_columns(**parsed) if texts else frame
    return good, _quarantined(table, contract, bad, rule)


def _rejected(table: str, contract: type[dy.Schema], details: pl.DataFrame) -> pl.DataFrame:
    columns = contract.column_names()
    rules = sorted((c for c in details.columns if c not in columns), key=_precedence)
    rule = pl.coalesce(pl.when(pl.col(r) == "invalid").then(pl.lit(_plain_rule(r))) for r in rules)
    return _quarantined(table, contract, details, rule)


def _quarantined(table: str, contract: type[dy.Schema], rows: pl.DataFrame, rule: pl.Expr) -> pl.DataFrame:
    """Write rows as JSON with their values as text, so that an infinity or a misspelt number survives."""
    columns = [c for c in contract.column_names() if c not in STAMPS]
    row = pl.struct(pl.col(c).cast(pl.String) for c in columns).struct.json_encode()
    frame = rows.select(pl.lit(table).alias("table"), row.alias("row"), rule.alias("rule"))
    hashes = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in frame["row"]]
    return frame.select("table", pl.Series("row_hash", hashes, dtype=pl.String), "row", "rule")


def _precedence(rule: str) -> int:
    """Order rules from the most to the least fundamental; the sort is stable, so a schema's order is kept."""
    return (
        0
        if rule.endswith("|dtype")
        else 1
        if rule.endswith("|nullability")
        else 3
        if "primary_key" in rule
        else 2
    )


def _plain_rule(rule: str) -> str:
    if rule == "primary_key":
        return "duplicate_key"
    column, _, kind = rule.partition("|")
    words = {"dtype": "unreadable", "nullability": "missing", "min": "below_minimum"}
    return f"{column}_{words.get(kind, kind)}" if kind else rule
