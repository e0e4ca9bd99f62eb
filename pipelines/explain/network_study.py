"""The peer network of one model: the attributions it is made of, its weights and its tests.

Legend: N firms of the panel. Matrices are [target i, source j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network.weights import EdgeTests, PeerNetwork, attention_network, sum_dates
from models.explain.peers import PeerAttribution
from pipelines.dataset.build import Dataset


@dataclass(frozen=True, slots=True, eq=False)
class NetworkStudy:
    """The peer network of one model, over its folds and seeds.

    Attributes
    ----------
    model
        Entry of the config.
    peers
        One attribution per explained date.
    fits
        Fold and seed of the model that forecast each of these dates.
    dataset
        Dataset of the run.
    network, tests
        Weights over all dates, and their tests.
    attention
        Network of the mean attention on the same dates.
    seed
        Seed of the nulls.
    """

    model: str
    peers: Sequence[PeerAttribution]
    fits: Sequence[tuple[int, int]]
    dataset: Dataset
    network: PeerNetwork
    tests: EdgeTests
    attention: PeerNetwork
    seed: int

    @classmethod
    def of(
        cls,
        model: str,
        peers: Sequence[PeerAttribution],
        fits: Sequence[tuple[int, int]],
        dataset: Dataset,
        *,
        seed: int,
    ) -> NetworkStudy:
        """Sum the dates and test the edges; there must be at least one date."""
        sums = sum_dates(peers, dataset.panel.n_firms)
        attention = attention_network(peers, dataset.panel.n_firms)
        return cls(model, peers, fits, dataset, sums.network(), sums.tests(), attention, seed)

    @property
    def found(self) -> BoolArray:
        """Bool [N, N]: the edges that were found, with a false discovery rate of 5%."""
        return self.tests.found()

    @property
    def groups(self) -> IntArray:
        """Group code of every firm on the last explained date; -1 is unknown."""
        group_N: IntArray = self.dataset.panel.group_TN[int(self.peers[-1].session)].astype(np.int64)
        return group_N

    @property
    def tickers(self) -> npt.NDArray[np.str_]:
        """Tickers of the panel."""
        return np.asarray(self.dataset.panel.tickers_N)

    def network_of(self, *, fold: int | None = None, seed: int | None = None) -> PeerNetwork:
        """Network of the dates of one fold or one seed."""
        parts = [
            part
            for part, fit in zip(self.peers, self.fits, strict=True)
            if fold in (None, fit[0]) and seed in (None, fit[1])
        ]
        return sum_dates(parts, self.dataset.panel.n_firms).network()


def session_returns(dataset: Dataset) -> FloatArray:
    """Simple total return of every firm over each session; NaN on the first one and where unknown."""
    index_TN = dataset.panel.total_return_index_TN
    return_TN = np.full(index_TN.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return_TN[1:] = index_TN[1:] / index_TN[:-1] - 1.0
    return_TN[~np.isfinite(return_TN)] = np.nan
    return return_TN
