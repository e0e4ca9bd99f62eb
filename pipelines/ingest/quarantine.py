"""Rejected and flagged rows: list them, and accept them despite the rule that they broke.

A rejected row is ``resolved`` once a later delivery corrects it or a complete one leaves it out; it can then
no longer be released, so that a release never replaces a correction. A released row is stored as delivered,
and no rule is applied to it until one of its values changes. Types, missing values, non-finite numbers,
invalid names and duplicate keys cannot be waived, because such a row cannot be stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.format import abbreviate
from pipelines.lake.contracts import Checked, check
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import STAMPS, SUPPLEMENTS, empty, keys, schema

_LISTED: Final = ("state", "table", "ticker", "date", "rule", "what", "row_hash", "since", "released_at")
_DATES: Final = ("date", "period_end", "valid_from", "from_date")
_NAMED: Final = 3
_ROW: Final = ["table", "row_hash"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects rejected and flagged rows, which must match every part; a hash by its beginning."""

    rule: str | None = None
    ticker: str | None = None
    table: str | None = None
    row: str | None = None

    def __str__(self) -> str:
        given = [("table", self.table), ("rule", self.rule), ("ticker", self.ticker), ("row", self.row)]
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)


def released_hashes(lake: Lake) -> dict[str, frozenset[str]]:
    """Return the hashes of accepted rows by table."""
    rows = lake.rows("releases", ["table", "row_hash"])
    return {str(table): frozenset(part["row_hash"]) for (table,), part in rows.group_by("table")}


def quarantine_changes(
    lake: Lake, checked: Mapping[str, Checked], now: datetime, *, complete: bool
) -> pl.DataFrame:
    """Return the rows of the quarantine that a delivery, perhaps a ``complete`` one, adds or resolves."""
    time, never = pl.lit(now), pl.lit(None, dtype=pl.Datetime("us", "UTC"))
    none = empty("quarantine").select("table", "row_hash", "row", "rule")
    rejected = pl.concat([none, *(result.rejected for result in checked.values())])
    rejected = rejected.with_columns(first_seen=time, resolved_at=never)
    resolved = open_rejections(lake).join(rejected, on=["table", "row_hash"], how="anti")
    if complete:
        added = pl.col("row").str.json_path_match("$.source").is_in(list(SUPPLEMENTS))
        resolved = resolved.filter(~added.fill_null(value=False))
    else:
        corrected = [resolved.clear()]
        for table, result in checked.items():  # a valid row arrived under the key of a rejected one
            texts = [pl.col("row").str.json_path_match(f"$.{c}").alias(c) for c in keys(table)]
            sound = result.valid.select(pl.col(c).cast(pl.String) for c in keys(table))
            of_table = resolved.filter(pl.col("table") == table).with_columns(texts)
            corrected.append(of_table.join(sound, on=keys(table), how="semi").select(resolved.columns))
        resolved = pl.concat(corrected)
    return pl.concat([rejected, resolved.with_columns(resolved_at=time)])


def open_rejections(lake: Lake) -> pl.DataFrame:
    """Return the rejected rows that are neither resolved nor released."""
    rows = lake.rows("quarantine", filters=pl.col("resolved_at").is_null())
    return rows.join(lake.rows("releases", _ROW), on=_ROW, how="anti", maintain_order="left")


def listing(lake: Lake, selection: Selection) -> pl.DataFrame:
    """List rejected, resolved and flagged rows by table, rule and key; ``what`` is the row or evidence."""
    accepted = lake.rows("releases", [*_ROW, "released_at"])
    json_of = pl.col("row").str.json_path_match
    rejected = lake.rows("quarantine").with_columns(
        state=pl.when(pl.col("resolved_at").is_null()).then(pl.lit("rejected")).otherwise(pl.lit("resolved")),
        ticker=json_of("$.ticker"),
        date=pl.coalesce(json_of(f"$.{c}") for c in _DATES),
        what="row",
        since="first_seen",
    )
    flags = lake.rows("flags")
    uncleared = flags.join(accepted, on=_ROW, how="anti").filter(~pl.col("cleared"))
    flagged = pl.concat([uncleared, flags.join(accepted, on=_ROW, how="semi")]).with_columns(
        state=pl.lit("flagged"), date=pl.col("date").cast(pl.String), what="evidence", since="flagged_at"
    )
    rows = pl.concat(part.select(p for p in _LISTED if p != "released_at") for part in (rejected, flagged))
    rows = rows.join(accepted, on=_ROW, how="left")
    given = {name: getattr(selection, name) for name in ("rule", "ticker", "table")}
    rows = rows.filter(**{name: value for name, value in given.items() if value is not None})
    rows = rows.filter(pl.col("row_hash").str.starts_with(selection.row or ""))
    return rows.select(_LISTED).sort("table", "rule", "ticker", "date", "row_hash")


def release(lake: Lake, selection: Selection) -> str:
    """Accept the selected rows despite the rule that they broke, also again; returns what was done."""
    if selection.rule is None and selection.ticker is None and selection.row is None:
        raise ConfigError("Select what to release with --rule RULE, --ticker TICKER or --row HASH.")
    matching = listing(lake, selection).filter(pl.col("released_at").is_null())
    chosen = matching.filter(pl.col("state") != "resolved")
    if chosen.is_empty():
        resolved = f": a later delivery resolved {_count(matching.height, 'row')}" if matching.height else ""
        raise DataError(
            f"Nothing to release matches {selection} in the lake {lake.root}{resolved}; see 'peerglass "
            "quarantine list'."
        )
    now = datetime.now(UTC)
    lines: list[str] = []
    refused: list[str] = []
    for (table,), rows in chosen.filter(pl.col("state") == "rejected").group_by("table", maintain_order=True):
        table_lines, table_refused = _store_rejected(lake, str(table), rows, now)
        lines += table_lines
        refused += table_refused
    flagged = chosen.filter(pl.col("state") == "flagged")
    if flagged.height:
        flags = lake.read("flags").join(flagged, on=["table", "row_hash", "rule"], how="semi")
        lake.upsert("flags", flags.with_columns(cleared=pl.lit(value=True)))
        _record_releases(lake, flagged, now)
        lines.append(f"{_count(flagged.height, 'flag')} on stored rows cleared")
    if not lines:
        raise DataError(
            f"Nothing can be released: no row that matches {selection} can be stored: "
            f"{abbreviate(refused, _NAMED)}."
        )
    if refused:
        one, many = "row stays in quarantine because it", "rows stay in quarantine because they"
        stay = one if len(refused) == 1 else many
        lines.append(f"{len(refused):,} {stay} cannot be stored: {abbreviate(refused, _NAMED)}")
    return "\n".join(lines)


def describe_listing(rows: pl.DataFrame, limit: int) -> str:
    """Count the rows by rule, and show the first ``limit`` of them."""
    if rows.is_empty():
        return "nothing is quarantined or flagged"
    state = pl.when(pl.col("released_at").is_null()).then("state").otherwise(pl.lit("released"))
    rows = rows.with_columns(state=state)
    counts = rows.group_by("state", "table", "rule").len().sort("state", "table", "len", "rule")
    lines = [f"{n:>10,} {state:<9} {table}  {rule}" for state, table, rule, n in counts.iter_rows()]
    lines.append("")
    for row in rows.head(limit).iter_rows(named=True):
        when, what = row["released_at"] or row["since"], row["what"]
        if what.startswith("{"):  # a rejected row and no evidence: without the values that are shown anyway
            values = {k: v for k, v in json.loads(what).items() if k not in ("date", "ticker", "source")}
            what = ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)
        lines.append(
            f"{row['row_hash'][:12]}  {row['state']:<9} {when:%Y-%m-%d %H:%M}  {row['table']}  "
            f"{row['ticker'] or '-'}  {row['date'] or '-'}  {row['rule']}: {what}"
        )
    if rows.height > limit:
        lines.append(f"... and {rows.height - limit:,} more; --limit {rows.height} shows all")
    return "\n".join(lines)


def _store_rejected(lake: Lake, table: str, rows: pl.DataFrame, now: datetime) -> tuple[list[str], list[str]]:
    """Store rejected rows and record their release; also return the rows that cannot be stored."""
    frame = _read_rows(table, rows["what"].to_list(), now)
    checked = check(table, frame, released=rows["row_hash"].to_list())
    rejected = checked.rejected.select("row_hash", "rule")
    refused = [f"{row_hash[:12]} ({rule})" for row_hash, rule in rejected.iter_rows()]
    stored = rows.join(checked.rejected, on="row_hash", how="anti")
    if stored.is_empty():
        return [], refused
    counts = lake.upsert(table, checked.valid, released=stored["row_hash"].to_list())
    _record_releases(lake, stored, now)
    if table == "prices" and lake.exists("gaps"):
        gaps = lake.read("gaps").join(checked.valid, on=keys("gaps"), how="anti")
        lake.apply(lake.plan("gaps", gaps, scope=pl.lit(value=True)))
    line = (
        f"{_count(stored.height, 'row')} released into {table}: {counts.added:,} added, "
        f"{counts.updated:,} replaced, {counts.unchanged:,} already stored"
    )
    return [line], refused


def _read_rows(table: str, texts: list[str], now: datetime) -> pl.DataFrame:
    """Convert rows of the quarantine back into a batch of their table."""
    columns = schema(table).columns()
    rows = [json.loads(text) for text in texts]
    frame = pl.DataFrame(
        {name: [row.get(name) for row in rows] for name in columns if name not in STAMPS},
        schema_overrides={name: pl.String for name in columns if name not in STAMPS},
    )
    flags = [name for name, column in columns.items() if column.dtype == pl.Boolean]
    stamps = [pl.lit(now).alias(name) for name in columns if name in STAMPS]
    return frame.with_columns(*((pl.col(name) == "true").alias(name) for name in flags), *stamps)


def _record_releases(lake: Lake, rows: pl.DataFrame, now: datetime) -> None:
    once = rows.unique(_ROW, maintain_order=True)
    lake.upsert("releases", once.select(*_ROW, "rule", row="what", released_at=pl.lit(now)))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
