"""Shapley values of single characteristics in closed form: linear models and trees, by shap.

Both compute exactly, for one feature each, what permutations estimate for the same background: the other
firms of the date, or a sample of the training fold. The values of a player are the sums over its columns. For
a linear model, and for players of one column, they are the values of the player's own game. For trees and a
family of several columns they are not: interactions of two columns are shared between their families column
by column.

Legend: N firms of a date, F characteristics, S background cells, P players, E explained forecasts.
"""

from __future__ import annotations

import numpy as np

from features.arrays import FloatArray, IntArray
from models.baselines.lightgbm import LightGBM
from models.baselines.ridge import Ridge
from models.explain.players import Player
from models.explain.shapley import ShapleyValues


def closed_form(  # noqa: PLR0917  (a model, its input, and what is asked of it)
    baseline: object,
    engine: str,
    z_NF: FloatArray,
    background_SF: FloatArray | None,
    players: tuple[Player, ...],
    sample_E: IntArray,
) -> ShapleyValues:
    """Exact values of a ridge (engine ``linear``) or LightGBM (engine ``tree``) model.

    ``linear``: ``sum over the columns of w_c (z_c - mean background_c)``, by ``shap.LinearExplainer`` with an
    independent masker. ``tree``: by ``shap.TreeExplainer`` with interventional perturbation (Lundberg et al.
    2020, "From local explanations to global understanding with explainable AI for trees").

    Raises ValueError if the engine does not suit the model or the players.

    Parameters
    ----------
    engine
        ``linear`` or ``tree``.
    z_NF
        Characteristics of the firms of the date.
    background_SF
        What absent characteristics are replaced with. None: the other firms of the date; a firm's own cell is
        then not part of its background.
    players
        P families of characteristics.
    """
    import shap

    for player in players:
        if player.kind != "family":
            raise ValueError(
                f"Engine {engine} explains characteristics only, and there is a player of kind "
                f"{player.kind}; use the permutation engine."
            )
    cells_SF, z_EF = z_NF if background_SF is None else background_SF, z_NF[sample_E]
    # all background cells; shap would draw a sample of its own
    masker = shap.maskers.Independent(cells_SF, max_samples=len(cells_SF))
    if engine == "linear" and isinstance(baseline, Ridge):
        explainer = shap.LinearExplainer((baseline.coefficient_F, baseline.intercept), masker)
        value_EF = np.asarray(explainer.shap_values(z_EF), dtype=np.float64).reshape(len(z_EF), -1)
        of_cells_S, of_firms_E = (
            x_XF @ baseline.coefficient_F + baseline.intercept for x_XF in (cells_SF, z_EF)
        )
    elif engine == "tree" and isinstance(baseline, LightGBM):
        booster, scale = baseline.trees()
        explainer = shap.TreeExplainer(
            booster, data=masker, feature_perturbation="interventional", model_output="raw"
        )
        value_EF = scale * np.asarray(explainer.shap_values(z_EF, check_additivity=False), dtype=np.float64)
        of_cells_S, of_firms_E = (
            scale * np.asarray(booster.predict(x_XF), dtype=np.float64) for x_XF in (cells_SF, z_EF)
        )
    else:
        needed = "ridge" if engine == "linear" else "lightgbm"
        raise ValueError(f"Engine {engine} explains {needed} only; use the permutation engine.")
    base_E, cells = np.full(len(z_EF), float(of_cells_S.mean())), len(cells_SF)
    if background_SF is None and cells > 1:
        # against its own cell a firm's values are 0, so the mean over the others is larger by N / (N - 1)
        value_EF = value_EF * (cells / (cells - 1))
        base_E = (cells * base_E - of_firms_E) / (cells - 1)
    value_PE = np.stack([value_EF[:, list(player.members)].sum(axis=1) for player in players])
    return ShapleyValues(value_PE, base_E, np.zeros_like(value_PE))
