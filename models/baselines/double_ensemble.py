"""double_ensemble: gradient-boosted trees with learned weights of the cells and chosen characteristics.

Legend: N firms, F characteristics, M known cells of the training dates, R cells that are drawn from them,
V validation dates.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from features.arrays import BoolArray, FloatArray, IntArray
from features.information_coefficient import average_ranks, ic_by_date, mean_known, rank_ic_by_date
from models.baselines.lightgbm import LightGBM, LightGBMConfig, scaled_targets, targets_by_date
from models.batch import PanelTensors
from models.fitted import EpochRecord, OnEpoch, best_record, no_report
from models.forecaster import known_cells, pad_by_date
from models.spec import Choice, Count, Range, Shape, Space, Value

_SCORES = 8 * 8  # bytes per cell of the losses and their ranks


class DoubleEnsembleConfig(LightGBMConfig):
    """Options of double_ensemble: those of each sub-model (`LightGBMConfig`), and its own."""

    sub_models: Count = 6
    """K, largest number of sub-models; validation chooses how many are kept."""
    reweight: bool = True
    """Whether the cells of a sub-model are weighted by the losses of those before it."""
    select: bool = True
    """Whether a sub-model reads only the characteristics that were drawn for it."""
    loss_share: float = Field(default=1.0, ge=0)
    """alpha_1, weight of a cell's loss in its h-value."""
    curve_share: float = Field(default=1.0, ge=0)
    """alpha_2, weight of the trend of a cell's loss while the last sub-model was trained."""
    weight_bins: Count = 10
    """Number of bins of the h-values; the cells of a bin have the same weight."""
    decay: float = Field(default=0.5, gt=0, le=1)
    """gamma: the weights after k sub-models depend on ``gamma^k`` times the h-value."""
    ratios: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(0.8, 0.7, 0.6, 0.5, 0.4), min_length=1
    )
    """Share of the characteristics that is drawn from each bin of g-values, from the most useful bin on."""
    shuffled_cells: Count = 10_000
    """Number of training cells, drawn at random, on which g-values are measured."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.loss_share + self.curve_share == 0:
            raise ValueError("loss_share and curve_share are 0; set one of them, or set reweight to false.")
        return self


class DoubleEnsemble(LightGBM):
    """The mean of up to K models of trees; each learns from the losses of those before it.

    After sub-model k, a cell has the h-value ``alpha_1 rank(-loss) + alpha_2 rank(rank(end) / rank(start))``,
    where ``loss`` is the squared error of the mean of the sub-models, and ``start`` and ``end`` are squared
    errors of sub-model k after a tenth of its trees and after all. A high value marks a cell that is easy, or
    whose loss does not fall because it is noise. The next sub-model weighs the cells of each of the bins of
    equal width by ``1 / (gamma^k mean(h) + 0.1)`` (:func:`cell_weights`). The g-value of a characteristic is
    the mean over its standard deviation of what the squared errors gain when the characteristic is permuted
    among the cells; the next sub-model reads a share of the characteristics of each bin of g-values
    (:func:`draw_characteristics`).

    The first sub-model is `LightGBM` with the same options and seed. Each is stopped early on validation.

    Zhang, Li, Chen, Bian, Xu, Chen, Qin and Zhang (2020), "DoubleEnsemble: A new ensemble method based on
    sample reweighting and feature selection for financial data analysis", ICDM. Different from the paper:
    validation chooses the number of trees of a sub-model, and how many sub-models are kept (there, both are
    fixed); a loss curve is read at two points (there, its ranks are averaged over the first and the last
    tenth of the iterations); and g-values are measured on ``shuffled_cells`` cells, not on all.
    """

    quick: ClassVar[Mapping[str, Value]] = {**LightGBM.quick, "sub_models": 2, "shuffled_cells": 200}
    space: ClassVar[Space] = {
        **LightGBM.space,
        "sub_models": Range(3, 6, integer=True),
        "decay": Range(0.3, 1.0),
        "curve_share": Choice((0.0, 1.0)),
    }
    config: DoubleEnsembleConfig
    name = "double_ensemble"

    @classmethod
    def extra_memory(cls, cells: int, characteristics: int) -> float:
        """Add the losses of the cells and their ranks to what a sub-model needs."""
        return super().extra_memory(cells, characteristics) + _SCORES * cells

    def __init__(self, config: DoubleEnsembleConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.shape = shape

    def fit(
        self, data: PanelTensors, train: IntArray, valid: IntArray, *, seed: int, on_epoch: OnEpoch
    ) -> tuple[EpochRecord, ...]:
        """Add sub-models; keep the number with the best validation score.

        A record is the score of the mean of the sub-models so far. Its index counts the evaluations up to the
        best one of each sub-model, from 0, which says how many trees the mean has.
        """
        y_VM, taken = targets_by_date(data, valid), -1
        total_M, ends = np.zeros(sum(map(len, y_VM))), np.cumsum([len(y_M) for y_M in y_VM])[:-1]
        history: list[EpochRecord] = []
        members: list[LightGBM] = []
        started = time.perf_counter()
        for member, member_seed in self._members(data, train, seed):
            found = member.fit(data, train, valid, seed=member_seed, on_epoch=no_report)
            members.append(member)
            taken += 1 + best_record(found, self.config.stop_on)
            total_M += self._raw(member, data, valid)
            mean_VM = pad_by_date(np.split(total_M, ends))
            rank_ic = mean_known(rank_ic_by_date(mean_VM, pad_by_date(y_VM)))
            ic, seconds = mean_known(ic_by_date(mean_VM, pad_by_date(y_VM))), time.perf_counter() - started
            history.append(EpochRecord(taken, np.nan, rank_ic, self.config.learning_rate, seconds, ic))
            on_epoch(history[-1])
            started = time.perf_counter()
        self._join(members[: 1 + best_record(history, self.config.stop_on)])
        return tuple(history)

    def refit(
        self, data: PanelTensors, dates: IntArray, history: Sequence[EpochRecord], *, seed: int
    ) -> None:
        """Fit the best number of sub-models, each with its number of trees."""
        kept, before, members = history[: 1 + best_record(history, self.config.stop_on)], -1, []
        for record, (member, member_seed) in zip(kept, self._members(data, dates, seed), strict=False):
            member.grow(data, dates, record.epoch - before, seed=member_seed)
            members.append(member)
            before = record.epoch
        self._join(members)

    def _members(self, data: PanelTensors, dates: IntArray, seed: int) -> Iterator[tuple[LightGBM, int]]:
        """Yield sub-models to be fitted in turn, with their seeds; each depends on the fits before it."""
        config, y_M = self.config, scaled_targets(data, dates)[0].astype(np.float64)
        members: list[LightGBM] = []
        total_M, weight_M, reads_F = np.zeros(len(y_M)), None, None
        for k in range(config.sub_models):
            rng = np.random.default_rng((seed, k))
            if k:
                trees = members[-1].trees()[0].current_iteration()
                start_M = self._raw(members[-1], data, dates, math.ceil(trees / 10))
                end_M = self._raw(members[-1], data, dates)
                total_M += end_M
                if config.reweight:
                    mean_M = total_M / k
                    start_M, end_M, mean_M = ((raw_M - y_M) ** 2 for raw_M in (start_M, end_M, mean_M))
                    weight_M = cell_weights(start_M, end_M, mean_M, k, config)
                if config.select:
                    at_R = np.sort(rng.permutation(len(y_M))[: config.shuffled_cells])
                    g_F = self._g_values(members, _cells_at(data, dates, at_R, config.lags), y_M[at_R], rng)
                    reads_F = draw_characteristics(g_F, config.ratios, rng)
            member = LightGBM(config, self.shape)
            member.threads, member.name = self.threads, self.name
            member.weight_M, member.reads_F = weight_M, reads_F
            members.append(member)
            yield member, int(rng.integers(2**31)) if k else seed

    def _raw(
        self, member: LightGBM, data: PanelTensors, dates: IntArray, trees: int | None = None
    ) -> FloatArray:
        """Output of the first trees of a sub-model for the known cells of some dates."""
        return np.concatenate(
            [
                self._predict(member, known_cells(data, int(t), self.config.lags)[0], num_iteration=trees)
                for t in dates
            ]
        )

    def _predict(self, member: LightGBM, z_MF: FloatArray, **which: int | None) -> FloatArray:
        raw_M: FloatArray = member.trees()[0].predict(z_MF, num_threads=self._threads, **which)
        return raw_M

    def _g_values(
        self, members: Sequence[LightGBM], z_RF: FloatArray, y_R: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """What the squared errors of the mean gain if a characteristic is permuted: mean over deviation."""

        def losses() -> FloatArray:
            mean_R = np.mean([self._predict(member, z_RF) for member in members], axis=0)
            return np.asarray((mean_R - y_R) ** 2)

        before_R, g_F = losses(), np.zeros(z_RF.shape[1])
        for f in range(len(g_F)):
            own_R = z_RF[:, f].copy()
            z_RF[:, f] = rng.permutation(own_R)
            gain_R = losses() - before_R
            g_F[f] = gain_R.mean() / (gain_R.std() + 1e-7)
            z_RF[:, f] = own_R
        return g_F

    def _join(self, members: Sequence[LightGBM]) -> None:
        """Become the mean of sub-models: one model of all their trees, with a part of their scale."""
        import lightgbm as lgb  # slow import, needed only here

        joined = lgb.Booster(model_str=joined_text([member.text for member in members]))
        self.text = joined.model_to_string()
        self._booster = lgb.Booster(model_str=self.text)
        self._scale = members[0].trees()[1] / len(members)


def cell_weights(
    start_M: FloatArray, end_M: FloatArray, loss_M: FloatArray, k: int, config: DoubleEnsembleConfig
) -> FloatArray:
    """Weights of the cells after k sub-models: ``1 / (gamma^k mean of the bin's h-values + 0.1)``.

    ``start`` and ``end`` are squared errors of the last sub-model after a tenth of its trees, and after all;
    ``loss`` those of the mean of the k sub-models.

    An easy cell, one that is being learned, and one that cannot be learned.

    >>> start_M, end_M = np.array([1.0, 9.0, 4.0]), np.array([0.1, 3.0, 9.0])
    >>> cell_weights(start_M, end_M, end_M, 1, DoubleEnsembleConfig(weight_bins=3)).round(2).tolist()
    [1.07, 1.67, 1.3]
    """

    def share(x_M: FloatArray) -> FloatArray:
        rank_M: FloatArray = average_ranks(x_M[None])[0]
        return rank_M / len(x_M)

    trend_M = share(share(end_M) / share(start_M))
    h_M = config.loss_share * share(-loss_M) + config.curve_share * trend_M
    bin_M = _bins(h_M, config.weight_bins)
    count_B = np.bincount(bin_M, minlength=config.weight_bins)
    mean_B = np.bincount(bin_M, h_M, config.weight_bins) / np.maximum(count_B, 1)
    return np.asarray((1.0 / (config.decay**k * mean_B + 0.1))[bin_M])


def draw_characteristics(g_F: FloatArray, ratios: Sequence[float], rng: np.random.Generator) -> BoolArray:
    """Draw a share of the characteristics of each bin of g-values; the first share is of the highest bin.

    >>> g_F = np.array([0.0, 0.1, 5.0, 4.9])
    >>> draw_characteristics(g_F, (1.0, 0.4), np.random.default_rng(0))[2:].tolist()
    [True, True]
    """
    bin_F, drawn_F = _bins(-g_F, len(ratios)), np.zeros(len(g_F), dtype=np.bool_)
    for index, ratio in enumerate(ratios):
        of_bin = np.flatnonzero(bin_F == index)
        drawn_F[rng.permutation(of_bin)[: math.ceil(ratio * len(of_bin))]] = True
    return drawn_F


def joined_text(texts: Sequence[str]) -> str:
    """Join the trees of models in LightGBM's text format: a model whose output is the sum of theirs."""
    first, end = texts[0].index("Tree=0\n"), "end of trees"
    trees = [
        f"Tree={index}\n{tree}"
        for index, tree in enumerate(
            tree
            for text in texts
            for tree in re.split(r"^Tree=\d+\n", text[: text.index(end)], flags=re.MULTILINE)[1:]
        )
    ]
    sizes = "tree_sizes=" + " ".join(str(len(tree)) for tree in trees)
    head = re.sub(r"^tree_sizes=.*$", sizes, texts[0][:first], flags=re.MULTILINE)
    return head + "".join(trees) + texts[0][texts[0].index(end) :]


def _bins(x: FloatArray, count: int) -> IntArray:
    """Bin of each number, of bins of equal width from the lowest to the highest."""
    inner = np.linspace(x.min(), x.max(), count + 1)[1:-1]
    return np.searchsorted(inner, x, side="left").astype(np.int64)


def _cells_at(data: PanelTensors, dates: IntArray, at_R: IntArray, lags: int) -> FloatArray:
    """Characteristics [R, F] of some of the known cells of the dates, which are counted in turn."""
    first, rows = 0, []
    for date in dates:
        z_MF = known_cells(data, int(date), lags)[0]
        rows.append(z_MF[at_R[(at_R >= first) & (at_R < first + len(z_MF))] - first])
        first += len(z_MF)
    return np.concatenate(rows)
