"""Memory that a run needs, estimated before it starts, and the memory of its tasks.

It grows with the cells of the market (sessions x firms): prices and labels in the main process, scaled
channels and the model in each worker. Channels and characteristics are mapped files and do not count. The
bytes per cell were measured (docs/experiments/2026-11-23-growth.md).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pipelines.config.load import model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.errors import DataError
from pipelines.machine import CURE, GIB, PROCESS, Machine

_BUILD = 206  # bytes per cell while the dataset is made; 188 of them already while prices become a panel
_MARKET = 85  # bytes per cell of the panel and the universe
_TASK = 12  # bytes per cell of targets, universe and groups in a worker
_COMPARING = 10  # bytes per cell while a formula compares the firms of each date: values and groups
_COMPARED = 8  # bytes per cell of what each comparison has found, which formulas share
_NETWORK = 20  # bytes per cell of a network's training targets, and of its activations for a date
_PRICES = frozenset(("open", "high", "low", "close", "volume"))


@dataclass(frozen=True, slots=True)
class Need:
    """Memory in bytes: while the dataset is made, then of the main process and of the largest task."""

    build: float
    main: float
    task: float

    @property
    def least(self) -> float:
        """Memory of a run whose main process computes all tasks, one after the other."""
        return max(self.build, self.main + self.task - PROCESS)


def estimate_need(config: Config, cells: int) -> Need:
    """Estimate the memory of training on so many cells, with the features that prices allow."""
    from features.library.sets import characteristics_of, default_channels, default_characteristics

    features = config.features
    default = default_channels(features.set, config.plugins)
    channels = len(default if features.channels is None else features.channels)
    labels = 8 * (len(config.label.delays) + len(config.label.shorter_horizons))
    registry = characteristics_of(features.expressions)
    every = default_characteristics(features.set, features.expressions, config.plugins)
    from_prices = tuple(name for name in every if registry[name].needs <= _PRICES)
    names = from_prices if features.characteristics is None else features.characteristics
    models = {registry_name(config, model) for model in config.models}
    comparisons = comparisons_in(features.expressions.values())
    compared = _COMPARED * comparisons + _COMPARING * (comparisons > 0)
    return Need(
        build=PROCESS + cells * (_BUILD + compared),
        main=PROCESS + cells * (_MARKET + labels),
        task=task_need(models, cells, channels, len(names), most_lags(config)),
    )


def comparisons_in(formulas: Iterable[str]) -> int:
    """Number of different parts of formulas that compare firms, such as ``rank(close)``."""
    from features.library.expressions import Call, parse

    found, trees = set[Call](), list[object](map(parse, formulas))
    while trees:
        tree = trees.pop()
        if isinstance(tree, Call):
            found.update({tree} if tree.operator.across else ())
            trees += tree.arguments
    return len(found)


def most_lags(config: Config) -> int:
    """Most days of a window that a baseline of the config reads."""
    from models.forecaster import lags_of

    return max(lags_of(model_settings(config, model).options) for model in config.models)


def task_need(
    models: Collection[str], cells: int, channels: int, characteristics: int, lags: int = 0
) -> float:
    """Estimate the memory of a process that fits or explains one model at a time, beside the arrays."""
    from models.registry import MODELS

    needs = [
        cells * (_TASK + (_NETWORK + 4 * channels) * (model.reads_windows or lags > 0))
        + model.extra_memory(cells, characteristics + lags * channels)
        for model in (MODELS[name].build for name in models)
    ]
    return PROCESS + float(max(needs))


def require_memory(config: Config, cells: int, machine: Machine) -> None:
    """Refuse a run before it starts if the machine has less memory than it needs."""
    least = estimate_need(config, cells).least
    if least > machine.total:
        raise DataError(
            f"Training on {cells / 1e6:,.1f} million prices needs about {least / GIB:.1f} GiB of "
            f"memory with one worker, and this machine has {machine.total / GIB:.1f}; {CURE}"
        )
