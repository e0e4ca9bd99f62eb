"""ensemble: a weighted sum of the forecasts of other models, standardised within each date.

The members are entries of ``models`` that are trained as such; an ensemble fits nothing but its weights.
Before it is added, a forecast is standardised over the firms that are forecast on its date:
``z = (f - mean f) / std f``, 0 where all forecasts of the date are equal. The forecast of a seed is

    ``y = a + b sum_k w_k c_k z_k``

with the forecasts of each member k by the same seed. The weights ``w`` are those of the members' averages
over seeds. ``c_k`` is the mean over the validation dates of 1 / std of the average over seeds of member k, so
that a member whose seeds disagree counts as much as if its average were standardised again; 1 for a single
seed. The line ``a, b`` gives the sum the unit of the target (`models.calibration`). All of them are chosen on
validation sessions, from forecasts of fits that have not been trained on these.

Legend: K members, S seeds, D dates, N firms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from features.arithmetic.transforms import zscore
from features.arrays import AnyFloatArray, Float32Array, FloatArray
from features.information_coefficient import ic_by_date, mean_known
from features.options import Options
from models.batch import Batch
from models.calibration import Line, calibrate
from models.fitted import EpochRecord, Fitted, FittedState, Tensors, damaged, require_same_shape
from models.forecaster import Registered
from models.spec import Positive, Shape


class EnsembleConfig(Options):
    """Options of ensemble."""

    members: tuple[str, ...] = Field(
        default=("lightgbm", "gru", "temporal_transformer", "temporal_peer"), min_length=1
    )
    """Entries of ``models`` that are combined. One that ``models`` does not list is added to it with the
    default settings. Instead of a list, a mapping gives the settings of those that are added:
    ``{lightgbm: {}, wide: {model: temporal_peer, peer_width: 64}}``."""
    weights: Literal["equal", "ic", "ridge"] = "equal"
    """How the weights are chosen, on validation: all ``equal``; in proportion to the mean IC of each member,
    or 0 if that is negative (``ic``); or by a ``ridge`` regression without negative weights
    (`models.ensemble.choose_weights`). Equal weights where no member has a positive IC."""
    penalty: Positive = 1.0
    """Penalty of ``ridge``. A large one gives the weights of ``ic``, and a small one the combination with the
    highest IC on the validation dates, which is fitted to their noise as well."""

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if len(set(self.members)) != len(self.members):
            raise ValueError(f"members is {list(self.members)}; name every member once")
        return self

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values; the penalty only for the weights that it decides."""
        settings = super().deciding()
        if self.weights != "ridge":
            del settings["penalty"]
        return settings


class Ensemble(Registered):
    """A weighted sum of the standardised forecasts of other entries of ``models``.

    Timmermann (2006), "Forecast combinations": equal weights are hard to beat, because the errors of
    estimated ones cost more than they gain, unless the members differ much in skill.
    """

    learns: ClassVar[bool] = False

    def __init__(self, config: EnsembleConfig, shape: Shape) -> None:
        raise ValueError("An ensemble is not fitted by itself; fit its members and combine their forecasts.")


@dataclass(frozen=True, slots=True)
class Combination:
    """The weights of the members of an ensemble, and the line to the unit of the target."""

    weights: tuple[float, ...]  # w: at least 0; their sum is 1
    scales: tuple[float, ...]  # c
    line: Line

    @property
    def factors(self) -> FloatArray:
        """What each member's standardised forecast is multiplied by, in the unit of the target."""
        factor_K: FloatArray = np.array(self.weights) * np.array(self.scales) * self.line.slope
        return factor_K

    def of_date(self, forecast_KN: Sequence[AnyFloatArray]) -> Float32Array:
        """Combine the forecasts of a date, all of the same firms."""
        total_N = np.full(len(forecast_KN[0]), self.line.intercept)
        for factor, forecast_N in zip(self.factors, forecast_KN, strict=True):
            mean, spread = moments(forecast_N)
            if spread > 0:
                total_N += factor * ((forecast_N - mean) / spread)
        return total_N.astype(np.float32)

    def of_dates(self, forecast_KDN: Sequence[AnyFloatArray]) -> Float32Array:
        """Combine the forecasts of several dates, NaN outside the universe, with the bits of each date."""
        out_DN = np.full(forecast_KDN[0].shape, np.nan, dtype=np.float32)
        for d, out_N in enumerate(out_DN):
            there_N = np.isfinite(forecast_KDN[0][d])
            if there_N.any():
                out_N[there_N] = self.of_date([forecast_DN[d, there_N] for forecast_DN in forecast_KDN])
        return out_DN


def moments(forecast_N: AnyFloatArray) -> tuple[float, float]:
    """Mean and standard deviation of the forecasts of a date; a deviation of 0 if all are equal."""
    value_N = forecast_N.astype(np.float64)
    return float(value_N.mean()), float(value_N.std()) if value_N.min() < value_N.max() else 0.0


def choose_weights(
    config: EnsembleConfig, forecast_KSDN: Sequence[Sequence[AnyFloatArray]], target_DN: AnyFloatArray
) -> tuple[FloatArray, FloatArray]:
    """Choose the weights and the scales of the members on validation dates.

    With the average over seeds of every member, standardised within each date, let ``r`` be their mean ICs
    and ``R`` the mean over dates of their correlations. ``ridge`` minimises ``w' R w - 2 r' w + penalty
    |w|^2`` over ``w >= 0``: least squares of the standardised target, in which every date counts once.

    Parameters
    ----------
    config
        Options of the ensemble.
    forecast_KSDN
        Forecasts of each member by each seed on the validation dates; NaN outside the universe.
    target_DN
        What the members are fitted to; NaN where unknown.

    Returns
    -------
    tuple of ndarray
        Weights and scales, one for each member.

    Examples
    --------
    >>> skilled, noise = np.array([[1.0, 2.0, 3.0, 5.0]]), np.array([[2.0, 1.0, 1.0, 2.0]])
    >>> weights, _ = choose_weights(EnsembleConfig(members=("a", "b"), weights="ic"), [[skilled], [noise]],
    ...     np.array([[0.1, 0.2, 0.3, 0.4]]))
    >>> weights.round(2)
    array([1., 0.])
    """
    mean_KDN = [
        np.mean([zscore(one_DN, np.isfinite(one_DN)) for one_DN in seeds], axis=0) for seeds in forecast_KSDN
    ]
    scales_K = np.array([_scale(mean_DN) for mean_DN in mean_KDN])
    weights_K = np.ones(len(mean_KDN))
    if config.weights != "equal":
        ic_K = np.nan_to_num([mean_known(ic_by_date(mean_DN, target_DN)) for mean_DN in mean_KDN])
        weights_K = np.maximum(ic_K, 0.0)
        if config.weights == "ridge":
            weights_K = _ridge(mean_KDN, ic_K, config.penalty)
    if not weights_K.sum() > 0:
        weights_K = np.ones(len(mean_KDN))
    return weights_K / weights_K.sum(), scales_K


def combine(
    config: EnsembleConfig,
    valid_KSDN: Sequence[Sequence[AnyFloatArray]],
    test_KSDN: Sequence[Sequence[AnyFloatArray]],
    target_DN: AnyFloatArray,
) -> list[tuple[Combination, Float32Array, Float32Array]]:
    """Combine the members' forecasts by every seed: how, and the validation and test forecasts.

    Only the forecasts and targets of the validation dates decide; arguments are those of `choose_weights`.
    """
    weights_K, scales_K = choose_weights(config, valid_KSDN, target_DN)
    found = []
    for valid_KDN, test_KDN in zip(zip(*valid_KSDN, strict=True), zip(*test_KSDN, strict=True), strict=True):
        plain = Combination(tuple(weights_K.tolist()), tuple(scales_K.tolist()), Line(0.0, 1.0, 0.0, 0.0))
        (line,) = calibrate(plain.of_dates(valid_KDN)[..., None], target_DN[..., None])
        own = Combination(plain.weights, plain.scales, line)
        found.append((own, own.of_dates(valid_KDN), own.of_dates(test_KDN)))
    return found


def _scale(mean_DN: FloatArray) -> float:
    """Mean of 1 / standard deviation over the dates; 1 if all forecasts of every date are equal."""
    spreads = [moments(mean_N[np.isfinite(mean_N)])[1] for mean_N in mean_DN if np.isfinite(mean_N).any()]
    known = [1.0 / spread for spread in spreads if spread > 0]
    return float(np.mean(known)) if known else 1.0


def _ridge(mean_KDN: Sequence[FloatArray], ic_K: FloatArray, penalty: float) -> FloatArray:
    from scipy.optimize import nnls

    correlation_KK = np.nan_to_num(
        [[mean_known(ic_by_date(one_DN, other_DN)) for other_DN in mean_KDN] for one_DN in mean_KDN]
    )
    # members that are equal, or known on other dates, leave a matrix that is not positive definite
    enough = max(penalty, 1e-9 - float(np.linalg.eigvalsh(correlation_KK)[0]))
    root_KK = np.linalg.cholesky(correlation_KK + enough * np.eye(len(ic_K)))
    weights_K: FloatArray = nnls(root_KK.T, np.linalg.solve(root_KK, ic_K))[0]
    return weights_K


class EnsembleFitted(Fitted):
    """An ensemble with its fitted members, so that it can be stored, restored and explained by itself."""

    def __init__(  # noqa: PLR0917  (a fit, and what it is made of)
        self,
        name: str,
        options: Options,
        shape: Shape,
        history: tuple[EpochRecord, ...],
        members: Mapping[str, Fitted],
        combination: Combination,
    ) -> None:
        super().__init__(name, options, shape, history)
        for member in members.values():
            require_same_shape(member.shape, shape, member.name)
        self.members, self.combination = dict(members), combination

    def forecast_date(self, batch: Batch) -> Float32Array:
        """Weighted sum of the members' standardised forecasts, in the unit of the target."""
        return self.combination.of_date([one.forecast_date(batch) for one in self.members.values()])

    def __call__(self, batch: Batch) -> Float32Array:
        """As :meth:`forecast_date`: an explainer takes an ensemble for a function of a batch."""
        return self.forecast_date(batch)

    def on_date(self, batch: Batch) -> tuple[float, list[float]]:
        """Write the forecasts of a date as ``y = a + sum_k b_k f_k`` with the members' forecasts f_k.

        The mean and the deviation that standardise a member's forecasts are those of the date, so the sum is
        exact for the batch itself, and for other inputs it holds them fixed.
        """
        intercept, slopes = self.combination.line.intercept, []
        for factor, member in zip(self.combination.factors, self.members.values(), strict=True):
            mean, spread = moments(member.forecast_date(batch))
            slopes.append(float(factor) / spread if spread > 0 else 0.0)
            intercept -= slopes[-1] * mean
        return intercept, slopes

    def to(self, device: torch.device | str) -> Self:
        """Move the weights of all members."""
        for member in self.members.values():
            member.to(device)
        return self

    def tensors(self) -> Tensors:
        """Arrays of all members; their names begin with that of the member."""
        named = {name: one.tensors() for name, one in self.members.items()}
        return {f"{name}/{key}": array for name, own in named.items() for key, array in own.items()}

    def state(self) -> FittedState:
        """Return everything that :func:`models.fitting.fit.restore` needs, with the members' states."""
        state, how = super().state(), self.combination
        state.config["weights"] = dict(zip(self.members, how.weights, strict=True))
        state.config["scales"] = dict(zip(self.members, how.scales, strict=True))
        state.config["calibration"] = [asdict(how.line)]
        state.config["members"] = {name: one.state().config for name, one in self.members.items()}
        return state


def restored_ensemble(
    fitted: tuple[str, Options, Shape, tuple[EpochRecord, ...]],
    state: FittedState,
    restore: Callable[[FittedState], Fitted],
) -> EnsembleFitted:
    """Rebuild an ensemble; ``restore`` rebuilds a member. ValueError, KeyError or TypeError if damaged."""
    config: Mapping[str, Any] = state.config
    names = tuple(config["config"]["members"])  # in the order in which they are added
    tensors: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, array in state.tensors.items():
        name, _, own = key.partition("/")
        if name not in tensors:
            raise damaged(f"model has a tensor {key!r} that no member has")
        tensors[name][own] = array
    members = {name: restore(FittedState(config["members"][name], tensors[name])) for name in names}
    (line,) = (Line(**stored) for stored in config["calibration"])
    weights, scales = (tuple(float(config[what][name]) for name in names) for what in ("weights", "scales"))
    return EnsembleFitted(*fitted, members, Combination(weights, scales, line))
