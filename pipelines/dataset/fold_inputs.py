"""Properties of model inputs that are fitted on a fold's training sessions: scaler and known groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backtest.splits.fold import Fold
from features.arrays import IntArray
from features.library.scaling import ChannelScaler, fit_channel_scaler
from pipelines.dataset.build import Dataset


@dataclass(frozen=True, slots=True, eq=False)
class FoldInputs:
    """Properties of a model's inputs that are fitted on a fold's training sessions; stored with the model.

    Attributes
    ----------
    scaler
        Scale of the channels.
    groups_G
        Codes of the groups with a firm in the universe on training sessions, ascending. A model has one
        embedding for each of them. With later groups included, the model's size and its random initialisation
        would depend on the future.
    """

    scaler: ChannelScaler
    groups_G: IntArray

    def known_groups(self, group_TN: npt.NDArray[np.integer]) -> IntArray:
        """Map the panel's codes to positions in ``groups_G``; -1 for any other group."""
        position_TN = np.searchsorted(self.groups_G, group_TN)
        known_TN = np.isin(group_TN, self.groups_G)
        positions_TN: IntArray = np.where(known_TN, position_TN, -1)
        return positions_TN


def fit_inputs(dataset: Dataset, fold: Fold) -> FoldInputs:
    """Fit the channel scaler and list the groups, on the fold's training sessions only."""
    groups_G = np.unique(dataset.panel.group_TN[fold.train][dataset.universe_TN[fold.train]])
    return FoldInputs(
        scaler=fit_channel_scaler(dataset.channels_TNC, dataset.universe_TN, fold.train),
        groups_G=groups_G[groups_G >= 0].astype(np.int64),
    )
