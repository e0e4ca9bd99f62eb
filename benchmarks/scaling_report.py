"""Tables, power laws and plots of the fits of ``scaling``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scaling_laws import best_of_each, fit_law, frontier, interval, power, resampled

from features.arrays import FloatArray

DRAWS = 500


def grid_table(rows: pl.DataFrame, column: str, form: str) -> str:
    """Mean over the seeds by size and training sessions."""
    sessions = sorted(set(rows["sessions"]))
    lines = [
        f"| parameters | {' | '.join(f'{d:,} sessions' for d in sessions)} |",
        "|---" * (len(sessions) + 1) + "|",
    ]
    for parameters in sorted(set(rows["parameters"])):
        own = rows.filter(pl.col("parameters") == parameters)
        cells = []
        for d in sessions:
            found = own.filter(pl.col("sessions") == d)[column]
            cells.append(format(float(np.mean(found.to_numpy())), form) if len(found) else "")
        lines.append(f"| {parameters:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def excess_of(rows: pl.DataFrame, segment: str) -> tuple[pl.DataFrame, FloatArray]:
    """Cells of one model, and their excess loss by cell, seed and block; NaN for a missing seed."""
    cells = rows.group_by("parameters", "sessions").agg(pl.col("flops").mean()).sort("parameters", "sessions")
    seeds = sorted(set(rows["seed"]))
    blocks = len(rows[f"{segment}_loss"][0])
    excess_CSK = np.full((cells.height, len(seeds), blocks), np.nan)
    position = {(row["parameters"], row["sessions"]): at for at, row in enumerate(cells.to_dicts())}
    for row in rows.to_dicts():
        at = position[row["parameters"], row["sessions"]]
        excess_CSK[at, seeds.index(row["seed"])] = np.subtract(
            row[f"{segment}_loss"], row[f"{segment}_truth"]
        )
    return cells, excess_CSK


def summary(rows: pl.DataFrame, model: str, draws: int = DRAWS) -> dict[str, Any]:
    """Laws of one model: excess loss, best size of each D, and frontier of compute.

    Intervals come from ``draws`` bootstrap draws; without draws they are NaN.
    """
    own = rows.filter(pl.col("model") == model)
    cells, test_CSK = excess_of(own, "test")
    _, valid_CSK = excess_of(own, "valid")
    n_C, d_C, flops_C = (
        cells[name].to_numpy().astype(np.float64) for name in ("parameters", "sessions", "flops")
    )
    excess_C = np.nanmean(test_CSK, axis=(1, 2))
    law = fit_law(n_C, d_C, excess_C)
    drawn = [fit_law(n_C, d_C, one_C) for one_C in resampled(test_CSK, draws)]
    front = frontier(flops_C, excess_C)
    best = best_of_each(d_C, n_C, np.nanmean(valid_CSK, axis=(1, 2)))
    bests = [best_of_each(d_C, n_C, one_C) for one_C in resampled(valid_CSK, draws)]
    slopes = [power(list(one), [n for n, _ in one.values()]) for one in bests if len(one) > 1]
    return {
        "law": law,
        "a": interval([one.exponent_n for one in drawn]),
        "b": interval([one.exponent_d for one in drawn]),
        "E": interval([one.floor for one in drawn]),
        "best": best,
        "best_range": {d: interval([one[d][0] for one in bests if d in one]) for d in best},
        "best_power": power(list(best), [n for n, _ in best.values()]),
        "best_powers": slopes,
        "front": [(flops_C[at], n_C[at], d_C[at], excess_C[at]) for at in front],
        "compute": power(flops_C[front], excess_C[front]),
        "cells": (n_C, d_C, flops_C, excess_C),
    }


def report(rows: pl.DataFrame, model: str) -> str:
    """Tables and laws of one model, as Markdown."""
    own = rows.filter(pl.col("model") == model).with_columns(
        (100 * (pl.col("test_loss").list.mean() - pl.col("test_truth").list.mean())).alias("excess"),
        (pl.col("test_rank_ic") / pl.col("test_truth_rank_ic")).alias("share"),
    )
    found = summary(rows, model)
    law, (low_a, high_a), (low_b, high_b), (low_e, high_e) = (found[name] for name in ("law", "a", "b", "E"))
    lines = [
        f"### {model}",
        "",
        "Excess test loss, % of the variance of the target:",
        "",
        grid_table(own, "excess", ".3f"),
        "",
        "Test rank IC as a share of the truth's:",
        "",
        grid_table(own, "share", ".2f"),
        "",
        f"excess = {law.floor:.2g} + {math.exp(law.log_a):.3g} N^-{law.exponent_n:.2f} + "
        f"{math.exp(law.log_b):.3g} D^-{law.exponent_d:.2f}; 95% intervals a {low_a:.2f} to {high_a:.2f}, "
        f"b {low_b:.2f} to {high_b:.2f}, E {low_e:.2g} to {high_e:.2g}; error of the law {law.error:.2f}",
        f"frontier of compute: excess ~ C^{found['compute'][0]:.2f} over {len(found['front'])} cells",
        "",
        "| training sessions | size of least validation loss | 95% interval | enclosed by the sizes |",
        "|---|---|---|---|",
    ]
    for d, (size, inside) in found["best"].items():
        low, high = found["best_range"][d]
        lines.append(f"| {d:,.0f} | {size:,.0f} | {low:,.0f} to {high:,.0f} | {'yes' if inside else 'no'} |")
    low, high = interval([slope for slope, _ in found["best_powers"]])
    lines.append(f"\nbest size ~ D^{found['best_power'][0]:.2f} (95% interval {low:.2f} to {high:.2f})")
    return "\n".join(lines)


def predicted(rows: pl.DataFrame, model: str, signal: float) -> str:
    """The best size for a data set of another strength of signal, by the fitted power of D.

    Parameters
    ----------
    signal
        Dates times firms times squared IC of the data set, as a multiple of that of one session here.
    """
    found = summary(rows, model)
    slope, level = found["best_power"]
    sizes = [math.exp(at + by * math.log(signal)) for by, at in found["best_powers"]]
    low, high = interval(sizes)
    best = math.exp(level + slope * math.log(signal))
    return f"{model}: as {signal:,.0f} sessions here, {best:,.0f} parameters ({low:,.0f} to {high:,.0f})"


def plot(rows: pl.DataFrame, path: Path) -> None:
    """Draw the excess loss over sessions, parameters and compute, with the laws."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    models = list(dict.fromkeys(rows.sort("model", descending=True)["model"]))
    figure, axes = plt.subplots(
        len(models), 3, figsize=(13, 4 * len(models)), constrained_layout=True, sharey="row", squeeze=False
    )
    for line, model in zip(axes, models, strict=True):
        found = summary(rows, model, draws=0)
        n_C, d_C, flops_C, excess_C = found["cells"]
        law = found["law"]
        for axis, x_C, by_C, name in (
            (line[0], d_C, n_C, "{:,.0f} parameters"),
            (line[1], n_C, d_C, "{:,.0f} sessions"),
        ):
            for colour, by in enumerate(np.unique(by_C)):
                own_C = (by_C == by) & (excess_C > 0)
                label = name.format(by)
                axis.loglog(x_C[own_C], 100 * excess_C[own_C], "o", color=f"C{colour}", label=label)
                x = np.geomspace(x_C.min(), x_C.max(), 50)
                fitted = law.excess(by, x) if axis is line[0] else law.excess(x, by)
                axis.loglog(x, 100 * fitted, "-", color=f"C{colour}", alpha=0.5, linewidth=1)
            axis.legend(fontsize=7)
        line[2].loglog(flops_C, 100 * np.where(excess_C > 0, excess_C, np.nan), "o", color="0.7")
        front = np.array([(flops, excess) for flops, _, _, excess in found["front"]])
        line[2].loglog(front[:, 0], 100 * front[:, 1], "o-", color="C3", label="frontier")
        line[2].legend(fontsize=7)
        line[0].set_ylabel(f"{model}\nexcess test loss, % of variance")
        line[0].set_xticks(np.unique(d_C), [f"{d:,.0f}" for d in np.unique(d_C)])
        line[0].xaxis.set_minor_locator(NullLocator())
        for axis, text in zip(line, ("training sessions", "parameters", "training FLOPs"), strict=True):
            axis.yaxis.set_major_formatter("{x:.1f}")
            axis.yaxis.set_minor_formatter("{x:.1f}")
            axis.set_xlabel(text)
            axis.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)


def nasdaq_table(rows: pl.DataFrame) -> str:
    """Validation of the Nasdaq firms by size: mean over the seeds and each of them."""
    lines = [
        "| model | parameters | validation IC | validation rank IC | epochs | FLOPs |",
        "|---" * 6 + "|",
    ]
    for (model, parameters), own in sorted(rows.group_by("model", "parameters"), key=lambda one: str(one[0])):
        each = ", ".join(f"{value:.4f}" for value in own.sort("seed")["valid_ic"])
        ic, rank_ic, epochs, flops = (
            float(np.mean(own[name].to_numpy())) for name in ("valid_ic", "valid_rank_ic", "epochs", "flops")
        )
        lines.append(
            f"| {model} | {parameters:,} | {ic:.4f} ({each}) | {rank_ic:.4f} | {epochs:.1f} | {flops:.2g} |"
        )
    return "\n".join(lines)
