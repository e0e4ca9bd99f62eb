"""The stages of a run as functions: ingest, audit, train, backtest, explain, report, and all of them.

The audit and its libraries are imported within the functions. Other commands do not need them, and a run
starts other processes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipelines.config.load import override_backtest
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.device import gpus_of, resolve_device
from pipelines.errors import ConfigError
from pipelines.execution.pool import early_workers, in_own_process, share_out
from pipelines.lake.lake import Lake
from pipelines.machine import PROCESS, this_machine
from pipelines.progress import Progress
from pipelines.run.completeness import require_test
from pipelines.run.fetch import ingest_config
from pipelines.run.locks import Locks
from pipelines.run.open import load_run_data, load_run_market, prepare_run, reopen_run
from pipelines.run.record import RecordedRun, open_run
from pipelines.run.registration import registration_of
from pipelines.run.stored import StoredRun

if TYPE_CHECKING:
    from pipelines.dataset.build import Dataset
    from pipelines.explain.question import Question
    from pipelines.run.evaluations import StoredEvaluation


@contextmanager
def opened(
    name: str, output: Path, *, wait: bool, tested: bool = True, progress: Progress | None = None
) -> Iterator[tuple[RecordedRun, Progress]]:
    """Open and lock a run, fetch its copy and store it afterwards; ``tested`` refuses live folds."""
    progress = progress or Progress()
    with Locks(wait=wait, notify=progress.note) as locks:
        run = open_run(name, output)
        if tested:
            require_test(run.config, run.run_id)
        locks.lock_run(run.folder)
        locks.enter_context(StoredRun(run).kept())
        yield run, progress


def train_config(config: Config, as_of: str | None = None, *, wait: bool = False) -> str:
    """Train the models of a config walk-forward and return the run id."""
    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks:
        return _train(*prepare_run(config, progress, as_of, locks), progress)


def _train(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    from pipelines.tracking.runs import tracked
    from pipelines.train.walkforward import train

    with tracked(run, progress):
        train(run, dataset, lake, progress)
    return run.run_id


def train_run(name: str, output: Path, *, wait: bool = False) -> str:
    """Train what is missing of a recorded run, on exactly the data versions that it recorded."""
    from pipelines.run.identity import code_digest, plugin_digests

    progress = Progress()
    with Locks(wait=wait, notify=progress.note) as locks:
        run, dataset, lake = reopen_run(name, output, progress, locks)
        recorded = run.identity.settings.get("plugins", {})
        if run.identity.code != code_digest() or recorded != plugin_digests(run.config):
            progress.note(
                f"The code has changed since {run.run_id} was made; what is trained now may differ."
            )
        return _train(run, dataset, lake, progress)


def backtest_run(
    name: str,
    overrides: list[str],
    output: Path,
    *,
    echo: Callable[[str], None],
    as_json: bool = False,
    wait: bool = False,
) -> None:
    """Evaluate a run again with other backtest settings, and store an additional evaluation."""
    from pipelines.pages.describe import describe_evaluation, document
    from pipelines.results.evaluate_run import evaluate_run

    with opened(name, output, wait=wait) as (found, progress):
        run = replace(found, config=override_backtest(found.config, overrides))
        dataset, lake = load_run_market(run, progress)
        evaluation = evaluate_run(run, dataset, lake, progress)
        if as_json:
            from pipelines.pages.report_data import run_report
            from pipelines.pages.verdict import judge_report

            verdict = judge_report(run_report(run, evaluation, dataset, lake)).as_dict()
            paths = {"folder": run.folder, "tables": evaluation.folder}
            echo(document(run.run_id, evaluation, verdict, paths, registration_of(run)))
        else:
            echo(describe_evaluation(evaluation, run.config))
        track_run(run, progress)


def explain_run(name: str, output: Path, *, wait: bool = False) -> str:
    """Attribute a sample of a run's test forecasts, store the tables, and return a summary."""
    from pipelines.explain.attribution import explain

    with opened(name, output, wait=wait) as (run, progress):
        dataset, lake = load_run_data(run, progress)
        return explain(run, dataset, lake, progress)


def explain_net(name: str, output: Path, question: Question, *, wait: bool = False) -> str:
    """Divide the net return of a model's book among its inputs, store the table, and return it as text."""
    from pipelines.explain.net import explain_net_of_run

    with opened(name, output, wait=wait) as (run, _):
        return explain_net_of_run(run, question)


def explore_run(name: str, output: Path, model: str | None, out: Path | None, *, wait: bool = False) -> Path:
    """Write the explorer of a run's peer networks, or of one model, and return its path."""
    from pipelines.pages.explorer import write_explorer

    with opened(name, output, wait=wait, tested=False) as (run, _):
        return write_explorer(run, model, out).resolve()


def report_run(name: str, output: Path, evaluation_id: str | None = None, *, wait: bool = False) -> str:
    """Write the report of a run, evaluated first if tasks have finished since, and return its path."""
    from pipelines.evaluate_file import report_signals
    from pipelines.results.evaluate_run import evaluate_run, missing_tasks_of_run
    from pipelines.results.recount import recount
    from pipelines.run.evaluations import find_evaluation, newest_evaluation

    progress = Progress()
    of_signals = report_signals(name, output, evaluation_id, progress, wait=wait)
    if of_signals is not None:
        return str(of_signals)
    with opened(name, output, wait=wait, progress=progress) as (found, _):
        evaluation = newest_evaluation(found)
        if evaluation_id is not None:
            evaluation = find_evaluation(found, evaluation_id)
        config = found.config if evaluation is None else evaluation.record.apply_to(found.config)
        run = replace(found, config=config)
        dataset, lake = load_run_market(run, progress)
        if evaluation is None or evaluation.record.missing != missing_tasks_of_run(run, dataset, lake):
            evaluation = evaluate_run(run, dataset, lake, progress)
        path = write_report(run, recount(run, evaluation), dataset, lake, progress)
        track_run(run, progress)
    return str(path)


def write_report(
    run: RecordedRun, evaluation: StoredEvaluation, dataset: Market, lake: Lake, progress: Progress
) -> Path:
    """Render the report, and the explorer of peer networks, so that its link is neither dead nor old."""
    from pipelines.pages.explorer import has_networks, write_explorer
    from pipelines.pages.report import render_report
    from pipelines.pages.report_data import run_report

    with progress.stage("report"):
        if evaluation.record.incomplete is not None:
            progress.note(f"The run is incomplete. Missing: {evaluation.record.incomplete}.")
        explorer = write_explorer(run).name if has_networks(run) else None
        report = replace(run_report(run, evaluation, dataset, lake), explorer=explorer)
        return run.write_text("report.html", render_report(report))


def track_run(run: RecordedRun, progress: Progress) -> None:
    """Log the contents of a run's folder in the tracking store."""
    from pipelines.tracking.runs import log_run

    with progress.stage("track"):
        log_run(run)


def run_config(
    config: Config,
    echo: Callable[[str], None],
    as_of: str | None = None,
    *,
    explained: bool = True,
    wait: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Ingest, audit, train, backtest, explain and report, and print each result; what is done is kept."""
    progress = progress or Progress()
    if config.folds.scheme == "live":
        raise ConfigError(
            "folds.scheme is live, so there is no test to backtest, explain or report; train the config with "
            "'peerglass train', or use walk-forward folds."
        )
    with workers_made_ready(config) as make_ready:
        from pipelines.audit.command import audit_before_training, warn_after_training
        from pipelines.explain.attribution import explain_if_new, explanation_tasks
        from pipelines.pages.describe import describe_evaluation
        from pipelines.results.evaluate_run import evaluate_run
        from pipelines.tracking.runs import tracked
        from pipelines.train.walkforward import tasks_left, train

        if as_of is None:
            ingest_config(config, echo, progress, wait=wait)
        with Locks(wait=wait, notify=progress.note) as locks:
            run, dataset, lake = prepare_run(config, progress, as_of, locks)
            with tracked(run, progress), StoredRun(run).kept():
                make_ready(run.config, tasks_left(run, dataset, lake), IMPORT_TRAINING)
                audit_before_training(run, dataset, lake, progress, echo)
                train(run, dataset, lake, progress)
                if explained:
                    make_ready(run.config, explanation_tasks(run, dataset), IMPORT_EXPLAINING)
                evaluation = evaluate_run(run, dataset, lake, progress)
                echo(f"\n{describe_evaluation(evaluation, config)}\n")
                warn_after_training(run, echo)
                if explained:
                    echo(explain_if_new(run, dataset, lake, progress))
                else:
                    echo(f"Nothing was explained; 'peerglass explain {run.run_id}' does it later.")
                path = write_report(run, evaluation, dataset, lake, progress)
    seconds = "  ".join(f"{stage} {duration:.0f} s" for stage, duration in progress.seconds.items())
    echo(f"\nrun {run.run_id}  ({seconds})")
    return path.resolve()


IMPORT_TRAINING = f"{__name__}:import_training"
IMPORT_EXPLAINING = f"{__name__}:import_explaining"
FIND_GPU = f"{__name__}:find_gpu"
COMPILE_LOOPS = f"{__name__}:compile_loops"


@contextmanager
def workers_made_ready(config: Config) -> Iterator[Callable[[Config, Mapping[str, int], str], None]]:
    """Yield a function that has a pool's workers call a function above, for tasks by device."""
    # on a new machine, another process compiles loops that the stages need
    has_to_compile = _has_pool(config) and not _accounts_are_compiled()
    with early_workers() as start, in_own_process(COMPILE_LOOPS) if has_to_compile else nullcontext():

        def start_for(config: Config, tasks: Mapping[str, int], prepare: str) -> None:
            if not _has_pool(config):
                return
            devices = [device for device, count in tasks.items() for _ in range(count)]
            gpus = gpus_of(resolve_device(config.device))
            each, most = [PROCESS] * len(devices), config.execution.at_once
            workers, used, _ = share_out(each, devices, gpus, most, this_machine())
            if workers + len(used) > 1:
                start(workers, prepare)
                start(0, FIND_GPU, used)

        yield start_for


def _has_pool(config: Config) -> bool:
    return config.execution.engine == "pool" and config.execution.at_once > 1


def _accounts_are_compiled() -> bool:
    """Whether numba's cache has the loops of the accounts; those of another version of them count as well."""
    from backtest.accounts import positions

    loop = cast("Any", positions.run_lanes)
    cache = getattr(getattr(loop, "stats", None), "cache_path", None)  # None if nothing can be cached
    return cache is None or any(Path(cache).glob(f"{Path(positions.__file__).stem}.{loop.__name__}-*.nbi"))


def import_training() -> None:
    """Import what training needs."""
    import pipelines.train.work  # noqa: F401


def find_gpu() -> None:
    """Import what training needs, and start CUDA."""
    import torch

    import_training()
    torch.cuda.init()


def import_explaining() -> None:
    """Import what explanations need."""
    import pipelines.explain.games  # noqa: F401


def compile_loops() -> None:
    """Compile loops into numba's cache, in the order in which a run needs them, in a process of its own."""
    import gc

    import numpy as np

    from backtest.accounts.accounting import run_book
    from backtest.books.rules.quantile_long_short import QuantileLongShort
    from backtest.costs import CostModel
    from backtest.forecasts.daily import SortedPanel, persistence
    from backtest.forecasts.metrics import forecast_metrics
    from features.arithmetic import rolling, transforms

    # The compiler leaves few cycles, and a search for them after 700 objects takes 15% of the time.
    gc.set_threshold(50_000, 20, 100)
    index_TN = np.array([[1.0, 1.0, 1.0], [1.1, 0.9, 1.0], [1.2, 0.8, 1.1]])
    single_TN, all_TN = index_TN.astype(np.float32), np.ones(index_TN.shape, dtype=np.bool_)
    # The dataset needs other loops before these.
    rolling.rolling_std(index_TN, 3, 2)
    rolling.rolling_mean(index_TN, 3, 2)
    rolling.rolling_max(index_TN, 3, 2)
    rolling.rolling_skewness(index_TN, 3, 3)
    rolling.rolling_regression(index_TN, index_TN, 3, 3)
    transforms.rank_normal(single_TN, all_TN)
    forecast_metrics(single_TN, single_TN)
    target_TN = QuantileLongShort(quantiles=2).select(index_TN)
    run_book(target_TN, index_TN, all_TN, CostModel(), 1)
    persistence(SortedPanel("forecast", index_TN), (1,), quantiles=2)
