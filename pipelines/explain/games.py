"""Play the Shapley games of the models of a run: one task of an engine for each model and fold.

Each fitted model of a run (one per fold and seed) is sent with its checkpoint and explains test sessions of
its own fold only. What is played is in `pipelines.explain.fold`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from backtest.splits.fold import Fold
from features.arrays import IntArray
from features.library.characteristics import CHARACTERISTICS
from features.library.standardise import MISSING
from models.explain.peers import drawn_firms
from models.registry import MODELS
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.device import resolve_device
from pipelines.errors import DataError
from pipelines.execution.jobs import Failed, run_jobs
from pipelines.execution.open import open_engine
from pipelines.explain.faithfulness import peer_config
from pipelines.explain.fold import FoldItem, ModelExplanation, explain_fold, turns_of
from pipelines.progress import Progress
from pipelines.run.checkpoints import read_checkpoint
from pipelines.run.record import Run
from pipelines.train.task import collect_arrays
from pipelines.train.work import work_on_arrays


def explained_models(config: Config) -> tuple[str, ...]:
    """List the models of a config that are explained: those in ``explain.models``, or all neural models."""
    if config.explain.models is not None:
        return tuple(name for name in config.explain.models if name in config.models)
    return tuple(name for name in config.models if MODELS[registry_name(config, name)].kind == "neural")


def families_of(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Group characteristics by family: family -> columns. A user's own inputs are the family ``input``."""
    families: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        is_input = name.startswith(INPUT_PREFIX)
        family = "input" if is_input else CHARACTERISTICS[name.removesuffix(MISSING)].family
        families.setdefault(family, []).append(column)
    return families


def explain_models(
    run: Run, dataset: Dataset, folds: Sequence[Fold], names: Sequence[str], progress: Progress
) -> Iterator[ModelExplanation]:
    """Play the games of some models on a sample of the test sessions of each fold.

    The folds are explained on the engine of the section ``execution``, with the same result on each.

    Parameters
    ----------
    run
        The run; its config says how many dates, firms and permutations are used.
    dataset
        Dataset of the run.
    folds
        Folds of the run.
    names
        Entries of ``models``.
    progress
        Gets one step per fold and seed.

    Yields
    ------
    ModelExplanation
        The models in the order of ``names``, each as soon as all of its folds have been explained.
    """
    planned = [(name, fold) for name in names for fold in folds]
    if not planned:
        return
    seeds, settings = run.config.seeds, run.config.explain
    sessions = {fold.index: _with_universe(dataset, fold.test) for fold in folds}
    turns = turns_of(sessions, seeds, settings)
    drawn = drawn_firms(
        dataset.universe_TN[np.concatenate([turn.network for turn in turns.values()])], peer_config(settings)
    )
    device, families = resolve_device(run.config.device), families_of(dataset.characteristic_names)

    def item(job: int) -> FoldItem:
        name, fold = planned[job]
        return FoldItem(
            model=name,
            fold=fold,
            sessions=sessions[fold.index],
            turns={seed: turns[fold.index, seed] for seed in seeds},
            drawn=drawn,
            checkpoints={seed: read_checkpoint(run.checkpoint(name, fold.index, seed)) for seed in seeds},
            families=families,
            settings=settings,
            device=device,
        )

    arrays = collect_arrays(dataset, run.config.features.window)
    work = work_on_arrays(explain_fold, arrays, device, {registry_name(run.config, name) for name in names})
    explained: dict[int, ModelExplanation] = {}
    waiting = list(names)
    with open_engine(run.config.execution, work, len(planned), note=progress.note) as engine:
        for ended in run_jobs(engine, len(planned), item):
            name, fold = planned[ended.job]
            run.write_text(f"logs/explain-{name}-fold-{fold.index}.log", ended.log)
            if isinstance(ended, Failed):
                raise ended.error
            explained[ended.job] = ended.result
            for seed in seeds:
                progress.step(f"{name} fold {fold.index} seed {seed}")
            while waiting and all(job in explained for job in _jobs_of(waiting[0], planned)):
                name = waiting.pop(0)
                whole = ModelExplanation(name)
                for job in _jobs_of(name, planned):
                    whole = whole.with_part(explained.pop(job))
                yield whole


def _jobs_of(name: str, planned: Sequence[tuple[str, Fold]]) -> list[int]:
    """Positions of the tasks of a model, in the order of the folds."""
    return [job for job, (model, _) in enumerate(planned) if model == name]


def _with_universe(dataset: Dataset, sessions: IntArray) -> IntArray:
    """Sessions with at least two firms in the universe."""
    selected: IntArray = sessions[dataset.universe_TN[sessions].sum(axis=1) >= 2]
    if not len(selected):
        first, last = dataset.panel.dates_T[sessions[[0, -1]]].astype("datetime64[D]")
        raise DataError(
            f"No test session from {first} to {last} has two firms in the universe, and the inputs of a firm "
            "are replaced by those of another; loosen the universe rule, or add firms."
        )
    return selected
