"""Draft a config for a user's price file: its source, and settings that fit its length and its firms."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import yaml

from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError
from pipelines.files import plain_name, write_text
from pipelines.ingest.guards import refuse_mostly_broken
from pipelines.ingest.inspector import describe_gaps, rejected_gaps
from pipelines.ingest.rules import DATE_RULES, add_neighbours, find_violations
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import Checked, check, quarantined
from pipelines.sources.files.opening import COMMAS
from pipelines.sources.files.reading import day
from pipelines.sources.files.recognise import PriceFile, recognise_prices
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig

_MIN_SESSIONS, _MIN_FIRMS = 160, 4
_DELAY = 1
_NOW = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)  # the contract asks for a time; no row is stored


@dataclass(frozen=True, slots=True)
class Draft:
    """A config as text, and what the prices of the file contain.

    ``rows`` satisfy the contract of prices, and ``rejected`` break the rules in ``broken``, or their date is
    no session. Medians: firms with a price on a session, and days between two sessions (1 for daily data).
    ``notes`` say what the reading of the file assumed, and ``hazards`` which problems the prices show.
    """

    sessions: int
    firms: int
    rows: int
    rejected: int
    broken: str
    notes: tuple[str, ...]
    median_firms: int
    step_days: int
    first: str
    last: str
    hazards: tuple[str, ...]
    text: str = ""


def draft_config(path: Path, folder: Path, date_format: str | None = None) -> Draft:
    """Look at a price file and write a config that runs on it."""
    file = recognise_prices(path, date_format)
    seen = _look(path, file)
    text = _write(path, folder, file, seen)
    check_config(yaml.safe_load(text), origin=f"draft for {path.name}")
    return replace(seen, text=text)


def write_draft(path: Path, target: Path, date_format: str | None = None, *, force: bool = False) -> Draft:
    """Write the config of :func:`draft_config` to ``target``; ``force`` overwrites an existing file."""
    if target.exists() and not force:
        raise ConfigError(
            f"{target} exists; choose another name with --config, or overwrite it with --force."
        )
    draft = draft_config(path, target.parent, date_format)
    write_text(target, draft.text)
    return draft


def _look(path: Path, file: PriceFile) -> Draft:
    """Read the prices as an ingest would, and count."""
    text = file.text or COMMAS
    source = FilesSourceConfig(
        kind="files",
        prices=str(path),
        layout=file.layout,
        vendor=file.vendor,
        columns=dict(file.columns),
        date_format=file.date_format,
        separator=text.separator,
        decimal=text.decimal,
        encoding=text.encoding,
    )
    fetched = FilesSource(source).fetch()
    prices = fetched.tables["prices"]
    stored = prices.with_columns(pl.lit("files").alias("source"), pl.lit(_NOW).alias("ingested_at"))
    checked = check("prices", stored)
    refuse_mostly_broken(str(path), "prices", checked)
    checked, gaps = _without_other_dates(checked)
    valid = checked.valid
    by_date = valid.group_by(day(valid).alias("date")).len().sort("date")
    step = by_date["date"].diff().dt.total_days().median()
    assert isinstance(step, float)
    seen = Draft(
        sessions=by_date.height,
        firms=valid["ticker"].n_unique(),
        rows=valid.height,
        rejected=checked.rejected.height,
        broken=checked.describe(),
        notes=fetched.notes[:-2],  # the last two are about tables that nobody gave
        median_firms=int(by_date["len"].median() or 0),  # type: ignore[arg-type]  # counts are numbers
        step_days=int(step),
        first=str(by_date["date"][0]),
        last=str(by_date["date"][-1]),
        hazards=(*fetched.hazards, *describe_gaps(gaps, valid)),
    )
    tickers = valid["ticker"].unique().sort().head(_MIN_FIRMS)
    if seen.sessions < _MIN_SESSIONS:
        raise DataError(
            f"{path} has {seen.sessions} sessions; a walk-forward needs at least {_MIN_SESSIONS}: use a "
            "longer history"
        )
    if seen.median_firms < _MIN_FIRMS:
        raise DataError(
            f"{path} has {seen.median_firms} firms on a typical session ({', '.join(tickers)}); a "
            f"cross-section needs at least {_MIN_FIRMS}: use a file with more firms"
        )
    return seen


def _without_other_dates(checked: Checked) -> tuple[Checked, pl.DataFrame]:
    """Reject rows whose date is no session, as an ingest would, and return the gaps as well."""
    key = ["date", "ticker"]
    broken = find_violations(add_neighbours(checked.valid, None, None), DATE_RULES).unique(key)
    out = checked.valid.join(broken.select(*key, "rule"), on=key)
    valid = checked.valid.join(broken, on=key, how="anti")
    gaps = rejected_gaps(valid, checked.rejected, None, QualityConfig())
    rejected = pl.concat([checked.rejected, quarantined("prices", out, pl.col("rule"))])
    return Checked(valid, rejected, checked.collapsed), gaps


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Numbers of sessions that fit a history."""

    min_history: int
    window: int
    horizon: int
    embargo: int
    train: int
    valid: int
    test: int

    @property
    def folds(self) -> str:
        return f"train: {self.train}, valid: {self.valid}, test: {self.test}, embargo: {self.embargo}"


def _lengths(seen: Draft) -> _Lengths:
    """Half of the history trains the first fold, an eighth validates, the rest is tested in up to 5 folds."""
    daily, sessions = seen.step_days <= 3, seen.sessions
    horizon = 5 if daily and sessions >= 500 else 1
    min_history = min(60, sessions // 8)
    usable = sessions - min_history
    gap = _DELAY + 2 * horizon
    train, valid = usable // 2, max(usable // 8, 20)
    tested = usable - train - valid - 2 * gap - _DELAY - horizon
    folds = min(5, max(1, tested // 100))
    return _Lengths(
        min_history=min_history,
        window=20 if sessions >= 400 else 5,
        horizon=horizon,
        embargo=horizon,
        train=train,
        valid=valid,
        test=tested // folds,
    )


def _write(path: Path, folder: Path, file: PriceFile, seen: Draft) -> str:
    lengths, name = _lengths(seen), _name(path)
    firms = seen.median_firms
    quantiles = 10 if firms >= 200 else 5 if firms >= 25 else max(2, firms // 3)
    attention = firms >= 8 and seen.sessions >= 400
    kind = "daily" if seen.step_days <= 3 else f"one every {seen.step_days} days"
    rejected = f"; {seen.rejected:,} rows cannot be used and will be quarantined"
    lines = [
        f"# Written by 'peerglass init' for {path.name}: {seen.rows:,} prices of {seen.firms:,} firms,",
        f"# {seen.sessions:,} sessions ({kind}) from {seen.first} to {seen.last}"
        f"{rejected if seen.rejected else ''}.",
        "# Read it, check it with 'peerglass validate', and start it with 'peerglass run'.",
        f"name: {name}",
        "source:",
        *(f"  {line}" for line in _source(path, folder, file)),
        *_hazards(seen),
        f"lake: data/lake/{name}",
        "",
        "# Firms that may be forecast at t, decided with what is known at t. For your own rules, see",
        "# min_price, min_dollar_volume and membership in the config reference.",
        f"universe: {{min_history: {lengths.min_history}}}",
        f"features: {{window: {lengths.window}}}",
        "",
        f"# A forecast at the close of t is traded at the close of t+{_DELAY} and held for "
        f"{lengths.horizon} session{'' if lengths.horizon == 1 else 's'}.",
        f"label: {{horizon: {lengths.horizon}, delay: {_DELAY}, transform: rank}}",
        "",
        "# Walk-forward, in sessions. Label spans are purged between the segments automatically; the embargo",
        "# is added to that.",
        f"folds: {{scheme: expanding, {lengths.folds}}}",
        "",
        "# Baselines first: a model that does not beat ridge and lightgbm net of costs is not worth using.",
        "fit: {epochs: 8, patience: 3, dates_per_epoch: 400}",
        "models:",
        "  ridge: {}",
        "  lightgbm: {}",
        *(["  self_peer: {}  # attention over peer firms"] if attention else []),
        "",
        "# Costs are assumptions: set your own. Books trade net of them.",
        "backtest:",
        "  books:",
        f"    long_short: {{kind: quantile_long_short, quantiles: {quantiles}, "
        f"rebalance_every: {lengths.horizon}}}",
        f"    long_only: {{kind: top_k_long_only, k: {min(firms, max(3, firms // 10))}, "
        f"rebalance_every: {lengths.horizon}}}",
        "  costs: {half_spread_bps: 5, commission_bps: 0.5, borrow_bps_per_year: 50}",
        "",
    ]
    return "\n".join(lines)


def _source(path: Path, folder: Path, file: PriceFile) -> list[str]:
    """Lines of the section source."""
    whole, base = path.expanduser().absolute(), folder.absolute()
    inside = whole.is_relative_to(base)
    values: dict[str, object] = {"kind": "files", "prices": str(whole.relative_to(base) if inside else whole)}
    if file.layout != "long":
        values["layout"] = file.layout
    if file.vendor is not None:
        values["vendor"] = file.vendor
    if file.text is not None:
        given = {key: getattr(file.text, key) for key in ("separator", "decimal", "encoding")}
        values |= {key: value for key, value in given.items() if value != getattr(COMMAS, key)}
    if file.date_format is not None:
        values["date_format"] = file.date_format
    if file.columns:
        values["columns"] = dict(file.columns)
    lines = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000).splitlines()
    if file.unused:
        unused = ", ".join(" ".join(name.split()) for name in file.unused[:12])
        lines.append(f"# not used as prices: {unused}{' and more' if len(file.unused) > 12 else ''}")
    if "dividend" not in file.columns and file.vendor is None and file.layout != "wide":
        lines.append(
            "# Returns include splits and dividends only if the columns split_ratio and dividend are there,"
        )
        lines.append("# or if the prices are adjusted for them.")
    return lines


def _hazards(seen: Draft) -> list[str]:
    if not seen.hazards:
        return []
    return ["  # What the prices show (every report repeats it):", *(f"  # - {one}" for one in seen.hazards)]


def _name(path: Path) -> str:
    """A config's name from a file's name."""
    stem = re.sub(r"\.(csv|parquet|pq|gz)", "", path.name.lower())
    name = plain_name(stem)
    return (name if name[:1].isalpha() else f"data_{name}")[:41].rstrip("_")
