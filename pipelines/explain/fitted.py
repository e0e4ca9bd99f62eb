"""The fitted models of a run: restored with their panel, their values as a table, and their unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from features.library.sets import characteristics_of
from features.library.standardise import MISSING
from models.batch import PanelTensors
from models.explain.groups import GroupAttribution
from models.fitted import Fitted
from models.fitting.losses import SCALE_FREE
from models.registry import MODELS
from pipelines.config.load import model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.errors import DataError
from pipelines.run.checkpoints import Checkpoint, checkpoint_config, checkpoint_exists
from pipelines.run.record import RecordedRun
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


_BASIS_POINTS = 1e4


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a model's forecasts and their Shapley values."""

    name: str  # ``bps`` (basis points of return), or empty if the forecasts are no returns
    factor: float  # what a forecast is multiplied by to be in this unit
    short: str  # for an API: ``return`` (a fraction), ``standard deviations`` of scores, or ``none``
    sentence: str  # what is forecast, in words


def unit_of(config: Config, model: str, *, calibrated: bool | None = True) -> Unit:
    """Unit of a model's forecasts; ``calibrated`` is None if no checkpoint is left that says so."""
    label, sessions = config.label, "session" if config.label.horizon == 1 else "sessions"
    entry = MODELS[registry_name(config, model)]
    if not entry.build.has_unit:
        return Unit("", 1.0, "none", f"none, because {model} is a fixed rule that only ranks firms")
    loss = model_settings(config, model).fit.loss
    if entry.kind == "neural" and loss in SCALE_FREE and not calibrated:
        why = (
            "no checkpoint is left that says whether its forecasts were calibrated"
            if calibrated is None
            else "its forecasts were not calibrated; train the config again"
        )
        return Unit("", 1.0, "none", f"none, because {model} was trained with fit.loss {loss} and {why}")
    what = "residual return" if label.residualise_factors else "return"
    over = f"{what} over {label.horizon} {sessions}"
    if label.transform in ("rank", "zscore"):
        scores = "normal scores of the rank" if label.transform == "rank" else "standard deviations"
        sentence = f"{scores} of the {over} on its date (label.transform is {label.transform}), not returns"
        return Unit("", 1.0, "standard deviations", sentence)
    demeaned = " minus its mean over the firms of the date" if label.transform == "demean" else ""
    return Unit("bps", _BASIS_POINTS, "return", over + demeaned)


def unit_of_run(run: RecordedRun, model: str) -> Unit:
    """Unit of the forecasts of a run's model, after a look at its stored fits."""
    folders = (run.folder / "checkpoints" / model).glob("fold-*-seed-*")
    stored = [checkpoint_config(folder) for folder in folders if checkpoint_exists(folder)]
    calibrated = all("calibration" in one for one in stored) if stored else None
    return unit_of(run.config, model, calibrated=calibrated)
