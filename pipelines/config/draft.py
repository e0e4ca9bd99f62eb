"""Draft a config for a user's price file: its source, and settings that fit its length and its firms."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

import polars as pl
import yaml

from pipelines.config.load import check_config
from pipelines.errors import ConfigError, DataError
from pipelines.files import plain_name, write_text
from pipelines.ingest.ingest import refuse_mostly_broken
from pipelines.ingest.rules import add_neighbours, describe_gaps, find_violations, rejected_gaps
from pipelines.ingest.settings import QualityConfig
from pipelines.lake.contracts import Checked, check, quarantined
from pipelines.lake.gaps import DATE_RULES
from pipelines.sources.files.reading import day
from pipelines.sources.files.recognise import recognise_prices
from pipelines.sources.files.source import FilesSource
from pipelines.sources.settings import FilesSourceConfig

_MIN_SESSIONS, _MIN_FIRMS = 160, 4
_DELAY = 1
_NOW = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)  # the contract asks for a time; no row is stored
_TEMPLATE = Path(__file__).with_name("draft_template.yaml")
_ATTENTION = """
  temporal_peer: {}  # attention over days, then over peer firms
  ensemble: {}  # the mean of lightgbm, gru and both attention models"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A config as text, and what the prices of the file contain: rows that are valid and rejected ones."""

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
    source, unused = recognise_prices(path, date_format)
    seen = _look(path, source)
    values = {
        "file": path.name,
        "source": _source(path, folder, source, unused, seen),
        **_fitting(path, seen),
    }
    text = Template(_TEMPLATE.read_text("utf-8")).substitute(values)
    check_config(yaml.safe_load(text), origin=f"draft for {path.name}", models=False)  # of our template
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


def _look(path: Path, source: FilesSourceConfig) -> Draft:
    """Read the prices as an ingest would, and count."""
    fetched = FilesSource(source).fetch()
    prices = fetched.tables["prices"]
    stored = prices.with_columns(pl.lit("files").alias("source"), pl.lit(_NOW).alias("ingested_at"))
    checked = check("prices", stored)
    refuse_mostly_broken(str(path), "prices", checked)
    # as an ingest would, reject rows whose date is no session
    key = ["date", "ticker"]
    broken = find_violations(add_neighbours(checked.valid, None, None), DATE_RULES).unique(key)
    out = checked.valid.join(broken.select(*key, "rule"), on=key)
    valid = checked.valid.join(broken, on=key, how="anti")
    gaps = rejected_gaps(valid, checked.rejected, None, QualityConfig())
    rejected = pl.concat([checked.rejected, quarantined("prices", out, pl.col("rule"))])
    by_date = valid.group_by(day(valid).alias("date")).len().sort("date")
    step = by_date["date"].diff().dt.total_days().median()
    assert isinstance(step, float)
    seen = Draft(
        sessions=by_date.height,
        firms=valid["ticker"].n_unique(),
        rows=valid.height,
        rejected=rejected.height,
        broken=Checked(valid, rejected, checked.collapsed).describe(),
        notes=fetched.notes[:-2],  # the last two are about tables that nobody gave
        median_firms=int(by_date["len"].median() or 0),  # type: ignore[arg-type]  # counts are numbers
        step_days=int(step),
        first=str(by_date["date"][0]),
        last=str(by_date["date"][-1]),
        hazards=(*fetched.hazards, *describe_gaps(gaps, valid)),
    )
    if seen.sessions < _MIN_SESSIONS:
        raise DataError(
            f"{path} has {seen.sessions} sessions; a walk-forward needs at least {_MIN_SESSIONS}: use a "
            "longer history"
        )
    if seen.median_firms < _MIN_FIRMS:
        tickers = ", ".join(valid["ticker"].unique().sort().head(_MIN_FIRMS))
        raise DataError(
            f"{path} has {seen.median_firms} firms on a typical session ({tickers}); a "
            f"cross-section needs at least {_MIN_FIRMS}: use a file with more firms"
        )
    return seen


def _fitting(path: Path, seen: Draft) -> Mapping[str, object]:
    """Settings that fit a history: half of it trains, an eighth validates, the rest tests in 5 folds."""
    daily, sessions, firms = seen.step_days <= 3, seen.sessions, seen.median_firms
    stem = plain_name(re.sub(r"\.(csv|parquet|pq|gz)", "", path.name.lower()))
    horizon = 5 if daily and sessions >= 500 else 1
    min_history = min(60, sessions // 8)
    usable = sessions - min_history
    train, valid = usable // 2, max(usable // 8, 20)
    tested = usable - train - valid - 2 * (_DELAY + 2 * horizon) - _DELAY - horizon
    attention = firms >= 8 and sessions >= 400
    rejected = f"; {seen.rejected:,} rows cannot be used and will be quarantined"
    return {
        **{"rows": f"{seen.rows:,}", "firms": f"{seen.firms:,}", "sessions": f"{sessions:,}"},
        **{"first": seen.first, "last": seen.last, "rejected": rejected if seen.rejected else ""},
        "kind": "daily" if daily else f"one every {seen.step_days} days",
        "name": (stem if stem[:1].isalpha() else f"data_{stem}")[:41].rstrip("_"),
        "min_history": min_history,
        "window": 20 if sessions >= 400 else 5,
        "horizon": horizon,
        "held": f"{horizon} session{'' if horizon == 1 else 's'}",
        "train": train,
        "valid": valid,
        "test": tested // min(5, max(1, tested // 100)),
        "attention": _ATTENTION if attention else "",
        **book_sizes(firms),
    }


def book_sizes(firms: int) -> Mapping[str, int]:
    """Sizes of the usual books that fit a number of firms: ``quantiles``, and ``k`` firms that are held."""
    quantiles = 10 if firms >= 200 else 5 if firms >= 25 else max(2, firms // 3)
    return {"quantiles": quantiles, "k": min(firms, max(3, firms // 10))}


def _source(path: Path, folder: Path, source: FilesSourceConfig, unused: Sequence[str], seen: Draft) -> str:
    """Lines of the section source."""
    whole, base = path.expanduser().absolute(), folder.absolute()
    inside = whole.is_relative_to(base)
    values = source.model_dump(mode="json", exclude_defaults=True)
    values["prices"] = str(whole.relative_to(base) if inside else whole)
    lines = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000).splitlines()
    if unused:
        named = ", ".join(" ".join(name.split()) for name in unused[:12])
        lines.append(f"# not used as prices: {named}{' and more' if len(unused) > 12 else ''}")
    if "dividend" not in source.columns and source.vendor is None and source.layout != "wide":
        lines += [
            "# Returns include splits and dividends only if the columns split_ratio and dividend are there,",
            "# or if the prices are adjusted for them.",
        ]
    if seen.hazards:
        lines += [
            "# What the prices show (every report repeats it):",
            *(f"# - {one}" for one in seen.hazards),
        ]
    return "\n".join(f"  {line}" for line in lines)
