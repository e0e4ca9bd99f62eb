"""In which unit a run's model forecasts, so that a page shows returns where they are returns."""

from __future__ import annotations

from dataclasses import dataclass

from models.fitting.losses import SCALE_FREE
from models.registry import MODELS
from pipelines.config.load import settings_of
from pipelines.config.models import registry_name
from pipelines.config.schema import Config
from pipelines.run.checkpoints import checkpoint_config, checkpoint_exists
from pipelines.run.record import Run

_BASIS_POINTS = 1e4


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a model's forecasts and their Shapley values."""

    name: str  # ``bps`` (basis points of return), or empty if the forecasts are no returns
    factor: float  # what a forecast is multiplied by to be in this unit
    short: str  # for an API: ``return`` (a fraction), ``standard deviations`` of normal scores, or ``none``
    sentence: str  # what is forecast, in words


def unit_of(config: Config, model: str, *, calibrated: bool | None = True) -> Unit:
    """Unit of a model's forecasts.

    Parameters
    ----------
    calibrated
        Whether a model whose loss has no scale was calibrated on validation (`models.calibration`); None if
        no checkpoint is left that says so.
    """
    label, sessions = config.label, "session" if config.label.horizon == 1 else "sessions"
    entry = MODELS[registry_name(config, model)]
    if not getattr(entry.build, "has_unit", True):
        return Unit("", 1.0, "none", f"none, because {model} is a fixed rule that only ranks firms")
    loss = settings_of(config, model)[1]["loss"]
    if entry.kind == "neural" and loss in SCALE_FREE and not calibrated:
        why = (
            "no checkpoint is left that says whether its forecasts were calibrated"
            if calibrated is None
            else "its forecasts were not calibrated; train the config again"
        )
        return Unit("", 1.0, "none", f"none, because {model} was trained with fit.loss {loss} and {why}")
    what = "residual return" if label.residualise_factors else "return"
    over = f"{what} over {label.horizon} {sessions}"
    if label.transform == "rank":
        sentence = (
            f"normal scores of the rank of the {over} on its date (label.transform is rank), not returns"
        )
        return Unit("", 1.0, "standard deviations", sentence)
    demeaned = " minus its mean over the firms of the date" if label.transform == "demean" else ""
    return Unit("bps", _BASIS_POINTS, "return", over + demeaned)


def unit_of_run(run: Run, model: str) -> Unit:
    """Unit of the forecasts of a run's model, after a look at its stored fits."""
    folders = (run.folder / "checkpoints" / model).glob("fold-*-seed-*")
    stored = [checkpoint_config(folder) for folder in folders if checkpoint_exists(folder)]
    calibrated = all("calibration" in one for one in stored) if stored else None
    return unit_of(run.config, model, calibrated=calibrated)
