"""The fitted models of a run: restored with their panel, and their values as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from features.library.sets import characteristics_of
from features.library.standardise import MISSING
from models.batch import PanelTensors
from models.explain.groups import GroupAttribution
from models.fitted import Fitted
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.errors import DataError
from pipelines.run.checkpoints import Checkpoint
from pipelines.train.task import Arrays, to_tensors


@dataclass(frozen=True, slots=True, eq=False)
class FoldFits:
    """A fold's models by seed, and their panel with the label itself as target, as in the report."""

    seeds: Mapping[int, Fitted]
    data: PanelTensors
    groups: tuple[str, ...]


def restore_fits(
    checkpoints: Mapping[int, Checkpoint], arrays: Arrays, device: str, subject: str
) -> FoldFits:
    """Restore the models of a fold; DataError names the ``subject`` whose features are not the data's."""
    inputs = next(iter(checkpoints.values())).inputs
    labelled = replace(arrays, target_TN=arrays.label_TN.astype(np.float32))
    data = to_tensors(labelled, inputs, device)
    seeds = {}
    for seed, checkpoint in checkpoints.items():
        seeds[seed] = checkpoint.restore().to(device)
        _require_features(seeds[seed], data, f"{subject}, seed {seed}")
    return FoldFits(seeds, data, inputs.groups)


def families_of(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Family -> columns; a user's own inputs are the family ``input``, his expressions ``expression``."""
    families: dict[str, list[int]] = {}
    registry = characteristics_of()
    for column, name in enumerate(names):
        is_input = name.startswith(INPUT_PREFIX)
        feature = registry.get(name.removesuffix(MISSING))
        family = "input" if is_input else "expression" if feature is None else feature.family
        families.setdefault(family, []).append(column)
    return families


def value_table(found: GroupAttribution, tickers_N: Sequence[str]) -> pl.DataFrame:
    """One row per forecast and player, with Monte Carlo errors: base and values add up to the forecast."""
    players, forecasts = found.players, len(found.firms_E)
    return pl.DataFrame(
        {
            "ticker": np.repeat(np.asarray(tickers_N)[found.firms_E], len(players)),
            "kind": [player.kind for player in players] * forecasts,
            "player": [player.name for player in players] * forecasts,
            "value": found.values_EP.ravel(),
            "error": found.error_EP.ravel(),
            "base": np.repeat(found.base_E, len(players)),
            "forecast": np.repeat(found.forecast_E, len(players)),
        },
        schema_overrides=dict.fromkeys(("ticker", "kind", "player"), pl.String),
    )


def _require_features(fitted: Fitted, data: PanelTensors, subject: str) -> None:
    trained, given = fitted.shape, data.shape
    missing = [name for name in trained.characteristic_names if name not in given.characteristic_names]
    others = [name for name in given.characteristic_names if name not in trained.characteristic_names]
    found = [f"without {', '.join(others)}"] * bool(others) + [f"with {', '.join(missing)}"] * bool(missing)
    why = f" ({' and '.join(found)})" if found else ""
    for name in ("n_channels", "n_characteristics", "window", "n_groups"):
        own, of_data = getattr(trained, name), getattr(given, name)
        if not why and own != of_data:
            why = f": {name} is {own} in the model and {of_data} in the data"
    if why:
        raise DataError(
            f"{subject} was trained on other features than the run's data have{why}; restore the checkpoint "
            "from a backup, or train the run's config again."
        )
