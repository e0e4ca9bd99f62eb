"""Play the Shapley games of one model: on groups of inputs, and on single peers.

Each fitted model of a run (one per fold and seed) is loaded from its checkpoint and explains test sessions of
its own fold only. Two games are played. In the first, the players are blocks of days, feature families and
peers. In the second, every peer is a player, which gives the directed network ``j -> i``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from backtest.splits.fold import Fold
from features.arrays import FloatArray, IntArray
from features.library.characteristics import CHARACTERISTICS
from features.library.standardise import MISSING
from models.batch import PanelTensors
from models.explain.design import evenly_spaced
from models.explain.engines.engine import MAX_DRAWS
from models.explain.groups import GroupAttribution, GroupGameConfig, explain_groups
from models.explain.peers import PeerAttribution, PeerGameConfig, attention_matrices, explain_peers
from models.explain.skill import SkillAttribution, SkillConfig, explain_skill
from models.fitting.fit import Fitted, NeuralFitted, untrained
from models.registry import MODELS
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.dataset.build import Dataset
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError, DataError
from pipelines.explain.faithfulness import FaithfulPart, FittedPart, measure_part
from pipelines.explain.trained import require_features
from pipelines.progress import Progress
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.record import Run
from pipelines.train.task import collect_arrays, to_tensors


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
    groups: tuple[GroupAttribution, ...]
    peers: tuple[PeerAttribution, ...]
    fits: tuple[tuple[int, int], ...]
    untrained: tuple[tuple[IntArray, FloatArray], ...]
    faithfulness: tuple[FaithfulPart, ...] = ()
    skill: tuple[SkillAttribution, ...] = ()


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


def explain_model(
    run: Run, dataset: Dataset, folds: list[Fold], name: str, progress: Progress
) -> ModelExplanation:
    """Play the games of one model on a sample of the test sessions of each fold.

    Parameters
    ----------
    run
        The run; its config says how many dates, firms and permutations are used.
    dataset
        Dataset of the run.
    folds
        Folds of the run.
    name
        Entry of ``models``.
    progress
        Gets one step per fold and seed.
    """
    settings = run.config.explain
    families = families_of(dataset.characteristic_names)
    groups: list[GroupAttribution] = []
    peers: list[PeerAttribution] = []
    fits: list[tuple[int, int]] = []
    initial: list[tuple[IntArray, FloatArray]] = []
    measured: list[FaithfulPart] = []
    skill: list[SkillAttribution] = []
    parts = len(folds) * len(run.config.seeds)
    for fold, seed, fitted, data in _fitted_models(run, dataset, folds, name):
        sessions = _with_universe(dataset, fold.test)
        own_seed = settings.seed + 1000 * fold.index + seed
        group_config = GroupGameConfig(
            permutations=settings.permutations,
            firms_per_date=settings.firms_per_date,
            engine=settings.engine,
            removal=settings.removal,
            share=settings.precision,
            seed=own_seed,
        )
        sample = evenly_spaced(sessions, max(1, settings.dates // parts))
        groups.append(_explain_groups(fitted, data, sample, families, group_config, fold.train))
        sample = _of_seed(run.config, sessions, settings.skill_dates, len(folds), seed)
        if len(sample):
            skill_config = SkillConfig(removal=settings.removal, seed=own_seed)
            skill.append(explain_skill(fitted, data, sample, families, skill_config, train=fold.train))
        network: tuple[PeerAttribution, ...] = ()
        if isinstance(fitted, NeuralFitted) and fitted.module.uses_peers:
            peer_config = PeerGameConfig(
                permutations=settings.network_permutations,
                max_firms=settings.max_peers,
                seed=settings.seed,
                sample_seed=settings.seed,  # the same firms are drawn in every fold
            )
            sample = _of_seed(run.config, sessions, settings.network_dates, len(folds), seed)
            network = explain_peers(fitted, data, sample, peer_config)
            peers += network
            fits += [(fold.index, seed)] * len(sample)
            initial += attention_matrices(untrained(fitted, seed), data, sample)
        if isinstance(fitted, NeuralFitted):
            place = run.config.seeds.index(seed)
            part = FittedPart(fold.index, seed, place, fitted, data, fold.train, sessions)
            measured.append(measure_part(part, network, settings))
        progress.step(f"{name} fold {fold.index} seed {seed}")
    return ModelExplanation(
        name, tuple(groups), tuple(peers), tuple(fits), tuple(initial), tuple(measured), tuple(skill)
    )


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


def _of_seed(config: Config, sessions: IntArray, dates: int, n_folds: int, seed: int) -> IntArray:
    """Sessions of a fold that one seed explains. Seeds take turns, so that every date counts once."""
    seeds = config.seeds
    of_fold = evenly_spaced(sessions, max(len(seeds), dates // n_folds) if dates else 0)
    return of_fold[seeds.index(seed) :: len(seeds)]


def _fitted_models(
    run: Run, dataset: Dataset, folds: list[Fold], name: str
) -> Iterator[tuple[Fold, int, Fitted, PanelTensors]]:
    """Load every fitted model of an entry with its fold's data; on one thread, as in training."""
    arrays = collect_arrays(dataset, run.config.features.window)
    device = resolve_device(run.config.device)
    with one_thread():
        for fold in folds:
            data: PanelTensors | None = None
            for seed in run.config.seeds:
                fitted, inputs = load_checkpoint(run.checkpoint(name, fold.index, seed))
                data = to_tensors(arrays, inputs, device) if data is None else data
                require_features(fitted, data, f"{name}, fold {fold.index}, seed {seed}")
                yield fold, seed, fitted, data


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
