"""Properties of model inputs that are fitted on a fold's training sessions: scaler and known groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backtest.splits.folds import Fold
from features.arrays import BoolArray, IntArray
from features.library.scaling import ChannelScaler, fit_channel_scaler
from features.panel.panel import Panel
from pipelines.dataset.build import Dataset


@dataclass(frozen=True, slots=True, eq=False)
class FoldInputs:
    """Properties of a model's inputs that are fitted on a fold's training sessions; stored with the model.

    Attributes
    ----------
    scaler
        Scale of the channels.
    groups
        Names of the groups with a firm in the universe on training sessions, in the order of the panel's
        codes. A model has one embedding for each of them. With later groups included, the model's size and
        its random initialisation would depend on the future. Names are stored, because newer data may number
        the groups differently.
    """

    scaler: ChannelScaler
    groups: tuple[str, ...]

    def known_groups(self, group_TN: npt.NDArray[np.integer], groups_S: Sequence[str]) -> IntArray:
        """Map a panel's group codes to positions in ``groups``; -1 for any other group.

        Parameters
        ----------
        group_TN
            Codes, positions in ``groups_S``; -1 for unknown.
        groups_S
            Names of the panel's groups, by code.
        """
        position = {name: index for index, name in enumerate(self.groups)}
        of_code = np.array([*(position.get(name, -1) for name in groups_S), -1], dtype=np.int16)
        positions_TN: IntArray = of_code[group_TN]  # code -1 takes the last entry
        return positions_TN


def fit_inputs(dataset: Dataset, fold: Fold) -> FoldInputs:
    """Fit the channel scaler and list the groups, on the fold's training sessions only."""
    return FoldInputs(
        scaler=fit_channel_scaler(dataset.channels_TNC, dataset.universe_TN, fold.train),
        groups=groups_on(dataset.panel, dataset.universe_TN, fold.train),
    )


def groups_on(panel: Panel, universe_TN: BoolArray, sessions: IntArray) -> tuple[str, ...]:
    """Names of the groups with a firm in the universe on these sessions, in the order of their codes."""
    codes = np.unique(panel.group_TN[sessions][universe_TN[sessions]])
    return tuple(panel.groups_S[code] for code in codes[codes >= 0])
