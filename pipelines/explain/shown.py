"""What pages know of explanations without PyTorch: the unit of the values, and names of tables."""

from dataclasses import dataclass
from typing import Final

import polars as pl

from pipelines.config.load import model_settings, registry_name
from pipelines.config.schema import Config
from pipelines.run.record import RecordedRun

START: Final = "attention before training"  # the method of the table ``recovery`` without learning
NET: Final = "explain_net"  # the table of a run that `pipelines.explain.net` makes
PER_YEAR: Final = ("gross", "cost", "net", "net_error")  # its columns that are shown as annual figures
_BASIS_POINTS: Final = 1e4


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a model's forecasts and their Shapley values."""

    name: str  # ``bps`` (basis points of return), or empty if the forecasts are no returns
    factor: float  # what a forecast is multiplied by to be in this unit
    short: str  # for an API: ``return`` (a fraction), ``standard deviations`` of scores, or ``none``
    sentence: str  # what is forecast, in words


def unit_of(config: Config, model: str, *, calibrated: bool | None = True) -> Unit:
    """Unit of a model's forecasts; ``calibrated`` is None if no checkpoint is left that says so."""
    from models.fitting.losses import SCALE_FREE
    from models.registry import MODELS

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
    from pipelines.run.checkpoints import checkpoint_config, checkpoint_exists

    folders = (run.folder / "checkpoints" / model).glob("fold-*-seed-*")
    stored = [checkpoint_config(folder) for folder in folders if checkpoint_exists(folder)]
    calibrated = all("calibration" in one for one in stored) if stored else None
    return unit_of(run.config, model, calibrated=calibrated)


def by_net(table: pl.DataFrame) -> pl.DataFrame:
    """Sort the players of a net return, the largest first, and put base and total at the end."""
    at_end = pl.col("kind").is_in(["base", "total"])
    return pl.concat([table.filter(~at_end).sort("net", descending=True), table.filter(at_end)])
