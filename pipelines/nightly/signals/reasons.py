"""Why names are at the ends of a ranking: the largest Shapley values of their signals, as text."""

from __future__ import annotations

import polars as pl

_REASONS = 3  # values shown of a name


def describe_reasons(attributions: pl.DataFrame) -> str:
    """Show the largest values of each name, the highest signal first.

    Parameters
    ----------
    attributions
        As `pipelines.nightly.page.attribution.attribute` gives them.
    """
    if attributions.is_empty():
        return "No firm has a signal to explain."
    names = attributions.select("ticker", "signal").unique(maintain_order=True)
    lines = ["why, in the unit of the signal, with the Monte Carlo standard error of each value:"]
    for ticker in names.sort("signal", "ticker", descending=[True, False])["ticker"]:
        own = attributions.filter(pl.col("ticker") == ticker)
        lines.append(f"  {ticker:<12}{own['signal'][0]:>+9.3f} = {own['base'][0]:+.3f} without any player")
        ordered = own.sort(pl.col("value").abs(), descending=True, maintain_order=True)
        lines += [
            f"    {row['player']:<22}{row['value']:>+9.3f}   (error {row['error']:.3f})"
            for row in ordered.head(_REASONS).iter_rows(named=True)
        ]
        rest = ordered.slice(_REASONS)
        if rest.height:
            lines.append(f"    {f'{rest.height} others':<22}{rest['value'].sum():>+9.3f}")
    return "\n".join([*lines, ""])
