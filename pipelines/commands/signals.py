"""``peerglass signals CONFIG|RUN``: score a session with a stored model, and say how it was made."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.files import write_table
from pipelines.format import Kind, abbreviate
from pipelines.lake.corrections import corrections
from pipelines.lake.lake import Lake
from pipelines.lake.schemas import forget_later, rows_known
from pipelines.nightly.data import NightData, night_data
from pipelines.nightly.result import ModelVersion, read_nights, read_revision, write_signals
from pipelines.nightly.scoring import attribute, ends, score
from pipelines.nightly.versions import champion, open_version
from pipelines.progress import Progress
from pipelines.run.record import RecordedRun, list_records, open_run
from pipelines.run.warm_start import read_seen_sessions
from pipelines.terminal import text_table

_SHARE = Kind(3)
_SIGNAL = _SHARE.with_sign
_SHOWN_COLUMNS = ("ticker", "signal", "rank", "seed_dispersion")
_ENDS = 5  # number of firms shown at the top and at the bottom


@dataclass(frozen=True, slots=True)
class SignalsOptions:
    """Options of ``peerglass signals``; without a model or version, the champion's or the only one."""

    session: dt.date | None
    model: str | None
    version: str | None
    out: Path | None
    output: Path
    explain: int | None = None


def make_signals(
    target: str, overrides: list[str], options: SignalsOptions, echo: Callable[[str], None]
) -> None:
    """Score a session that a stored model has not seen, add the signals to the lake, and print a summary."""
    if options.out is not None and options.out.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"Signals cannot be written to {options.out}: its suffix must be one of {', '.join(SUFFIXES)}."
        )
    if options.explain is not None and options.explain < 1:
        raise ConfigError(f"--explain is {options.explain}; it must be at least 1.")
    progress = Progress()
    if Path(target).is_file() and Path(target).suffix.lower() in (".yaml", ".yml"):
        config = load_config(Path(target), overrides)
        lake = open_lake(config, progress.note)
        version = _version_of_config(config, lake, options)
        run = open_version(version, Path(config.output))
    else:
        if overrides:
            raise ConfigError("--set needs a CONFIG: a RUN has fixed settings.")
        run = open_run(target, options.output)
        config = run.config.model_copy(update={"output": str(run.folder.parent)})
        lake = open_lake(config, progress.note)
        version = _version_of_run(run, options)
    fold, trained = _newest_fold(run)
    data = night_data(config, lake, options.session, progress)
    if data.session < trained:
        raise ConfigError(
            f"{version} has seen data up to {trained}, so it cannot score {data.session}; choose a later "
            "session, or an earlier version with --version."
        )
    with progress.stage("score"):
        frame = score(version, config, data, fold)
    revision = write_signals(lake, frame)
    rows = read_revision(lake, config.name, data.session, version, revision)
    echo(describe_signals(rows, data, run, trained))
    if options.explain is not None:
        with progress.stage("explain"):
            names = ends(rows, version, options.explain)
            echo(describe_reasons(attribute(version, config, data, names, fold)))
    if revision > 1:
        first = read_revision(lake, config.name, data.session, version, 1)
        echo(explain_differences(lake, first, rows).describe())
    if options.out is None:
        echo(f"Revision {revision} in the table signals of {lake.root}; --out FILE writes a file as well.")
    else:
        written = rows.select(COLUMNS)
        if options.out.suffix.lower() != ".parquet":
            written = written.with_columns(pl.col("created_at").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
        echo(f"Revision {revision}: {write_table(options.out, written).resolve()}")


def _version_of_config(config: Config, lake: Lake, options: SignalsOptions) -> ModelVersion:
    """The version asked for, that of the session's night, the champion, or the config's newest live run."""
    if options.version is not None:
        try:
            asked = ModelVersion.parse(options.version)
        except ValueError as error:
            raise ConfigError(f"--version: {error}.") from None
        if options.model not in (None, asked.model):
            raise ConfigError(f"--version {asked} names a model of its own; leave out --model.")
        return asked
    best = champion(lake, config.name)
    if options.session is not None:
        nights = read_nights(lake, config.name).filter(pl.col("session") == options.session)
        used = nights["version"].drop_nulls()
        best = ModelVersion.parse(used[0]) if used.len() else best
    if best is not None and options.model in (None, best.model):
        return best
    for folder, record in list_records(Path(config.output)):
        settings = record["identity"]["settings"]
        of_config = str(record["run_id"]).rpartition("-")[0] == config.name
        models = [name for name in settings["models"] if options.model in (None, name)]
        if of_config and settings["folds"]["scheme"] == "live" and models and (folder / "scores").is_dir():
            return ModelVersion(str(record["run_id"]), models[0])
    of_model = "" if options.model is None else f" of the model {options.model!r}"
    raise DataError(
        f"{config.name} has no trained version{of_model} in {Path(config.output).absolute()}; run "
        "'peerglass nightly' on the config, or train it with folds: {scheme: live, ...}."
    )


def _version_of_run(run: RecordedRun, options: SignalsOptions) -> ModelVersion:
    if options.version is not None:
        raise ConfigError("--version needs a CONFIG: a RUN is a version already; --model names its model.")
    models = list(run.config.models)
    if options.model is None and len(models) > 1:
        raise ConfigError(f"Run {run.run_id} has the models {', '.join(models)}; choose one with --model.")
    model = options.model or models[0]
    if model not in models:
        raise ConfigError(f"Run {run.run_id} has no model {model!r}, only {', '.join(models)}.")
    return ModelVersion(run.run_id, model)


def _newest_fold(run: RecordedRun) -> tuple[int, dt.date]:
    """Return the fold of a run that was trained last, and the last session whose data it has seen."""
    if run.config.folds.scheme == "combinatorial":
        raise ConfigError(
            f"Run {run.run_id} has combinatorial folds, which train on sessions after their tests; use a run "
            "with walk-forward or live folds."
        )
    newest = max(read_seen_sessions(run), key=lambda seen: seen.seen_to)
    return newest.fold, run.config.through or newest.seen_to


def describe_signals(rows: pl.DataFrame, data: NightData, run: RecordedRun, trained: dt.date) -> str:
    """Summarise the signals of a session: the ends of the ranking, coverage, and the age of the training."""
    version = rows["version"][0]
    inside = rows.filter(pl.col("in_universe"))
    age = int((data.market.panel.dates_T > np.datetime64(trained)).sum())
    kind = "" if run.config.folds.scheme == "live" else " (a walk-forward run, whose tests are older)"
    lines = [
        f"{rows['config'][0]}, signals at the close of {data.session}, by {version}{kind}",
        f"trained on data up to {trained}, {age:,} session{'' if age == 1 else 's'} ago; seeds "
        f"{', '.join(map(str, run.config.seeds))}",
        f"{inside.height:,} of {rows.height:,} listed firms are in the universe; data versions "
        + ", ".join(f"{table} {one}" for table, one in json.loads(rows["data_versions"][0]).items()),
    ]
    if inside.is_empty():
        return "\n".join([*lines, "No firm is forecast on this session."])
    ranked = inside.sort(["signal", "ticker"], descending=[True, False])
    shown = ranked if ranked.height <= 2 * _ENDS else pl.concat([ranked.head(_ENDS), ranked.tail(_ENDS)])
    cells = [
        (ticker, _SIGNAL.text(signal), _SHARE.text(rank), _SHARE.text(dispersion, ""))
        for ticker, signal, rank, dispersion in shown.select(_SHOWN_COLUMNS).iter_rows()
    ]
    if ranked.height > 2 * _ENDS:
        cells.insert(_ENDS, ("...", "", "", ""))
    return "\n".join([*lines, "", *text_table(cells, ("ticker", "signal", "rank", "dispersion")), ""])


_REASONS = 3  # values shown of a name


def describe_reasons(attributions: pl.DataFrame) -> str:
    """Show the largest values of each name, the highest signal first."""
    if attributions.is_empty():
        return "No firm has a signal to explain."
    names = attributions.select("ticker", "signal").unique(maintain_order=True)
    lines = ["why, in the unit of the signal, with the Monte Carlo standard error of each value:"]
    for ticker in names.sort("signal", "ticker", descending=[True, False])["ticker"]:
        own = attributions.filter(pl.col("ticker") == ticker)
        lines.append(f"  {ticker:<12}{own['signal'][0]:>+9.3f} = {own['base'][0]:+.3f} without any player")
        ordered = own.sort(pl.col("value").abs(), descending=True, maintain_order=True)
        shown, rest = ordered.head(_REASONS), ordered.slice(_REASONS)["value"]
        lines += [
            f"    {player:<22}{value:>+9.3f}   (error {error:.3f})"
            for player, value, error in shown.select("player", "value", "error").iter_rows()
        ]
        if rest.len():
            lines.append(f"    {f'{rest.len()} others':<22}{rest.sum():>+9.3f}")
    return "\n".join([*lines, ""])


COLUMNS: Final = (  # of a file, in order; new ones are only ever added at the end
    *("config", "session", "ticker", "signal", "rank", "in_universe", "seed_dispersion"),
    *("version", "revision", "data_versions", "created_at"),
)
SUFFIXES: Final = (".csv", ".parquet", ".json")
_COMPARED: Final = ("prices", "inputs", "fundamentals", "membership", "renames", "securities")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Differences of two revisions of a session's signals: firms, and corrections of the data."""

    earlier: int
    later: int
    firms: pl.DataFrame
    corrections: pl.DataFrame

    def describe(self) -> str:
        """Say in one or two sentences how many firms differ and which corrections there were."""
        head = f"Revision {self.later} equals revision {self.earlier} for every firm."
        if count := self.firms.height:
            plural = "" if count == 1 else "s"
            head = f"Revision {self.later} differs from revision {self.earlier} for {count:,} firm{plural}."
        if self.corrections.is_empty():
            return f"{head} No row known at the session was corrected."
        by_firm = self.corrections.group_by("table", "ticker", "change", maintain_order=True).agg("day")
        changes = [
            f"{table} of {ticker} {_VERBS[change]} {days[0]}"
            + (f" and {len(days) - 1} more days" if len(days) > 1 else "")
            for table, ticker, change, days in by_firm.iter_rows()
        ]
        return f"{head} Since then: {abbreviate(changes, _SHOWN, '; ')}."


_VERBS: Final = {
    "corrected": "were corrected on",
    "added": "were added for",
    "withdrawn": "were withdrawn for",
}


def explain_differences(lake: Lake, earlier: pl.DataFrame, later: pl.DataFrame) -> Differences:
    """Compare two revisions of the signals of one session and version, and the data of both."""
    identity = ["config", "session", "version"]
    if not earlier.select(identity).unique().equals(later.select(identity).unique()):
        raise ValueError("two revisions of one session and version are compared; these are of different ones")
    values = ["signal", "rank", "in_universe"]
    both = earlier.select("ticker", *values).join(
        later.select("ticker", *values), on="ticker", how="full", coalesce=True, suffix="_after"
    )
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_after")) for name in values)
    firms = both.filter(~same).select("ticker", before="signal", after="signal_after").sort("ticker")
    before, after = (json.loads(frame["data_versions"][0]) for frame in (earlier, later))
    differing = [table for table in _COMPARED if before.get(table) != after.get(table)]
    session = earlier["session"][0]
    found = corrections(*(_known(lake, versions, differing, session) for versions in (before, after)))
    whole = pl.col("column").is_in(["added", "withdrawn"])
    change = pl.when(whole).then("column").otherwise(pl.lit("corrected"))
    names = ["table", "ticker", "day", "change"]
    changes = found.with_columns(change=change).select(names).unique().sort(names)
    return Differences(int(earlier["revision"][0]), int(later["revision"][0]), firms, changes)


def _known(
    lake: Lake, versions: Mapping[str, int], tables: Iterable[str], session: dt.date
) -> dict[str, pl.DataFrame]:
    """Rows of tables that were known at a session, at these versions, without tables that there were not."""
    return {
        table: forget_later(
            table, lake.read(table, versions[table], filters=rows_known(table, session)), session
        )
        for table in tables
        if versions.get(table) is not None
    }
