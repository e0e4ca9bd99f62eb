"""Play the Shapley games of the models of a run: one task of an engine for each model and fold.

Each fitted model of a run (one per fold and seed) is sent with its checkpoint and explains test sessions of
its own fold only. Two games are played. In the first, the players are blocks of days, feature families and
peers. In the second, every peer is a player, which gives the directed network ``j -> i``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from backtest.splits.folds import Fold
from features.arrays import FloatArray, IntArray
from models.batch import PanelTensors
from models.explain.design import take_turns
from models.explain.faithful.forecasts import FaithfulConfig
from models.explain.faithful.study import Effort, FaithfulPart, FittedPart, measure_part
from models.explain.groups import (
    GroupAttribution,
    GroupGameConfig,
    SkillAttribution,
    explain_groups,
    explain_skill,
)
from models.explain.peers import (
    PeerAttribution,
    PeerGameConfig,
    attention_matrices,
    drawn_firms,
    explain_peers,
)
from models.explain.shapley import MAX_DRAWS
from models.fitted import Fitted
from models.fitting.fit import NeuralFitted, untrained
from models.registry import MODELS
from pipelines.config.load import registry_name
from pipelines.config.schema import Config
from pipelines.config.sections import ExplainConfig
from pipelines.dataset.build import Dataset
from pipelines.dataset.memory import most_lags
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError, DataError
from pipelines.execution.pool import open_engine
from pipelines.execution.protocol import Tell, run_jobs
from pipelines.explain.fitted import families_of, restore_fits
from pipelines.progress import Progress
from pipelines.run.checkpoints import Checkpoint, read_checkpoint
from pipelines.run.record import RecordedRun
from pipelines.train.task import Arrays, collect_arrays
from pipelines.train.work import work_on_arrays

FEW_FIRMS, SEVERAL_WORKERS = 300, 4  # fewer firms and so many workers of a pool are faster without a GPU


@dataclass(frozen=True, slots=True, eq=False)
class ModelExplanation:
    """Attributions of one model, over its folds and seeds."""

    model: str  # entry of the config
    groups: tuple[GroupAttribution, ...] = ()  # results of the game on days, feature families and peers
    # results of the game on single peers; empty for a model without peers
    peers: tuple[PeerAttribution, ...] = ()
    fits: tuple[tuple[int, int], ...] = ()  # fold and seed of the model of each entry of ``peers``
    # firms and attention matrices of the same models with their initial weights, for comparison
    untrained: tuple[tuple[IntArray, FloatArray], ...] = ()
    faithfulness: tuple[FaithfulPart, ...] = ()  # measures of the neural models, one per fold and seed
    skill: tuple[SkillAttribution, ...] = ()  # which group carries the rank IC, one per fold and seed

    def with_part(self, part: ModelExplanation) -> ModelExplanation:
        """Append the results of more folds or seeds of the same model."""
        names = [field.name for field in fields(self)][1:]
        return replace(self, **{name: getattr(self, name) + getattr(part, name) for name in names})


class _Turns(NamedTuple):
    """Sessions that one fitted model explains: for the values, for the skill, and for the peer network."""

    values: IntArray
    skill: IntArray
    network: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _FoldItem:
    """What is sent to a worker for one model and fold."""

    model: str
    fold: Fold
    sessions: IntArray  # of the test, with at least two firms in the universe
    turns: Mapping[int, _Turns]
    drawn: IntArray | None  # firms of the peer network; None for all
    checkpoints: Mapping[int, Checkpoint]
    families: Mapping[str, Sequence[int]]
    settings: ExplainConfig
    device: str


def explained_models(config: Config) -> tuple[str, ...]:
    """List the models of a config that are explained: those in ``explain.models``, or all but baselines."""
    if config.explain.models is not None:
        return tuple(name for name in config.explain.models if name in config.models)
    return tuple(name for name in config.models if MODELS[registry_name(config, name)].kind != "baseline")


def explained_on(config: Config, dataset: Dataset) -> str:
    """Device of the explanations: the config's, or ``cpu`` for a small market and a pool of several workers.

    A GPU has one process, which waits for its core most of the time if there are few firms. With 120 firms,
    the explanations of the demo took 28 s with an H200, and 27 s with two cores and no GPU. The serial engine
    has a single core as well, and Ray places tasks by ``gpus_per_task``: both keep the config's device.
    """
    several = config.execution.engine == "pool" and config.execution.at_once >= SEVERAL_WORKERS
    few = int(dataset.universe_TN.sum(axis=1).max()) < FEW_FIRMS
    return "cpu" if few and several else resolve_device(config.device)


def effort_of(settings: ExplainConfig) -> Effort:
    """Translate ``explain.faithfulness``, and the options of the peer network."""
    seed = settings.seed
    network = PeerGameConfig(settings.network_permutations, settings.max_peers, seed)
    if settings.faithfulness == "thorough":
        measures = FaithfulConfig(permutations=16, background=8, seed=seed)
        return Effort(measures, network, dates=8, firms=8, peer_dates=8, ic_dates=60)
    measures = FaithfulConfig(
        permutations=2, background=1, random_orders=1, steps=5, day_units=10, shuffled_shap=False, seed=seed
    )
    return Effort(measures, network, dates=1, firms=1, peer_dates=1, ic_dates=3)


def explain_models(
    run: RecordedRun, dataset: Dataset, folds: Sequence[Fold], names: Sequence[str], progress: Progress
) -> Iterator[ModelExplanation]:
    """Play the games of some models on the config's engine; yield each model when all its folds are done."""
    planned = [(name, fold) for name in names for fold in folds]
    if not planned:
        return
    seeds, settings = run.config.seeds, run.config.explain
    sessions = {fold.index: _with_universe(dataset, fold.test) for fold in folds}
    counts = (settings.dates, settings.skill_dates, settings.network_dates)
    of_kinds = [take_turns(list(sessions.values()), len(seeds), count) for count in counts]
    turns = {
        (fold, seed): _Turns(*(of_kind[f][k] for of_kind in of_kinds))
        for f, fold in enumerate(sessions)
        for k, seed in enumerate(seeds)
    }
    network = np.concatenate([turn.network for turn in turns.values()])
    drawn = drawn_firms(dataset.universe_TN[network], effort_of(settings).network)
    device, families = explained_on(run.config, dataset), families_of(dataset.characteristic_names)

    def item(job: int) -> _FoldItem:
        name, fold = planned[job]
        own = {seed: turns[fold.index, seed] for seed in seeds}
        stored = {seed: read_checkpoint(run.checkpoint(name, fold.index, seed)) for seed in seeds}
        return _FoldItem(name, fold, sessions[fold.index], own, drawn, stored, families, settings, device)

    arrays = collect_arrays(dataset, run.config.features.window)
    registered = {registry_name(run.config, name) for name in names}
    work = work_on_arrays(explain_fold, arrays, device, registered, most_lags(run.config))
    explained: dict[int, ModelExplanation] = {}
    waiting, done = list(names), 0
    with open_engine(run.config.execution, work, len(planned), note=progress.note) as engine:
        for ended in run_jobs(engine, len(planned), item):
            name, fold = planned[ended.job]
            run.write_text(f"logs/explain-{name}-fold-{fold.index}.log", ended.log)
            explained[ended.job] = ended.result
            for seed in seeds:
                progress.step(f"{name} fold {fold.index} seed {seed}")
            while waiting and explained.keys() >= (jobs := set(range(done, done + len(folds)))):
                whole = ModelExplanation(waiting.pop(0))
                for job in sorted(jobs):
                    whole = whole.with_part(explained.pop(job))
                done += len(folds)
                yield whole


def explain_fold(arrays: Arrays, item: _FoldItem, tell: Tell) -> ModelExplanation:
    """A worker's task: play the games of a fold, on one thread as in training."""
    found = ModelExplanation(item.model)
    with one_thread():
        fits = restore_fits(item.checkpoints, arrays, item.device, f"{item.model}, fold {item.fold.index}")
        for place, (seed, fitted) in enumerate(fits.seeds.items()):
            found = found.with_part(_explain_seed(item, seed, place, fitted, fits.data))
    return found


def _explain_seed(
    item: _FoldItem, seed: int, place: int, fitted: Fitted, data: PanelTensors
) -> ModelExplanation:
    settings, fold, turns, effort = item.settings, item.fold, item.turns[seed], effort_of(item.settings)
    once = GroupGameConfig(
        permutations=1, removal=settings.removal, seed=settings.seed + 1000 * fold.index + seed
    )
    found = ModelExplanation(item.model)
    if len(turns.values):
        config = replace(once, permutations=settings.permutations, firms_per_date=settings.firms_per_date)
        config = replace(config, engine=settings.engine, share=settings.precision)
        try:
            groups = explain_groups(fitted, data, turns.values, item.families, config, train=fold.train)
        except ValueError as error:
            raise ConfigError(f"explain.engine and explain.removal: {error}") from None
        if not groups.reached:
            raise ConfigError(
                f"explain.precision is {config.share}, and {MAX_DRAWS:,} draws of the engine "
                f"{config.engine} do not reach it: the largest error is {groups.error_EP.max():.2g}; "
                "ask for less precision."
            )
        found = replace(found, groups=(groups,))
    if len(turns.skill):
        skill = explain_skill(fitted, data, turns.skill, item.families, once, train=fold.train)
        found = replace(found, skill=(skill,))
    if not isinstance(fitted, NeuralFitted):
        return found
    network: tuple[PeerAttribution, ...] = ()
    initial: tuple[tuple[IntArray, FloatArray], ...] = ()
    if fitted.module.uses_peers:
        network = explain_peers(fitted, data, turns.network, effort.network, drawn=item.drawn)
        explained = np.array([date.session for date in network], dtype=np.int64)
        initial = tuple(attention_matrices(untrained(fitted, seed), data, explained))
    part = FittedPart(fold.index, seed, place, fitted.module, data, fold.train, item.sessions, item.drawn)
    measured, fits = (measure_part(part, network, effort),), ((fold.index, seed),) * len(network)
    return replace(found, peers=network, fits=fits, untrained=initial, faithfulness=measured)


def _with_universe(dataset: Dataset, sessions: IntArray) -> IntArray:
    """Sessions with at least two firms in the universe."""
    selected: IntArray = sessions[dataset.universe_TN[sessions].sum(axis=1) >= 2]
    if not len(selected):
        first, last = dataset.panel.dates_T[sessions[[0, -1]]]
        raise DataError(
            f"No test session from {first} to {last} has two firms in the universe, and the inputs of a firm "
            "are replaced by those of another; loosen the universe rule, or add firms."
        )
    return selected
