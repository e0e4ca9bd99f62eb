"""Power laws of the excess loss over parameters, training sessions and compute (used by ``scaling``).

The excess loss is the loss of a model minus the loss of the truth's own forecast on the same cells. It is
described by ``E + A N^-a + B D^-b`` for N parameters and D training sessions, the form of Hoffmann et al.
(2022), "Training Compute-Optimal Large Language Models". The noise of the labels is in the truth's loss, so
E is only what no size of the model can represent. Intervals come from a
bootstrap over blocks of test sessions and over seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from features.arrays import FloatArray

_STARTS = tuple(itertools.product((0.2, 0.5, 1.0), repeat=2))  # exponents that the fit starts from
_LARGEST_EXPONENT = 3.0


@dataclass(frozen=True)
class Law:
    """``excess = E + A N^-a + B D^-b``, and how well it fits.

    Attributes
    ----------
    floor
        E, at least 0.
    log_a, exponent_n
        ``ln A`` and ``a``.
    log_b, exponent_d
        ``ln B`` and ``b``.
    error
        Root mean square of ``ln(excess / law)`` over the cells.
    """

    floor: float
    log_a: float
    exponent_n: float
    log_b: float
    exponent_d: float
    error: float

    def excess(self, n: FloatArray | float, d: FloatArray | float) -> FloatArray:
        """Excess loss of N parameters after D training sessions."""
        of_n = np.exp(self.log_a - self.exponent_n * np.log(n))
        found: FloatArray = self.floor + of_n + np.exp(self.log_b - self.exponent_d * np.log(d))
        return found

    def best_size_exponent(self) -> float:
        """Exponent of the best N in compute, if compute is proportional to ``N D``: ``b / (a + b)``."""
        return self.exponent_d / (self.exponent_n + self.exponent_d)


def fit_law(n_C: FloatArray, d_C: FloatArray, excess_C: FloatArray) -> Law:
    """Fit the law to the cells with a positive excess, by least squares in the logarithm.

    Parameters
    ----------
    n_C, d_C
        Parameters and training sessions of each cell.
    excess_C
        Excess loss of each cell.

    Raises
    ------
    ValueError
        With fewer than six cells of positive excess.
    """
    usable_C = excess_C > 0
    if usable_C.sum() < 6:
        raise ValueError(f"{usable_C.sum()} cells have a positive excess loss; the law needs six.")
    log_n, log_d, target = (np.log(value_C[usable_C]) for value_C in (n_C, d_C, excess_C))
    centre_n, centre_d = log_n.mean(), log_d.mean()

    def gaps(parameters: FloatArray) -> FloatArray:
        of_n = parameters[0] - parameters[1] * (log_n - centre_n)
        of_d = parameters[2] - parameters[3] * (log_d - centre_d)
        found: FloatArray = np.log(parameters[4] * least + np.exp(of_n) + np.exp(of_d)) - target
        return found

    level, least = float(target.mean()) - np.log(2.0), float(np.exp(target.min()))
    found = min(
        (
            least_squares(
                gaps,
                (level, a, level, b, 0.1),
                bounds=([-np.inf, 0.0, -np.inf, 0.0, 0.0], [np.inf, _LARGEST_EXPONENT] * 2 + [np.inf]),
            )
            for a, b in _STARTS
        ),
        key=lambda one: float(one.cost),
    )
    at_n, a, at_d, b, share = (float(value) for value in found.x)
    error = float(np.sqrt(np.mean(found.fun**2)))
    return Law(share * least, at_n + a * centre_n, a, at_d + b * centre_d, b, error)


def best_of_each(d_C: FloatArray, n_C: FloatArray, excess_C: FloatArray) -> dict[float, tuple[float, bool]]:
    """For every D with three sizes or more, the size of least excess, and whether the sizes enclose it.

    The size is the minimum of a parabola through ``ln excess`` over ``ln N``; where the sizes do not enclose
    a minimum, the size of least excess itself.
    """
    best: dict[float, tuple[float, bool]] = {}
    for d in np.unique(d_C):
        own_C = (d_C == d) & (excess_C > 0)
        if own_C.sum() < 3:
            continue
        log_n, log_excess = np.log(n_C[own_C]), np.log(excess_C[own_C])
        curve, slope, _ = np.polyfit(log_n, log_excess, 2)
        bottom = -slope / (2 * curve) if curve > 0 else np.nan
        inside = bool(log_n.min() < bottom < log_n.max())
        best[float(d)] = (float(np.exp(bottom if inside else log_n[log_excess.argmin()])), inside)
    return best


def power(x: Sequence[float] | FloatArray, y: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Slope and level of ``ln y = level + slope ln x`` by least squares."""
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    return float(slope), float(level)


def frontier(flops_C: FloatArray, excess_C: FloatArray) -> list[int]:
    """Cells that no cell with as few floating-point operations undercuts, by rising operations."""
    kept: list[int] = []
    for cell in np.lexsort((excess_C, flops_C)):
        if excess_C[cell] > 0 and (not kept or excess_C[cell] < excess_C[kept[-1]]):
            kept.append(int(cell))
    return kept


def resampled(excess_CSK: FloatArray, draws: int, seed: int = 0) -> Iterator[FloatArray]:
    """Draw the excess of all cells again: test blocks in common, and the seeds of each cell.

    Parameters
    ----------
    excess_CSK
        Excess by cell, seed and block of sessions; NaN for a seed that a cell lacks.

    Yields
    ------
    array [C]
        Mean over drawn seeds and blocks.
    """
    rng = np.random.default_rng(seed)
    cells, _, blocks = excess_CSK.shape
    has_CS = np.isfinite(excess_CSK[:, :, 0])
    for _ in range(draws):
        taken_K = rng.integers(blocks, size=blocks)
        mean_CS = excess_CSK[:, :, taken_K].mean(axis=2)
        yield np.array(
            [
                np.mean(rng.choice(mean_CS[cell, has_CS[cell]], size=has_CS[cell].sum()))
                for cell in range(cells)
            ]
        )


def interval(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """The central 95% of the values; NaN without values."""
    if not len(values):
        return np.nan, np.nan
    low, high = np.percentile(np.asarray(values), [2.5, 97.5])
    return float(low), float(high)
