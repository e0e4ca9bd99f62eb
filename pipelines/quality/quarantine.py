"""What was kept out or doubted: look at it, and accept it in spite of the rule.

A rejected row is ``resolved`` once a later delivery mends it: a sound row came under its key, or a source
that delivers its whole scope has it no more. It can then not be released any more, so that a release never
replaces a correction. If it is delivered again as it was, it is rejected again.

A released row goes to its table as it was delivered, and no rule judges it again until a value of it changes:
``releases`` remembers its hash and when that was decided. Types, missing values, numbers that are not finite,
plain names and the uniqueness of a key cannot be waived: such a row cannot be stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.lake.contracts import Checked, check
from pipelines.lake.lake import Lake
from pipelines.lake.pipeline_tables import Quarantine
from pipelines.lake.schemas import STAMPS, SUPPLEMENTS, keys, schema

_LISTED: Final = ("state", "table", "ticker", "date", "rule", "what", "row_hash", "since", "released_at")
_DATES: Final = {"fundamentals": "period_end", "securities": "valid_from", "membership": "from_date"}
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are meant; every part that is given must fit. A row hash may be given by its beginning."""

    rule: str | None = None
    ticker: str | None = None
    table: str | None = None
    row: str | None = None

    def __str__(self) -> str:
        given = [("table", self.table), ("rule", self.rule), ("ticker", self.ticker), ("row", self.row)]
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)


def released_hashes(lake: Lake) -> dict[str, frozenset[str]]:
    """Return the hashes of accepted rows by table."""
    if not lake.exists("releases"):
        return {}
    rows = lake.read("releases", columns=["table", "row_hash"])
    return {str(table): frozenset(part["row_hash"]) for (table,), part in rows.group_by("table")}


def after_delivery(lake: Lake, checked: Mapping[str, Checked], now: datetime, *, whole: bool) -> pl.DataFrame:
    """Return the rows of the quarantine that a delivery adds or resolves.

    Parameters
    ----------
    lake
        Whose quarantine it is.
    checked
        The delivery, table by table.
    now
        When it was checked.
    whole
        Whether it is all that its source has, so that what it lacks is resolved as well.
    """
    time = pl.lit(now).cast(pl.Datetime("us", "UTC"))
    never = pl.lit(None, dtype=pl.Datetime("us", "UTC"))
    rejected = pl.concat(
        [Quarantine.create_empty().select("table", "row_hash", "row", "rule")]
        + [result.rejected for result in checked.values()]
    )
    rejected = rejected.with_columns(first_seen=time, resolved_at=never)
    former = open_rejections(lake)
    if former is None:
        return rejected
    gone = former.join(rejected, on=["table", "row_hash"], how="anti")
    if whole:
        added = pl.col("row").str.json_path_match("$.source").is_in(list(SUPPLEMENTS))
        gone = gone.filter(~added.fill_null(value=False))
    else:
        gone = pl.concat(
            [gone.clear(), *(_mended(gone, table, result.valid) for table, result in checked.items())]
        )
    return pl.concat([rejected, gone.with_columns(resolved_at=time)])


def open_rejections(lake: Lake) -> pl.DataFrame | None:
    """Return the rejected rows that were neither resolved nor released; None if nothing ever was rejected."""
    if not lake.exists("quarantine"):
        return None
    rows = lake.read("quarantine", filters=pl.col("resolved_at").is_null())
    if not lake.exists("releases"):
        return rows
    return rows.join(
        lake.read("releases", columns=["table", "row_hash"]), on=["table", "row_hash"], how="anti"
    )


def _mended(rejected: pl.DataFrame, table: str, valid: pl.DataFrame) -> pl.DataFrame:
    """Select the rejected rows of a table under whose key a sound row came."""
    key = keys(table)
    texts = [pl.col("row").str.json_path_match(f"$.{c}").alias(c) for c in key]
    sound = valid.select(pl.col(c).cast(pl.String) for c in key)
    ours = rejected.filter(pl.col("table") == table)
    return ours.with_columns(texts).join(sound, on=key, how="semi").select(rejected.columns)


def listing(lake: Lake, selection: Selection) -> pl.DataFrame:
    """List what was kept out (``rejected``, or ``resolved``) and what is stored and doubted (``flagged``).

    Returns
    -------
    DataFrame
        state, table, ticker, date, rule, what (the rejected row as JSON, or the evidence of a doubt),
        row_hash, since, released_at (null unless a user accepted it), by table, rule, ticker and date.

    Raises
    ------
    DataError
        If the lake holds something that is not a Delta table.
    """
    parts = [_rejected(lake), _flagged(lake)]
    rows = pl.concat([part.select(p for p in _LISTED if p != "released_at") for part in parts])
    if lake.exists("releases"):
        accepted = lake.read("releases", columns=["table", "row_hash", "released_at"])
        rows = rows.join(accepted, on=["table", "row_hash"], how="left")
    else:
        rows = rows.with_columns(released_at=pl.lit(None, dtype=pl.Datetime("us", "UTC")))
    for column, wanted in (
        ("rule", selection.rule),
        ("ticker", selection.ticker),
        ("table", selection.table),
    ):
        if wanted is not None:
            rows = rows.filter(pl.col(column) == wanted)
    if selection.row is not None:
        rows = rows.filter(pl.col("row_hash").str.starts_with(selection.row))
    return rows.select(_LISTED).sort("table", "rule", "ticker", "date", "row_hash")


def release(lake: Lake, selection: Selection) -> str:
    """Accept the selected rows in spite of the rule they broke; the answer says what became of them.

    Rejected rows are put into their table, in place of a stored row of the same key; doubts about stored rows
    are cleared. Safe to repeat after a kill.

    Raises
    ------
    ConfigError
        If no rule, ticker or row is named.
    DataError
        If nothing fits the selection, or none of the rejected rows can be stored.
    """
    if selection.rule is None and selection.ticker is None and selection.row is None:
        raise ConfigError("Name what to release: --rule RULE, --ticker TICKER, or --row HASH.")
    fitting = listing(lake, selection).filter(pl.col("released_at").is_null())
    chosen = fitting.filter(pl.col("state") != "resolved")
    if chosen.is_empty():
        if fitting.height:
            raise DataError(
                f"Nothing to release fits {selection} in the lake {lake.root}: a later delivery resolved "
                f"{_count(fitting.height, 'row')}; see 'peerglass quarantine list'."
            )
        raise DataError(
            f"Nothing to release fits {selection} in the lake {lake.root}; see 'peerglass quarantine list'."
        )
    now = datetime.now(UTC)
    lines: list[str] = []
    refused: list[str] = []
    for (table,), rows in chosen.filter(pl.col("state") == "rejected").group_by("table", maintain_order=True):
        told, stays = _store(lake, str(table), rows, now)
        lines += told
        refused += stays
    doubted = chosen.filter(pl.col("state") == "flagged")
    if doubted.height:
        _clear(lake, doubted, now)
        lines.append(f"{_count(doubted.height, 'doubt')} about stored rows cleared")
    if not lines:
        raise DataError(
            f"Nothing can be released: no row that fits {selection} can be stored, {_some(refused)}."
        )
    if refused:
        stay = "row stays in quarantine, it" if len(refused) == 1 else "rows stay in quarantine, they"
        lines.append(f"{len(refused):,} {stay} cannot be stored: {_some(refused)}")
    return "\n".join(lines)


def describe_listing(rows: pl.DataFrame, limit: int) -> str:
    """Say how many rows there are by rule, and show the first ``limit`` of them."""
    if rows.is_empty():
        return "nothing is quarantined or flagged"
    state = pl.when(pl.col("released_at").is_null()).then("state").otherwise(pl.lit("released"))
    rows = rows.with_columns(state=state)
    counts = rows.group_by("state", "table", "rule").len().sort("state", "table", "len", "rule")
    lines = [f"{n:>10,} {state:<9} {table}  {rule}" for state, table, rule, n in counts.iter_rows()]
    lines.append("")
    for row in rows.head(limit).iter_rows(named=True):
        when = row["released_at"] or row["since"]
        lines.append(
            f"{row['row_hash'][:12]}  {row['state']:<9} {when:%Y-%m-%d %H:%M}  {row['table']}  "
            f"{row['ticker'] or '-'}  {row['date'] or '-'}  {row['rule']}: {_shown(row['what'])}"
        )
    if rows.height > limit:
        lines.append(f"... and {rows.height - limit:,} more; --limit {rows.height} shows all")
    return "\n".join(lines)


def _shown(what: str) -> str:
    """Evidence as it is; a rejected row without what the line says already."""
    if not what.startswith("{"):
        return what
    values = {k: v for k, v in json.loads(what).items() if v is not None}
    return ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("date", "ticker", "source"))


def _rejected(lake: Lake) -> pl.DataFrame:
    if not lake.exists("quarantine"):
        return _empty()
    rows = lake.read("quarantine")
    date = pl.coalesce(pl.col("row").str.json_path_match(f"$.{c}") for c in ("date", *_DATES.values()))
    return rows.with_columns(
        state=pl.when(pl.col("resolved_at").is_null()).then(pl.lit("rejected")).otherwise(pl.lit("resolved")),
        ticker=pl.col("row").str.json_path_match("$.ticker"),
        date=date,
        what=pl.col("row"),
        since=pl.col("first_seen"),
    )


def _flagged(lake: Lake) -> pl.DataFrame:
    if not lake.exists("flags"):
        return _empty()
    rows = lake.read("flags")
    if lake.exists("releases"):
        accepted = lake.read("releases", columns=["table", "row_hash"])
        released = rows.join(accepted, on=["table", "row_hash"], how="semi")
        rows = pl.concat(
            [rows.join(accepted, on=["table", "row_hash"], how="anti").filter(~pl.col("cleared")), released]
        )
    else:
        rows = rows.filter(~pl.col("cleared"))
    return rows.with_columns(
        state=pl.lit("flagged"),
        date=pl.col("date").cast(pl.String),
        what=pl.col("evidence"),
        since=pl.col("flagged_at"),
    )


def _empty() -> pl.DataFrame:
    text = dict.fromkeys(_LISTED[:7], pl.String)
    return pl.DataFrame(schema={**text, "since": pl.Datetime("us", "UTC")})


def _store(lake: Lake, table: str, rows: pl.DataFrame, now: datetime) -> tuple[list[str], list[str]]:
    """Put rejected rows into their table and remember them; also return why some cannot be stored."""
    frame = _read_rows(table, rows["what"].to_list(), now)
    checked = check(table, frame, released=rows["row_hash"].to_list())
    refused = [
        f"{hash_[:12]} ({rule})" for hash_, rule in checked.rejected.select("row_hash", "rule").iter_rows()
    ]
    stored = rows.join(checked.rejected, on="row_hash", how="anti")
    if stored.is_empty():
        return [], refused
    counts = lake.upsert(table, checked.valid, released=stored["row_hash"].to_list())
    _remember(lake, stored, now)
    told = (
        f"{_count(stored.height, 'row')} released into {table}: {counts.added:,} added, "
        f"{counts.updated:,} in place of stored ones, {counts.unchanged:,} there already"
    )
    return [told], refused


def _read_rows(table: str, texts: list[str], now: datetime) -> pl.DataFrame:
    """Turn rows of the quarantine back into a batch of their table."""
    columns = schema(table).columns()
    rows = [json.loads(text) for text in texts]
    frame = pl.DataFrame(
        {name: [row.get(name) for row in rows] for name in columns if name not in STAMPS},
        schema_overrides={name: pl.String for name in columns if name not in STAMPS},
    )
    flags = [name for name, column in columns.items() if column.dtype == pl.Boolean]
    stamps = [pl.lit(now).cast(pl.Datetime("us", "UTC")).alias(name) for name in columns if name in STAMPS]
    return frame.with_columns(*((pl.col(name) == "true").alias(name) for name in flags), *stamps)


def _clear(lake: Lake, doubted: pl.DataFrame, now: datetime) -> None:
    key = ["table", "row_hash", "rule"]
    flags = lake.read("flags").join(doubted, on=key, how="semi")
    lake.upsert("flags", flags.with_columns(cleared=pl.lit(value=True)))
    _remember(lake, doubted, now)


def _remember(lake: Lake, rows: pl.DataFrame, now: datetime) -> None:
    lake.upsert(
        "releases",
        rows.unique(["table", "row_hash"], maintain_order=True).select(
            "table",
            "row_hash",
            pl.col("what").alias("row"),
            "rule",
            pl.lit(now).cast(pl.Datetime("us", "UTC")).alias("released_at"),
        ),
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _NAMED:,} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more
