"""The covariance of returns for the optimised book: a statistical factor model.

Shape suffixes: L sessions, M firms, K factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from features.arrays import FloatArray


class FactorCovariance(NamedTuple):
    """A covariance ``B B' + diag(s)`` of the returns of a session.

    Attributes
    ----------
    loading_MK : ndarray of shape (M, K)
        B: loadings on factors of variance 1.
    specific_M : ndarray of shape (M,)
        s: variance that the factors do not explain, above 0.
    volatility_M : ndarray of shape (M,)
        Standard deviation of each firm's returns.
    """

    loading_MK: FloatArray
    specific_M: FloatArray
    volatility_M: FloatArray

    @property
    def matrix(self) -> FloatArray:
        """The covariance, shape (M, M)."""
        covariance_MM: FloatArray = self.loading_MK @ self.loading_MK.T + np.diag(self.specific_M)
        return covariance_MM


def factor_covariance(return_LM: FloatArray, factors: int) -> FactorCovariance:
    """Estimate a covariance from the principal components of standardised returns.

    Returns are divided by each firm's standard deviation. The first K principal components are the factors,
    with K the smaller of ``factors`` and a tenth of the firms. What they leave of a firm's variance is
    specific to the firm: residual correlations, which 252 sessions cannot tell from noise for hundreds of
    firms, are shrunk to 0. Every variance is the sample's. At least 1% of it counts as specific.

    Parameters
    ----------
    return_LM : ndarray of shape (L, M)
        Returns of past sessions; NaN where unknown, for at most half of them. An unknown return counts as the
        firm's mean in the components.
    factors : int
        Largest number of factors, at least 1.

    Returns
    -------
    FactorCovariance
        Known at the close of the last session.

    Notes
    -----
    Connor and Korajczyk 1988 (factors from principal components); Fan, Fan and Lv 2008 (covariances from
    factor models when firms outnumber sessions).
    """
    mean_M = np.nanmean(return_LM, axis=0)
    volatility_M = np.nanstd(return_LM, axis=0, ddof=1)
    score_LM = np.nan_to_num((return_LM - mean_M) / volatility_M)
    score_LM /= np.sqrt((score_LM**2).sum(axis=0))  # so that score' score is a correlation matrix
    count = max(1, min(factors, score_LM.shape[1] // 10))
    _, size, vector = np.linalg.svd(score_LM, full_matrices=False)
    loading_MK = vector[:count].T * size[:count]
    specific_M = np.maximum(1.0 - (loading_MK**2).sum(axis=1), 0.01)
    loading_MK *= np.sqrt((1.0 - specific_M) / (loading_MK**2).sum(axis=1))[:, None]
    return FactorCovariance(loading_MK * volatility_M[:, None], specific_M * volatility_M**2, volatility_M)
