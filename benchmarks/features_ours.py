"""The thirty features as the pipeline computes them: registry, median dollar volume, transforms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from features_market import CHARACTERISTICS, CROSS_SECTIONS, MEDIANS, RANKED, TAIL, read

from features.arithmetic.transforms import neutralise, rank_normal, winsorise, zscore
from features.arrays import AnyFloatArray
from features.library import characteristics
from features.panel.asof import Statements
from features.panel.derived import median_dollar_volume
from features.panel.panel import Panel


def prepare(folder: Path) -> Panel:
    """Build the panel."""
    close_TN, high_TN, low_TN, volume_TN = (
        read(folder, name).astype(np.float64, copy=False) for name in ("close", "high", "low", "volume")
    )
    industry_N = read(folder, "industry").astype(np.int16)
    T, N = close_TN.shape
    for array in (close_TN, high_TN, low_TN, volume_TN):
        array.setflags(write=False)
    return Panel(
        dates_T=read(folder, "dates").astype("datetime64[D]"),
        tickers_N=tuple(f"F{n:04}" for n in range(N)),
        close_TN=close_TN,
        open_TN=None,
        high_TN=high_TN,
        low_TN=low_TN,
        raw_close_TN=close_TN,
        volume_TN=volume_TN,
        total_return_index_TN=close_TN,
        delisted_TN=np.zeros((T, N), dtype=np.bool_),
        gap_TN=np.zeros((T, N), dtype=np.bool_),
        unknown_TN=np.zeros((T, N), dtype=np.bool_),
        group_TN=np.tile(industry_N, (T, 1)),
        groups_S=tuple(f"I{s}" for s in range(int(industry_N.max()) + 1)),
        statements=Statements({}, range(N), np.ones((0, N))),
        hazards=(),
    )


def compute(panel: Panel) -> dict[str, AnyFloatArray]:
    """Compute all features, on a copy of the panel without cached values."""
    panel = replace(panel)
    raw_TNF = characteristics.CHARACTERISTICS.compute(panel, CHARACTERISTICS)
    out: dict[str, AnyFloatArray] = {name: raw_TNF[:, :, f] for f, name in enumerate(CHARACTERISTICS)}
    for name in MEDIANS:  # used by the universe
        out[name] = median_dollar_volume(panel, int(name.split("_")[-1]))
    mask_TN = ~np.isnan(panel.close_TN)
    ranked_TNF = rank_normal(raw_TNF[:, :, : len(RANKED)], mask_TN)
    for kind, name in CROSS_SECTIONS:
        x_TN = out[name]
        if kind == "rank":
            out[f"{kind}_{name}"] = ranked_TNF[:, :, RANKED.index(name)]
        elif kind == "zscore":
            out[f"{kind}_{name}"] = zscore(x_TN, mask_TN)
        elif kind == "winsorised":
            out[f"{kind}_{name}"] = winsorise(x_TN, mask_TN, TAIL)
        else:
            out[f"{kind}_{name}"] = neutralise(x_TN, panel.group_TN, mask_TN)
    return out


def values(out: dict[str, AnyFloatArray], name: str, every: int) -> AnyFloatArray:
    """Return one feature for every ``every``-th firm, (T, n)."""
    return np.ascontiguousarray(out[name][:, ::every])
