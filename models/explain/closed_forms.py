"""Shapley values of single characteristics in closed form: linear models and trees, by shap.

Both engines compute exactly, for one feature each, what sampling engines estimate for the same background:
the other firms of the date, or a sample of the training fold. The values of a player are the sums over its
columns. For a linear model, and for players of one column, they are the values of the player's own game. For
trees and a family of several columns they are not: interactions of two columns are shared between their
families column by column. The exact engine plays the game of families.

Legend: N firms of a date, F characteristics, S background cells, P players, E explained forecasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.arrays import FloatArray
from models.explain.shapley import ShapleyValues


@dataclass(frozen=True, slots=True, eq=False)
class Background:
    """What absent characteristics are replaced with.

    Attributes
    ----------
    z_SF
        Background cells.
    with_firms
        Whether they are the firms of the date themselves. A firm's own cell is then not part of its
        background.
    """

    z_SF: FloatArray
    with_firms: bool


def linear_values(
    coefficient_F: FloatArray,
    intercept: float,
    z_EF: FloatArray,
    background: Background,
    columns_P: tuple[tuple[int, ...], ...],
) -> ShapleyValues:
    """Values of ``a + z . w``: ``sum over the columns of w_c (z_c - mean background_c)``.

    By ``shap.LinearExplainer`` with an independent masker.
    """
    import shap

    explainer = shap.LinearExplainer((coefficient_F, intercept), _masker(background))
    values_EF = np.asarray(explainer.shap_values(z_EF), dtype=np.float64).reshape(len(z_EF), -1)
    return _aggregated(values_EF, lambda z_XF: z_XF @ coefficient_F + intercept, z_EF, background, columns_P)


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A LightGBM booster, and the scale of its output."""

    booster: Any
    scale: float

    def predict(self, z_XF: FloatArray) -> FloatArray:
        """Forecasts of some cells."""
        y_X: FloatArray = self.scale * np.asarray(self.booster.predict(z_XF), dtype=np.float64)
        return y_X


def tree_values(
    trees: Trees, z_EF: FloatArray, background: Background, columns_P: tuple[tuple[int, ...], ...]
) -> ShapleyValues:
    """Values of a sum of trees, by ``shap.TreeExplainer`` with interventional perturbation.

    Lundberg et al. (2020), "From local explanations to global understanding with explainable AI for trees".
    """
    import shap

    explainer = shap.TreeExplainer(
        trees.booster, data=_masker(background), feature_perturbation="interventional", model_output="raw"
    )
    values_EF = np.asarray(explainer.shap_values(z_EF, check_additivity=False), dtype=np.float64)
    return _aggregated(trees.scale * values_EF, trees.predict, z_EF, background, columns_P)


def _masker(background: Background) -> object:
    """All background cells; shap would draw a sample of its own."""
    import shap

    return shap.maskers.Independent(background.z_SF, max_samples=len(background.z_SF))


def _aggregated(
    values_EF: FloatArray,
    predict: Callable[[FloatArray], FloatArray],
    z_EF: FloatArray,
    background: Background,
    columns_P: tuple[tuple[int, ...], ...],
) -> ShapleyValues:
    """Sum over the columns of the players, without each firm's own cell in its background."""
    base_E = np.full(len(z_EF), float(predict(background.z_SF).mean()))
    cells = len(background.z_SF)
    if background.with_firms and cells > 1:
        # against its own cell a firm's values are 0, so the mean over the others is larger by N / (N - 1)
        values_EF = values_EF * (cells / (cells - 1))
        base_E = (cells * base_E - predict(z_EF)) / (cells - 1)
    values_PE = np.stack([values_EF[:, list(columns)].sum(axis=1) for columns in columns_P])
    return ShapleyValues(values_PE, base_E, np.zeros_like(values_PE))


def columns_of(players: tuple[tuple[str, tuple[int, ...]], ...], engine: str) -> tuple[tuple[int, ...], ...]:
    """Columns of the players, given as kind and members.

    Raises
    ------
    ValueError
        If a player does not consist of characteristics.
    """
    for kind, _ in players:
        if kind != "family":
            raise ValueError(
                f"Engine {engine} explains characteristics only, and there is a player of kind {kind}; "
                "use the permutation engine."
            )
    return tuple(members for _, members in players)
