"""Play the Shapley games of the models of a run: one task of an engine for each model and fold.

Each fitted model of a run (one per fold and seed) is sent with its checkpoint and explains test sessions of
its own fold only. What is played is in `pipelines.explain.games`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from backtest.splits.folds import Fold
from features.arrays import FloatArray, IntArray
from features.library.characteristics import CHARACTERISTICS
from features.library.standardise import MISSING
from models.batch import PanelTensors
from models.explain.design import take_turns
from models.explain.groups import GroupAttribution, GroupGameConfig, explain_groups
from models.explain.peers import PeerAttribution, attention_matrices, drawn_firms, explain_peers
from models.explain.shapley import MAX_DRAWS
from models.explain.skill import SkillAttribution, SkillConfig, explain_skill
from models.fitting.fit import Fitted, NeuralFitted, untrained
from models.registry import MODELS
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.config.sections import ExplainConfig
from pipelines.dataset.build import Dataset
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError, DataError
from pipelines.execution.jobs import Failed, run_jobs
from pipelines.execution.open import open_engine
from pipelines.execution.protocol import Tell
from pipelines.explain.faithfulness import FaithfulPart, FittedPart, measure_part, peer_config
from pipelines.explain.trained import explained_panel, require_features
from pipelines.progress import Progress
from pipelines.run.checkpoints import Checkpoint, read_checkpoint
from pipelines.run.record import Run
from pipelines.train.task import Arrays, collect_arrays
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


@dataclass(frozen=True, slots=True, eq=False)
class ModelExplanation:
    """Attributions of one model, over its folds and seeds.

    Attributes
    ----------
    model
        Entry of the config.
    groups
        Results of the game on days, feature families and peers.
    peers
        Results of the game on single peers; empty for a model without peers.
    fits
        Fold and seed of the model of each entry of ``peers``.
    untrained
        Firms and attention matrices of the same models with their initial weights, for comparison.
    faithfulness
        Measures of the neural models, one per fold and seed.
    skill
        Which group carries the rank IC, one per fold and seed.
    """

    model: str
    groups: tuple[GroupAttribution, ...] = ()
    peers: tuple[PeerAttribution, ...] = ()
    fits: tuple[tuple[int, int], ...] = ()
    untrained: tuple[tuple[IntArray, FloatArray], ...] = ()
    faithfulness: tuple[FaithfulPart, ...] = ()
    skill: tuple[SkillAttribution, ...] = ()

    def with_part(self, part: ModelExplanation) -> ModelExplanation:
        """Append the results of more folds or seeds of the same model."""
        joined = {
            field.name: getattr(self, field.name) + getattr(part, field.name)
            for field in fields(self)
            if field.name != "model"
        }
        return ModelExplanation(self.model, **joined)


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Sessions that one fitted model explains: for the values, for the skill, and for the peer network."""

    values: IntArray
    skill: IntArray
    network: IntArray


def turns_of(
    sessions: Mapping[int, IntArray], seeds: Sequence[int], settings: ExplainConfig
) -> dict[tuple[int, int], Turns]:
    """Divide the explained dates among the fitted models, by fold and seed.

    Parameters
    ----------
    sessions
        Index of each fold -> its test sessions.
    seeds
        The seeds.
    settings
        Number of dates of each kind, over all folds and seeds.
    """
    counts = (settings.dates, settings.skill_dates, settings.network_dates)
    kinds = [take_turns(list(sessions.values()), len(seeds), count) for count in counts]
    return {
        (fold, seed): Turns(*(of_kind[f][k] for of_kind in kinds))
        for f, fold in enumerate(sessions)
        for k, seed in enumerate(seeds)
    }


@dataclass(frozen=True, slots=True, eq=False)
class FoldItem:
    """What is sent to a worker for one model and fold.

    Attributes
    ----------
    model
        Entry of the config.
    fold
        The fold.
    sessions
        Test sessions with at least two firms in the universe.
    turns
        Seed -> the sessions that it explains.
    drawn
        Firms of the peer network; None for all.
    checkpoints
        Seed -> the fitted model.
    families
        Feature family -> columns of the characteristics.
    settings
        Section ``explain`` of the config.
    device
        Device of the models.
    """

    model: str
    fold: Fold
    sessions: IntArray
    turns: Mapping[int, Turns]
    drawn: IntArray | None
    checkpoints: Mapping[int, Checkpoint]
    families: Mapping[str, Sequence[int]]
    settings: ExplainConfig
    device: str


def explain_fold(arrays: Arrays, item: FoldItem, tell: Tell) -> ModelExplanation:
    """Play the games on a sample of the test sessions of a fold, on one thread as in training.

    Parameters
    ----------
    arrays
        Arrays of the dataset.
    item
        The model and the fold.
    tell
        Not used: there is no news before the end.

    Raises
    ------
    ConfigError
        If the settings do not suit the model, or ask for a precision that is out of reach.
    DataError
        If a checkpoint is corrupted, or belongs to other features.
    """
    found = ModelExplanation(item.model)
    data: PanelTensors | None = None
    with one_thread():
        for seed, checkpoint in item.checkpoints.items():
            fitted = checkpoint.restore().to(item.device)
            data = explained_panel(arrays, checkpoint.inputs, item.device) if data is None else data
            require_features(fitted, data, f"{item.model}, fold {item.fold.index}, seed {seed}")
            found = found.with_part(_explain_seed(item, seed, fitted, data))
    return found


def _explain_seed(item: FoldItem, seed: int, fitted: Fitted, data: PanelTensors) -> ModelExplanation:
    settings, fold, turns = item.settings, item.fold, item.turns[seed]
    own_seed = settings.seed + 1000 * fold.index + seed
    groups: tuple[GroupAttribution, ...] = ()
    if len(turns.values):
        group_config = GroupGameConfig(
            permutations=settings.permutations,
            firms_per_date=settings.firms_per_date,
            engine=settings.engine,
            removal=settings.removal,
            share=settings.precision,
            seed=own_seed,
        )
        groups = (_explain_groups(fitted, data, turns.values, item.families, group_config, fold.train),)
    skill: tuple[SkillAttribution, ...] = ()
    if len(turns.skill):
        skill_config = SkillConfig(removal=settings.removal, seed=own_seed)
        skill = (explain_skill(fitted, data, turns.skill, item.families, skill_config, train=fold.train),)
    network: tuple[PeerAttribution, ...] = ()
    initial: tuple[tuple[IntArray, FloatArray], ...] = ()
    if isinstance(fitted, NeuralFitted) and fitted.module.uses_peers:
        network = explain_peers(fitted, data, turns.network, peer_config(settings), drawn=item.drawn)
        explained = np.array([date.session for date in network], dtype=np.int64)
        initial = tuple(attention_matrices(untrained(fitted, seed), data, explained))
    measured: tuple[FaithfulPart, ...] = ()
    if isinstance(fitted, NeuralFitted):
        place = tuple(item.checkpoints).index(seed)
        part = FittedPart(fold.index, seed, place, fitted, data, fold.train, item.sessions, item.drawn)
        measured = (measure_part(part, network, settings),)
    fits = ((fold.index, seed),) * len(network)
    return ModelExplanation(item.model, groups, network, fits, initial, measured, skill)


def _explain_groups(  # noqa: PLR0917  (the arguments of the game)
    fitted: Fitted,
    data: PanelTensors,
    sessions: IntArray,
    families: Mapping[str, Sequence[int]],
    config: GroupGameConfig,
    train: IntArray,
) -> GroupAttribution:
    """Play the game of groups; refuse settings that do not suit the model, or a precision out of reach."""
    try:
        found = explain_groups(fitted, data, sessions, families, config, train=train)
    except ValueError as error:
        raise ConfigError(f"explain.engine and explain.removal: {error}") from None
    if not found.reached:
        raise ConfigError(
            f"explain.precision is {config.share}, and {MAX_DRAWS:,} draws of the engine {config.engine} do "
            f"not reach it: the largest error is {found.error_EP.max():.2g}; ask for less precision."
        )
    return found
