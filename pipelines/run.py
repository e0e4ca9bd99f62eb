"""The stages of a run, each callable alone: ingest, audit, train, backtest, explain, report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config import Config, FilesSourceConfig
from pipelines.config_load import build_settings, load_config
from pipelines.dataset import Dataset, FloatArray, build_dataset, plan_folds, spread
from pipelines.device import pick_device
from pipelines.errors import ConfigError, DataError
from pipelines.identity import identity_of
from pipelines.ingest import ingest
from pipelines.ingest_summary import IngestStoppedError, describe_ingest
from pipelines.lake import Lake, open_lake
from pipelines.lake_options import is_url, place
from pipelines.lake_readers import record_reader
from pipelines.locks import Locks
from pipelines.progress import Progress
from pipelines.risk_free import describe_rate
from pipelines.runs import Run, name_run, news, open_run, record_run
from pipelines.secrets import masked
from pipelines.sources.base import LiveSource, Source

_LADDER_CELLS = (  # column, head, scale, digits, width
    ("valid_rank_ic", "valid rIC", 1, 4, 11),
    ("ic", "IC", 1, 4, 9),
    ("icir", "ICIR", 1, 2, 8),
    ("rank_ic", "rank IC", 1, 4, 9),
    ("ensemble_ic", "ens. IC", 1, 4, 9),
    ("ic_t", "t", 1, 1, 7),
    ("coverage_dates", "dates %", 100, 1, 9),
    ("coverage_firms", "firms %", 100, 1, 9),
    ("tied", "tied %", 100, 1, 8),
)
INPUT_TABLES = (
    "prices",
    "securities",
    "fundamentals",
    "membership",
    "inputs",
    "truth_mu",
    "truth_edges",
    "truth_days",
)


def make_source(config: Config) -> Source | LiveSource:
    """Build the source that a config names."""
    wanted = config.source
    if wanted.kind == "simulated":
        from pipelines.sources.simulated import MarketConfig, SimulatedSource

        return SimulatedSource(build_settings(MarketConfig, wanted.market, "source.market"), seed=wanted.seed)
    if wanted.kind == "sample":
        from pipelines.sources.sample import SampleSource

        return SampleSource()
    if wanted.kind == "files":
        return _files_source(wanted)
    if wanted.kind == "yfinance":
        from pipelines.sources.yfinance_source import YFinanceSource

        return YFinanceSource(wanted)
    from pipelines.sources.sec import SecSource

    return SecSource(wanted.tickers, wanted.identity, wanted.start)


def _files_source(wanted: FilesSourceConfig) -> Source:
    from pipelines.sources.files import FilesSource
    from pipelines.sources.files_statements import StatementFiles

    statements = None
    if wanted.fundamentals:
        statements = StatementFiles(
            Path(wanted.fundamentals),
            items=wanted.items,
            assumed_lag_days=wanted.assumed_lag_days,
            months=wanted.statement_months,
            zero_is_unknown=wanted.zero_is_unknown,
            shares_stated=wanted.shares_stated,
        )
    elif wanted.items or wanted.zero_is_unknown or wanted.statement_months:
        raise ConfigError(
            "source.items, zero_is_unknown and statement_months are about source.fundamentals: name its file."
        )
    return FilesSource(
        prices=Path(wanted.prices),
        securities=Path(wanted.securities) if wanted.securities else None,
        layout=wanted.layout,
        statements=statements,
        membership=Path(wanted.membership) if wanted.membership else None,
        inputs=Path(wanted.inputs) if wanted.inputs else None,
        columns=wanted.columns,
        units=wanted.units,
        date_format=wanted.date_format,
        start=wanted.start,
        end=wanted.end,
        hazards=tuple(masked(hazard) for hazard in wanted.hazards),
    )


def read_tables(lake: Lake, versions: dict[str, int]) -> dict[str, pl.DataFrame]:
    """Read the input tables of a run at the versions it recorded, without those that were withdrawn whole."""
    tables = {table: lake.read(table, version=version) for table, version in versions.items()}
    return {table: frame for table, frame in tables.items() if frame.height}


def input_versions(lake: Lake, as_of: str | None = None) -> dict[str, int]:
    """Versions of the tables that a run reads: the newest, or those of an earlier moment.

    Parameters
    ----------
    lake
        Where the tables are.
    as_of
        What ``--as-of`` says (`Lake.versions_as_of`); None for the newest.

    Raises
    ------
    DataError
        If nothing has been ingested yet, or nothing by then.
    ConfigError
        If ``as_of`` is neither a version nor a date or time.
    """
    there = lake.versions() if as_of is None else lake.versions_as_of(as_of)
    versions = {table: version for table, version in there.items() if table in INPUT_TABLES}
    if "prices" not in versions:
        raise DataError(f"The lake {lake.root} holds no prices yet; run 'peerglass ingest CONFIG' first.")
    return versions


def describe_as_of(as_of: str, versions: Mapping[str, int]) -> str:
    """Say which version of each table an ``--as-of`` means."""
    listed = ", ".join(f"{table} version {version}" for table, version in versions.items())
    return f"as of {as_of}: {listed}"


def ingest_config(
    config: Config,
    say: Callable[[str], None] = print,
    progress: Progress | None = None,
    *,
    replace: bool = False,
    wait: bool = False,
) -> None:
    """Fetch a config's source into its lake and say what became of every row, also if the source stops.

    With ``replace``, a delivery may withdraw or change most of what the lake holds. With ``wait``, an ingest
    that another process makes into the lake is waited for, and is an error otherwise.
    """
    progress = progress or Progress()
    lake = open_lake(config, progress.note)
    lake.version("prices")  # raises before anything is written if what is there is not a Delta table
    with Locks(wait=wait, say=progress.note) as locks, progress.stage("ingest"):
        locks.hold_ingest(lake.root)
        try:
            summary = ingest(make_source(config), lake, progress, config.quality, replace=replace)
        except IngestStoppedError as stopped:
            say(describe_ingest(stopped.summary))
            raise
    say(describe_ingest(summary))


def prepare(
    config: Config, progress: Progress, as_of: str | None = None, locks: Locks | None = None
) -> tuple[Run, Dataset, Lake]:
    """Name the run of a config on what its lake holds, now or as of a moment, and build its arrays.

    A command that goes on to write into the run's folder gives its ``locks``.
    """
    from pipelines.init_from import starting_runs

    lake = open_lake(config, progress.note)
    versions = input_versions(lake, as_of)
    starts = starting_runs(config)
    with progress.stage("dataset"):
        if as_of is not None:
            progress.note(describe_as_of(as_of, versions))
        tables = lake.identified(versions)
        dataset = build_dataset(read_tables(lake, versions), config)
        for note in dataset.notes:
            progress.note(note)
        plan_folds(dataset, config)  # too few sessions: say so before a run's folder is there
        run = name_run(config, identity_of(config, dataset, masked(place(lake.root)), tables, starts))
        told = news(run)
        if told is not None:
            progress.note(told)
    if locks is not None:
        locks.hold_run(run.folder)
    record_run(run)
    record_reader(lake, run.run_id, run.versions)
    return run, dataset, lake


def reopen(
    name: str, output: Path, progress: Progress, locks: Locks | None = None
) -> tuple[Run, Dataset, Lake]:
    """Open a finished run and build its arrays from exactly the data that it recorded.

    A command that goes on to write into the run's folder gives its ``locks``.

    Raises
    ------
    DataError
        If its lake does not hold the tables any more that it was made on.
    """
    run = open_run(name, output)
    assert run.identity is not None, "a run that is opened has recorded its identity"
    if locks is not None:
        locks.hold_run(run.folder)
    where = run.config.lake if is_url(run.identity.lake) else run.identity.lake
    lake = Lake(where, run.config.lake_options, progress.note)
    _require_same_tables(run, lake)
    with progress.stage("dataset"):
        dataset = build_dataset(read_tables(lake, dict(run.versions)), run.config)
    return run, dataset, lake


def _require_same_tables(run: Run, lake: Lake) -> None:
    for table, recorded in run.tables.items():
        if not lake.exists(table):
            raise DataError(
                f"Run {run.run_id} was made on the table {table} of {lake.root}, which is gone; restore "
                "the lake at that place, or run the config again for a new run."
            )
        if lake.identified({table: recorded.version})[table].id != recorded.id:
            raise DataError(
                f"Run {run.run_id} was made on another table {table} than the one in {lake.root}, which was "
                "deleted and made again since; restore the lake, or run the config again for a new run."
            )


def train_config(config: Config, as_of: str | None = None, *, wait: bool = False) -> str:
    """Train a config's models walk-forward; the run id is the answer."""
    from pipelines.walkforward import train

    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = prepare(config, progress, as_of, locks)
        train(run, dataset, lake, progress)
    return run.run_id


def backtest_run(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Measure a run's forecasts, keep the tables in its folder, and answer with the ladder."""
    from pipelines.ending_scenarios import ending_table
    from pipelines.ensembles import ensemble_table
    from pipelines.evaluate import evaluate, forecasts_to_arrays
    from pipelines.horizons import horizon_table
    from pipelines.label_shares import label_share_table
    from pipelines.quantile_scores import quantile_score_table
    from pipelines.walkforward import read_scores

    with progress.stage("backtest"):
        forecasts = _forecasts(run, lake)
        arrays = forecasts_to_arrays(forecasts, dataset.panel)
        ordered = {model: arrays[model] for model in run.config.models if model in arrays}
        tested = np.concatenate([fold.test for fold in plan_folds(dataset, run.config)])
        result = evaluate(
            ordered,
            dataset,
            run.config,
            read_scores(run),
            truth_TN=truth_of(run, dataset, lake),
            sessions=np.unique(tested),
        )
        for name in ("ladder", "ic_series", "quantiles", "equity", "costs"):
            run.write_table(name, getattr(result, name))
        run.write_table("ensembles", ensemble_table(ordered, dataset.panel))
        horizons = horizon_table(run, lake, dataset)
        if horizons is not None:
            run.write_table("horizons", horizons)
        scored = quantile_score_table(run)
        if scored is not None:
            run.write_table("quantile_scores", scored)
        shares = label_share_table(run.config, ordered, dataset, read_scores(run))
        if shares is not None:
            run.write_table("label_shares", shares)
        endings = ending_table(ordered, dataset, run.config)
        if endings is not None:
            run.write_table("endings", endings)
    return describe_ladder(result.ladder, run.config)


def backtest_target(
    target: str,
    config: Path | None,
    overrides: list[str],
    output: Path,
    as_of: str | None = None,
    *,
    wait: bool = False,
) -> str:
    """``peerglass backtest RUN|FILE``."""
    progress = Progress()
    if config is None and not Path(target).is_file():
        if as_of is not None:
            raise ConfigError("--as-of needs --config and a FILE: a run has recorded its data versions.")
        if overrides:
            raise ConfigError(
                "--set needs --config: a finished run's settings are fixed; give both for a FILE."
            )
        with Locks(wait=wait, say=progress.note) as locks:
            run, dataset, lake = reopen(target, output, progress, locks)
            return backtest_run(run, dataset, lake, progress)
    if config is None:
        raise ConfigError(f"{target} is a file: add --config CONFIG to say on which lake, label and costs.")
    from pipelines.signals import backtest_file

    return backtest_file(Path(target), load_config(config, overrides), progress, as_of)


def truth_of(run: Run, dataset: Dataset, lake: Lake) -> FloatArray | None:
    """Conditional mean of the simulated market over the panel, or None on real data."""
    if "truth_mu" not in run.versions:
        return None
    frame = lake.read("truth_mu", version=run.versions["truth_mu"])
    return spread(frame, "mu", dataset.panel)


def explain_run(name: str, output: Path, *, wait: bool = False) -> str:
    """``peerglass explain RUN``."""
    from pipelines.explanation import explain

    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = reopen(name, output, progress, locks)
        return explain(run, dataset, lake, progress)


def report_run(name: str, output: Path, *, wait: bool = False) -> str:
    """``peerglass report RUN``: the report's path."""
    progress = Progress()
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = reopen(name, output, progress, locks)
        if run.read_table("ladder") is None:
            backtest_run(run, dataset, lake, progress)
        return str(write_report(run, dataset, lake, progress))


def write_report(run: Run, dataset: Dataset, lake: Lake, progress: Progress) -> Path:
    """Render a run's tables, record the run in the tracking store, and answer with the report's path."""
    from pipelines.report.html import render
    from pipelines.report_data import fold_table, report_data
    from pipelines.tracking import log_run
    from pipelines.walkforward import read_scores

    with progress.stage("report"):
        data = report_data(run, dataset, lake, progress.seconds)
        path = run.write_text("report.html", render(data))
    with progress.stage("track"):
        log_run(
            run,
            device=pick_device(run.config.device),
            folds=fold_table(run, dataset),
            ladder=data.ladder,
            scores=read_scores(run),
            seconds=progress.seconds,
        )
    return path


def run_config(
    config: Config, say: Callable[[str], None], as_of: str | None = None, *, wait: bool = False
) -> Path:
    """Ingest, audit, train, backtest, explain, report; what each stage found is said as soon as it is known.

    With ``as_of`` nothing is ingested, and the lake is read as it was.

    Returns
    -------
    Path
        The report.
    """
    from pipelines.audit.command import audit_before_training
    from pipelines.explanation import explain
    from pipelines.walkforward import train

    progress = Progress()
    if as_of is None:
        ingest_config(config, say, progress, wait=wait)
    with Locks(wait=wait, say=progress.note) as locks:
        run, dataset, lake = prepare(config, progress, as_of, locks)
        audit_before_training(run, dataset, lake, progress, say)
        train(run, dataset, lake, progress)
        say(f"\n{backtest_run(run, dataset, lake, progress)}\n")
        say(explain(run, dataset, lake, progress))
        path = write_report(run, dataset, lake, progress)
    took = "  ".join(f"{stage} {seconds:.0f} s" for stage, seconds in progress.seconds.items())
    say(f"\nrun {run.run_id}  ({took})")
    return path.resolve()


def describe_ladder(ladder: pl.DataFrame, config: Config) -> str:
    """Print the ladder for a terminal: one line a model, one block a delay."""
    lines = []
    for delay in config.label.delays:
        rows = ladder.filter(pl.col("delay") == delay)
        trained = "trained for" if delay == config.label.delay else "the same forecasts at"
        lines.append(f"test, {trained} delay {delay}, horizon {config.label.horizon} sessions")
        shown = [(f"{book}.sharpe_net", f"{book} net") for book in config.backtest.books]
        ratios = ((f"{book}.information_ratio", f"{book} IR") for book in config.backtest.books)
        shown += [(column, head) for column, head in ratios if rows[column].drop_nulls().len()]
        width = max([22, *(len(model) + 2 for model in rows["model"])])
        heads = "".join(f"{head:>{cell}}" for _, head, _, _, cell in _LADDER_CELLS)
        lines.append(f"  {'model':<{width}}{heads}{''.join(f'{head:>18}' for _, head in shown)}")
        for row in rows.iter_rows(named=True):
            cells = "".join(
                f"{_number(row[key], digits, scale):>{cell}}" for key, _, scale, digits, cell in _LADDER_CELLS
            )
            of_books = "".join(f"{_number(row[column], 2):>18}" for column, _ in shown)
            lines.append(f"  {row['model']:<{width}}{cells}{of_books}")
        if rows["truth_ic"].drop_nulls().len():
            truth = rows.row(0, named=True)
            lines.append(
                f"  {'(the truth itself)':<{width + 11}}"
                f"{truth['truth_ic']:>9.4f}{'':>8}{truth['truth_rank_ic']:>9.4f}"
            )
    rate = describe_rate(config.backtest.risk_free)
    lines += [
        f"net: annualised Sharpe after costs over {rate}, paid on net exposure;",
        "IR: information ratio after costs against the equal-weighted universe before costs;",
        "IC: mean of single seeds; ens.: seed ensemble; dates %, firms %: share forecast, of the dates and",
        "of the universe's firms on these dates; tied %: share of forecasts that equal another of the date",
    ]
    return "\n".join(lines)


def _number(value: float | None, digits: int, scale: int = 1) -> str:
    if value is None or math.isnan(value):
        return "-"
    value *= scale
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.0e}"  # wider would run into its neighbour


def _forecasts(run: Run, lake: Lake) -> pl.DataFrame:
    frame = (
        lake.read("forecasts", filters=pl.col("run_id") == run.run_id) if lake.exists("forecasts") else None
    )
    if frame is None or frame.is_empty():
        raise DataError(
            f"Run {run.run_id} has no forecasts in {lake.root}; run 'peerglass train' on its config."
        )
    return frame
