"""The panel that stored models are explained on, and whether they were trained on its features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.batch import PanelTensors
from models.fitted import Fitted
from pipelines.dataset.fold_inputs import FoldInputs
from pipelines.errors import DataError
from pipelines.train.task import Arrays, to_tensors


def explained_panel(arrays: Arrays, inputs: FoldInputs, device: str) -> PanelTensors:
    """A fold's panel with the label as its target.

    The rank IC that an explanation divides, or that attention is measured by, is then that of the report. The
    target of training can be clipped, ranked or a residual.
    """
    return to_tensors(replace(arrays, target_TN=arrays.label_TN.astype(np.float32)), inputs, device)


def require_features(fitted: Fitted, data: PanelTensors, subject: str) -> None:
    """Check that a stored model fits the data.

    Parameters
    ----------
    fitted
        The model.
    data
        The panel.
    subject
        The model as named in an error: its name, fold and seed.

    Raises
    ------
    DataError
        If the model was trained on other features, windows or groups than the data have.
    """
    trained, given = fitted.shape, data.shape
    cure = "restore the checkpoint from a backup, or train the run's config again."
    missing = [name for name in trained.characteristic_names if name not in given.characteristic_names]
    others = [name for name in given.characteristic_names if name not in trained.characteristic_names]
    if missing or others:
        parts = [f"without {', '.join(others)}"] * bool(others) + [f"with {', '.join(missing)}"] * bool(
            missing
        )
        raise DataError(
            f"{subject} was trained on other features than the run's data have "
            f"({' and '.join(parts)}); {cure}"
        )
    for name in ("n_channels", "n_characteristics", "window", "n_groups"):
        if getattr(trained, name) != getattr(given, name):
            raise DataError(
                f"{subject} was trained on other features than the run's data have: {name} is "
                f"{getattr(trained, name)} in the model and {getattr(given, name)} in the data; {cure}"
            )
