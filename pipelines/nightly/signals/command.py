"""``peerglass signals CONFIG|RUN``: score a session with a stored model, and say how it was made."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.config.load import load_config
from pipelines.config.schema import Config
from pipelines.dataset.tables import open_lake
from pipelines.errors import ConfigError, DataError
from pipelines.lake.lake import Lake
from pipelines.nightly.data import NightData, night_data
from pipelines.nightly.page.attribution import attribute, ends
from pipelines.nightly.registry.aliases import champion
from pipelines.nightly.registry.versions import open_version
from pipelines.nightly.signals.differences import explain_differences
from pipelines.nightly.signals.files import require_suffix, write_signals_file
from pipelines.nightly.signals.reasons import describe_reasons
from pipelines.nightly.signals.score import score
from pipelines.nightly.signals.store import read_revision, write_signals
from pipelines.nightly.table import read_nights
from pipelines.nightly.version import ModelVersion
from pipelines.progress import Progress
from pipelines.run.record import Run, list_records, open_run
from pipelines.run.warm_start import read_seen_sessions

_ENDS = 5  # number of firms shown at the top and at the bottom


@dataclass(frozen=True, slots=True)
class SignalsOptions:
    """Options of ``peerglass signals``.

    Attributes
    ----------
    session
        Session to score; None for the newest one in the lake.
    model
        Model of the config or run; None for the champion's, or the only one of a run.
    version
        Model version as RUN/MODEL; None for the champion of a config.
    out
        File to write; None for none.
    output
        Folder of the runs, for a RUN.
    explain
        Explain this many names at the top and at the bottom; None for none.
    """

    session: dt.date | None
    model: str | None
    version: str | None
    out: Path | None
    output: Path
    explain: int | None = None


def make_signals(
    target: str, overrides: list[str], options: SignalsOptions, echo: Callable[[str], None]
) -> None:
    """Score a session with a stored model, add the signals to the lake, and print a summary.

    Parameters
    ----------
    target
        A config file, or a run.
    overrides
        ``KEY=VALUE`` settings of a config.
    options
        What to score, and where the result goes.
    echo
        Prints the summary.

    Raises
    ------
    ConfigError
        If the model, the version or the file's suffix is not allowed, or the model has seen the session.
    DataError
        If there is no trained version, no price on the session, or a feature that the model needs is missing.
    """
    if options.out is not None:
        require_suffix(options.out)
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
        echo(f"Revision {revision}: {write_signals_file(rows, options.out).resolve()}")


def _version_of_config(config: Config, lake: Lake, options: SignalsOptions) -> ModelVersion:
    """Choose the version that was asked for, or that the night of the session used, or the champion.

    Without a champion, the newest live run of the config is used.
    """
    if options.version is not None:
        try:
            asked = ModelVersion.parse(options.version)
        except ValueError as error:
            raise ConfigError(f"--version: {error}.") from None
        if options.model not in (None, asked.model):
            raise ConfigError(f"--version {asked} names a model of its own; leave out --model.")
        return asked
    best = _version_of_night(lake, config.name, options.session) or champion(lake, config.name)
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


def _version_of_night(lake: Lake, config_name: str, session: dt.date | None) -> ModelVersion | None:
    """Return the version that a night used; None if the session is not given, or its night had none."""
    if session is None:
        return None
    used = read_nights(lake, config_name).filter(pl.col("session") == session)["version"].drop_nulls()
    return ModelVersion.parse(used[0]) if used.len() else None


def _version_of_run(run: Run, options: SignalsOptions) -> ModelVersion:
    if options.version is not None:
        raise ConfigError("--version needs a CONFIG: a RUN is a version already; --model names its model.")
    models = list(run.config.models)
    if options.model is None and len(models) > 1:
        raise ConfigError(f"Run {run.run_id} has the models {', '.join(models)}; choose one with --model.")
    model = options.model or models[0]
    if model not in models:
        raise ConfigError(f"Run {run.run_id} has no model {model!r}, only {', '.join(models)}.")
    return ModelVersion(run.run_id, model)


def _newest_fold(run: Run) -> tuple[int, dt.date]:
    """Return the fold of a run that was trained last, and the last session whose data it has seen."""
    if run.config.folds.scheme == "combinatorial":
        raise ConfigError(
            f"Run {run.run_id} has combinatorial folds, which train on sessions after their tests; use a run "
            "with walk-forward or live folds."
        )
    newest = max(read_seen_sessions(run), key=lambda seen: seen.seen_to)
    return newest.fold, run.config.through or newest.seen_to


def describe_signals(rows: pl.DataFrame, data: NightData, run: Run, trained: dt.date) -> str:
    """Summarise the signals of a session: the ends of the ranking, coverage, and the age of the training."""
    version = rows["version"][0]
    inside = rows.filter(pl.col("in_universe"))
    age = int((data.market.panel.dates_T.astype("datetime64[D]") > trained).sum())
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
    lines += ["", f"  {'ticker':<12}{'signal':>9}{'rank':>8}{'dispersion':>12}"]
    for at, (ticker, signal, rank, spread) in enumerate(
        shown.select("ticker", "signal", "rank", "seed_dispersion").iter_rows()
    ):
        if at == _ENDS and ranked.height > 2 * _ENDS:
            lines.append("  ...")
        dispersion = "" if spread is None else f"{spread:.3f}"
        lines.append(f"  {ticker:<12}{signal:>+9.3f}{rank:>8.3f}{dispersion:>12}")
    return "\n".join([*lines, ""])
