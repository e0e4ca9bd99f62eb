"""From the output of a network whose loss has no scale to the unit of the target.

The losses ``ic`` and ``pairwise`` compare the firms of a date with each other: a correlation is the same for
forecasts of any size, and the differences of ``pairwise`` are log odds. The outputs of a network that is
trained on a portfolio (``sharpe``, ``net_utility``) are weights. So the output of such a network has
no unit of return. A straight line from the output to the target, fitted on the validation sessions, gives it
one. The order of the firms stays as it is.

Legend: D dates, N firms, K horizons.
"""

import math
from dataclasses import dataclass

import numpy as np

from features.arrays import AnyFloatArray, FloatArray

_ROUNDING = 1e-7


@dataclass(frozen=True, slots=True)
class Line:
    """``forecast = intercept + slope * output``, for one horizon."""

    intercept: float
    slope: float
    """What is applied; the slope is positive, so that the order of the firms stays."""
    measured: float
    error: float
    """Slope by least squares, and its standard error with whole dates as the sampled units; NaN with a single
    date. Both are 0 for outputs that are all the same."""

    def __post_init__(self) -> None:
        """Check the numbers, which may come from a file."""
        if not (math.isfinite(self.intercept) and math.isfinite(self.slope) and self.slope > 0.0):
            raise ValueError(
                f"A calibration has the intercept {self.intercept} and the slope {self.slope}; both must be "
                "finite, and the slope positive."
            )

    @property
    def uncertain(self) -> bool:
        """Whether the slope is not two standard errors above 0: validation hardly knows the size."""
        return not (self.measured > 0.0 and self.measured >= 2.0 * self.error)


def calibrate(output_DNK: AnyFloatArray, target_DNK: AnyFloatArray) -> tuple[Line, ...]:
    """Fit the line of every horizon.

    ``b = sum_d mean_i (y - y_bar) (t - t_bar) / sum_d mean_i (y - y_bar)^2`` and ``a = t_bar - b y_bar``:
    least squares in which every date counts once, as in the losses. The error of ``b`` is clustered by date.
    With labels that overlap it is too small.

    The slope that is applied is ``b``, but at least its error. A smaller one cannot be told from 0 or from a
    negative one, either of which would undo or turn round the order that the model was chosen for.

    Parameters
    ----------
    output_DNK
        Outputs on the validation sessions; NaN outside the universe.
    target_DNK
        Targets that the model was fitted to; NaN where unknown, and for horizons without a target.

    Raises
    ------
    ValueError
        If a horizon has no known target.

    Examples
    --------
    >>> output = np.array([[1.0, 2.0, 4.0], [0.0, 3.0, 1.0]])[..., None]
    >>> round(calibrate(output, 0.01 * output - 0.02)[0].slope, 6)
    0.01
    """
    horizons = (np.moveaxis(one_DNK, 2, 0) for one_DNK in (output_DNK, target_DNK))
    return tuple(_line(output_DN, target_DN) for output_DN, target_DN in zip(*horizons, strict=True))


def carry_over(
    chosen: tuple[Line, ...], forecast_DNK: AnyFloatArray, output_DNK: AnyFloatArray
) -> tuple[Line, ...]:
    """Calibrate a model that was fitted again, on validation sessions as well, without their targets.

    A line that is fitted to targets which the model has learned would be too steep. The outputs of the two
    fits differ in size, so the line gives those of the new fit the mean and the spread over the validation
    sessions that the calibrated forecasts of the first fit, whose lines are ``chosen``, have there.
    """
    lines = []
    for line, forecast_DN, output_DN in zip(
        chosen, np.moveaxis(forecast_DNK, 2, 0), np.moveaxis(output_DNK, 2, 0), strict=True
    ):
        (mean, spread), (own_mean, own_spread) = (_moments(one_DN) for one_DN in (forecast_DN, output_DN))
        both = _varies(mean, spread) and _varies(own_mean, own_spread)
        slope = spread / own_spread if both else line.slope
        ratio = slope / line.slope
        lines.append(Line(mean - slope * own_mean, slope, line.measured * ratio, line.error * ratio))
    return tuple(lines)


def _line(output_DN: AnyFloatArray, target_DN: AnyFloatArray) -> Line:
    known_DN = np.isfinite(output_DN) & np.isfinite(target_DN)
    dates_D = known_DN.any(axis=1)
    if not dates_D.any():
        raise ValueError("No validation session has a known target; move the fold.")
    known_DN = known_DN[dates_D]
    weight_DN = known_DN / known_DN.sum(axis=1, keepdims=True) / dates_D.sum()
    y_DN, t_DN = (
        np.where(known_DN, one_DN[dates_D], 0.0).astype(np.float64) for one_DN in (output_DN, target_DN)
    )
    y_mean, t_mean = float((weight_DN * y_DN).sum()), float((weight_DN * t_DN).sum())
    y_DN, t_DN = y_DN - y_mean, t_DN - t_mean
    variance = float((weight_DN * y_DN**2).sum())
    if not _varies(y_mean, math.sqrt(variance)):
        return Line(t_mean - y_mean, 1.0, 0.0, 0.0)
    measured = float((weight_DN * y_DN * t_DN).sum()) / variance
    dates = len(known_DN)
    score_D = (weight_DN * y_DN * (t_DN - measured * y_DN)).sum(axis=1)
    error = math.sqrt(dates / (dates - 1) * float((score_D**2).sum())) / variance if dates > 1 else math.nan
    slope = abs(measured) if math.isnan(error) else max(measured, error)
    return Line(t_mean - slope * y_mean, slope, measured, error)


def _varies(mean: float, spread: float) -> bool:
    """Whether outputs differ by more than float32 rounds them."""
    return spread > _ROUNDING * abs(mean)


def _moments(one_DN: AnyFloatArray) -> tuple[float, float]:
    """Mean and standard deviation; every date counts once."""
    dates_DN = one_DN[np.isfinite(one_DN).any(axis=1)].astype(np.float64)
    mean = float(np.nanmean(dates_DN, axis=1).mean())
    spread: FloatArray = np.nanmean((dates_DN - mean) ** 2, axis=1)
    return mean, math.sqrt(float(spread.mean()))
