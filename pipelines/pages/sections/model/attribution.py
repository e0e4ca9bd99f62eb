"""The section on attribution: what moves each model's forecasts, and how reliable that answer is."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import cast

from models.explain.removal import REMOVALS, Removal
from pipelines.pages.charts import attribution
from pipelines.pages.contents.attribution import ModelAttribution
from pipelines.pages.contents.frames import is_missing
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.model.faithfulness import faithfulness_blocks
from pipelines.pages.sections.model.network import network_blocks
from pipelines.pages.sections.section import Block, beside, paragraph
from pipelines.pages.tables import pairs, significant


def attribution_blocks(data: ReportData) -> Iterator[Block]:
    """Show, for every explained model, reliability, importance, one example and the peer network."""
    if data.attribution:
        yield paragraph(
            "Shapley values divide a forecast among players: blocks of days, families of features, and "
            "peers, in the unit of the forecast."
        )
    if data.explorer is not None:
        yield (
            f'<p><a href="{html.escape(data.explorer)}">Explore the peer network</a>: by date and firm, with '
            "errors, tests and attention. It is a page of its own beside this file.</p>"
        )
    for model in data.attribution:
        yield f"<h3>{html.escape(model.model)}</h3>"
        yield "<h4>Reliability</h4>"
        yield pairs(_reliability(model))
        figures: list[Block] = []
        known = model.players.drop_nulls("error")  # a bar without its error could be noise
        if not known.is_empty():
            hidden = known.height - attribution.MAX_PLAYERS
            more = f" The {hidden} smallest players are not drawn." if hidden > 0 else ""
            figures.append(
                (
                    attribution.player_importance(known, model.model, model.unit),
                    "A bar is the mean absolute effect of a player on the forecasts, with the mean Monte "
                    "Carlo error of its values. It does not tell whether the player makes the forecasts "
                    f"better or worse.{more}",
                )
            )
        if model.skill is not None:
            figures.append(
                (
                    attribution.skill_by_player(model.skill, model.model),
                    "A bar is the part of the rank IC that a player carries, with its standard error over "
                    "the test dates. Below zero, the model would have ranked better without the player, or "
                    "it is noise: compare the bar with its error.",
                )
            )
        if model.example is not None and model.example.contributions["error"].null_count() == 0:
            figures.append(
                (
                    attribution.one_forecast(model.example, model.model, model.unit),
                    "Read from top to bottom. The first bar is the output of the model without any player. "
                    "Blue players raise the forecast, orange players lower it, each with its Monte Carlo "
                    "error. The last bar is the forecast.",
                )
            )
        if figures:
            yield from beside(figures)
        if model.faithfulness is not None:
            yield from faithfulness_blocks(model.faithfulness)
        yield from network_blocks(model)


def _reliability(model: ModelAttribution) -> dict[str, str]:
    two_digits = significant(2)
    if model.monte_carlo_error is None:
        monte_carlo = "none: all coalitions were evaluated"
    elif is_missing(model.monte_carlo_error):
        monte_carlo = "unknown"
    else:
        monte_carlo = f"{two_digits(model.monte_carlo_error)} (mean standard error of a Shapley value)"
    removal: dict[str, str] = {}
    if model.removal is not None:
        removal = {"absent characteristics get": REMOVALS[cast("Removal", model.removal)]}
    if model.absent_days is not None:
        removal["absent days are"] = model.absent_days
    return {
        "forecasts explained": f"{model.n_forecasts:,}",
        "forecast": model.unit_sentence,
        "unit of all values": model.unit,
        "largest additivity error": two_digits(model.additivity_max_abs),
        "relative additivity error": f"{two_digits(100 * model.additivity_relative)} % of mean "
        "|forecast \N{MINUS SIGN} base value|",
        "Monte Carlo error": monte_carlo,
        **removal,
    }
