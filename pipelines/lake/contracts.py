"""Data contracts: what a row of each lake table must satisfy, and how a batch is split by them.

A row that breaks a contract is rejected under the first rule that it breaks, in this order: an unreadable
value, a missing value, the rules of `pipelines.lake.schemas` in their order there, a key that is not unique.
Therefore ``received = valid + rejected + collapsed`` holds for every batch.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dataframely as dy
import polars as pl

from pipelines.errors import DataError
from pipelines.lake.schemas import STAMPS, empty, keys, schema

_DEFAULTS: Final[Mapping[str, Mapping[str, float | bool]]] = {
    "prices": {"split_ratio": 1.0, "dividend": 0.0},
    "fundamentals": {"assumed": False},
}
_MOST_DESCRIBED: Final = 3
_ALLOWED: Final[Mapping[str, str]] = {  # end of a rule's name -> what is allowed
    "ticker_is_plain": "a ticker has at most 32 letters, digits and . - _ ^ =, a letter or digit first",
    "date_unreadable": "a date is written as 2020-01-31",
    "_unreadable": "a number is written as 1234.5",
    "_is_positive": "it must be above 0",
    "_not_negative": "it must not be below 0",
    "duplicate_key": "rows of one ticker and date differ",
    "_within_range": "it must be between low and high",
    "close_missing": "a row needs a close",
    "sparse_date": "less than a tenth of the firms have a row on the date",
}
_DECIDING: Final[Mapping[str, tuple[str, ...]]] = {"prices": ("close", "split_ratio", "dividend")}
"""What a holder earns depends on these columns alone. Rows of one key that agree in them are one row: vendors
deliver the last row of a day twice, with another volume."""
NONE_REJECTED: Final = pl.DataFrame(schema=dict.fromkeys(("table", "row_hash", "row", "rule"), pl.String))


@dataclass(frozen=True, slots=True)
class Checked:
    """A batch split by its contract; ``collapsed`` counts rows for which another one is kept or rejected."""

    valid: pl.DataFrame
    rejected: pl.DataFrame
    collapsed: int

    def by_rule(self) -> dict[str, int]:
        """Count the rejected rows by rule, most frequent first."""
        counts = self.rejected.group_by("rule").len().sort("len", "rule", descending=[True, False])
        return dict(counts.iter_rows())

    def describe(self) -> str:
        """Describe the rejected rows: the most frequent rules with a number, a value and what is allowed."""
        examples = self.rejected.group_by("rule", maintain_order=True).first()
        rows = {rule: json.loads(row) for rule, row in examples.select("rule", "row").iter_rows()}
        sentences = []
        for rule, count in list(self.by_rule().items())[:_MOST_DESCRIBED]:
            row = rows[rule]
            column = max((name for name in row if rule.startswith(f"{name}_")), key=len, default=None)
            named = (name for name in ("ticker", "date") if row.get(name) and name != column)
            example = " on ".join(str(row[name]) for name in named)
            if column:
                example = f"{column} {row[column]!r}{f' of {example}' if example else ''}"
            allowed = next((f"; {text}" for end, text in _ALLOWED.items() if rule.endswith(end)), "")
            sentences.append(f"{rule} ({count:,} rows, such as {example}{allowed})")
        return ", ".join(sentences)


def check(table: str, frame: pl.DataFrame, released: Collection[str] = ()) -> Checked:
    """Split a batch into rows that satisfy the table's contract and rows that do not.

    A missing split ratio becomes 1, a dividend 0, NaN null. Identical rows collapse, and prices of one key
    that pay the same to the last; other rows of one key are all rejected. A hash in ``released`` waives the
    rules, but no unreadable, missing or non-finite value, invalid name or second key.
    """
    contract = schema(table)
    conformed = _conform(table, contract, frame)
    if conformed.is_empty():
        return Checked(empty(table), NONE_REJECTED, 0)
    if contract.is_valid(conformed):  # in half the time of looking for the rows that are not
        return Checked(conformed, NONE_REJECTED, 0)
    unique, collapsed = _collapse(conformed, keys(table), _DECIDING.get(table, ()))
    dated, undated = _read_text_dates(table, contract, unique)
    result = contract.filter(dated, cast=True)
    valid, failure = pl.DataFrame(result.result), result.failure
    if not len(failure):
        return Checked(valid, undated, collapsed)
    details = failure.details()
    rules = sorted((c for c in details.columns if c not in contract.column_names()), key=_precedence)
    rule = pl.coalesce(pl.when(pl.col(r) == "invalid").then(pl.lit(_plain_rule(r))) for r in rules)
    broken = quarantined(table, details, rule)
    rows, accepted = _accepted(table, contract, details, broken["row_hash"].is_in(list(released)))
    if accepted.any():
        valid = pl.concat([valid, rows.filter(accepted)])
        broken = broken.filter(~accepted)
    return Checked(valid, pl.concat([undated, broken]), collapsed)


def require(table: str, frame: pl.DataFrame, released: Collection[str] = ()) -> pl.DataFrame:
    """Return a batch of the pipeline itself in the form of the contract; a violation is a ValueError."""
    checked = check(table, frame, released)
    if checked.rejected.height or checked.collapsed:
        broken = {**checked.by_rule(), "identical_rows": checked.collapsed}
        what = ", ".join(f"{rule} ({count})" for rule, count in broken.items() if count)
        raise ValueError(
            f"rows for {table} break its contract: {what}; split them with contracts.check first"
        )
    return checked.valid


def _conform(table: str, contract: type[dy.Schema], frame: pl.DataFrame) -> pl.DataFrame:
    defaults, wanted = _DEFAULTS.get(table, {}), contract.columns()
    absent = [name for name in wanted if name not in frame.columns]
    if missing := [name for name in absent if name not in defaults and not wanted[name].nullable]:
        raise DataError(
            f"table {table} lacks the column(s) {', '.join(missing)}; it has {', '.join(frame.columns)}: "
            "add them, or map existing columns to them"
        )
    columns: list[pl.Expr] = []
    for name, column in wanted.items():
        value = pl.lit(defaults.get(name), column.dtype).alias(name) if name in absent else pl.col(name)
        if name not in absent and column.nullable and frame.schema[name].is_float():
            value = value.fill_nan(None)
        columns.append(value.fill_null(defaults[name]) if name in defaults else value)
    return frame.select(columns)


def _collapse(frame: pl.DataFrame, key: list[str], deciding: Sequence[str]) -> tuple[pl.DataFrame, int]:
    repeated = frame.select(pl.struct(key).is_duplicated()).to_series()
    if not repeated.any():
        return frame, 0
    subset = [name for name in frame.columns if name not in STAMPS]
    twins = frame.filter(repeated)
    kept = twins.unique(subset=subset, keep="first", maintain_order=True)
    if deciding:
        number = pl.col(deciding).cast(pl.Float64, strict=False)
        alike = pl.all_horizontal(number.is_finite() & (number.n_unique().over(key) == 1)).alias("alike")
        agree = kept.select(alike.fill_null(value=False)).to_series()
        last = kept.filter(agree).unique(key, keep="last", maintain_order=True)
        kept = pl.concat([kept.filter(~agree), last])
    return pl.concat([frame.filter(~repeated), kept]), twins.height - kept.height


def _read_text_dates(
    table: str, contract: type[dy.Schema], frame: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parse ISO dates given as text, which polars does not cast; unreadable rows are returned as rejected."""
    names = [c for c, column in contract.columns().items() if isinstance(column, dy.Date)]
    texts = [c for c in names if frame.schema[c] == pl.String]
    if not texts:
        return frame, NONE_REJECTED
    parsed = {c: pl.col(c).str.to_date("%Y-%m-%d", strict=False) for c in texts}
    rule = pl.coalesce(
        pl.lit(None, dtype=pl.String),
        *(
            pl.when(pl.col(c).is_not_null() & day.is_null()).then(pl.lit(f"{c}_unreadable"))
            for c, day in parsed.items()
        ),
    )
    good = frame.filter(rule.is_null()).with_columns(**parsed)
    return good, quarantined(table, frame.filter(rule.is_not_null()), rule)


def _accepted(
    table: str, contract: type[dy.Schema], details: pl.DataFrame, released: pl.Series
) -> tuple[pl.DataFrame, pl.Series]:
    """Return broken rows with the contract's types, and which of them are released and can be stored."""
    hard = [c for c in details.columns if c.endswith(("|dtype", "|nullability", "_is_plain"))]
    columns = contract.columns().items()
    rows = details.select(pl.col(name).cast(column.dtype, strict=False) for name, column in columns)
    sound = pl.all_horizontal(
        pl.lit(value=True),
        *(pl.col(c).is_finite().fill_null(value=True) for c in rows.columns if rows.schema[c].is_float()),
    )
    storable = released & rows.select(sound).to_series()
    for rule in hard:
        storable &= (details[rule] != "invalid").fill_null(value=True)
    of_key = storable.cast(pl.Int64).alias(":storable")
    is_only = rows.with_columns(of_key).select(pl.col(":storable").sum().over(keys(table)) == 1)
    return rows, storable & is_only.to_series()


def quarantined(table: str, rows: pl.DataFrame, rule: pl.Expr) -> pl.DataFrame:
    """Return rows as ``row`` (JSON of text), ``rule``, and ``row_hash`` of the values that are not null."""
    texts = [
        _as_text(c, rows.schema[c], column.dtype)
        for c, column in schema(table).columns().items()
        if c not in STAMPS
    ]
    hashed = pl.concat_str(
        pl.when(text.is_null()).then(pl.lit("")).otherwise(pl.struct(text).struct.json_encode())
        for text in texts
    )
    return rows.select(
        pl.lit(table).alias("table"),
        hash_of(hashed).alias("row_hash"),
        pl.struct(texts).struct.json_encode().alias("row"),
        rule.alias("rule"),
    )


def hash_of(text: pl.Expr) -> pl.Expr:
    """Return the hash of a text by which a row is named."""
    return text.map_elements(lambda one: hashlib.sha256(one.encode()).hexdigest()[:32], pl.String)


def _as_text(column: str, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    value = pl.col(column)
    if wanted.is_numeric() and given != wanted:  # 10, 10.0 and "10.00" are the same price
        return pl.coalesce(value.cast(wanted, strict=False).cast(pl.String), value.cast(pl.String))
    return value.cast(pl.String)


def _precedence(rule: str) -> int:
    """Return a rule's rank, most fundamental first; sorting is stable, so the schema's order is kept."""
    if "primary_key" in rule:
        return 3
    return {"dtype": 0, "nullability": 1}.get(rule.rpartition("|")[2], 2)


def _plain_rule(rule: str) -> str:
    if rule == "primary_key":
        return "duplicate_key"
    column, _, kind = rule.partition("|")
    words = {"dtype": "unreadable", "nullability": "missing", "min": "below_minimum"}
    return f"{column}_{words.get(kind, kind)}" if kind else rule
