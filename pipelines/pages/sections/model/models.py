"""The section on models: one row per model, its forecasts on validation and test, and its main book."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

import polars as pl

from pipelines.pages.charts import signal
from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.section import MODEL_COLUMN, Block, count_sessions, has_values, paragraph
from pipelines.pages.tables import Column, answer, number, percent, signed, significant, table, text
from pipelines.pages.theme import Style

_TEST = "test sessions"
_FORECAST_COLUMNS = (
    MODEL_COLUMN,
    Column("seeds", "seeds", number(0)),
    Column("valid_rank_ic", "rank IC", number(3), group="validation", hint="used to choose the model"),
    Column("ic", "IC", number(3), group=_TEST, hint="mean daily Pearson correlation"),
    Column("ic_t", "t (NW)", number(1), group=_TEST, hint="Newey-West t-statistic of the mean IC"),
    Column("icir", "ICIR", number(2), group=_TEST, hint="mean over standard deviation of daily ICs"),
    Column("rank_ic", "rank IC", number(3), group=_TEST, hint="mean daily Spearman correlation"),
    Column(
        "rank_icir",
        "rank ICIR",
        number(2),
        group=_TEST,
        hint="mean over standard deviation of daily rank ICs",
    ),
    Column(
        "precision_at_10",
        "prec@10 %",
        percent(1),
        group=_TEST,
        hint="share of the 10 firms with the highest forecasts whose label is not negative",
    ),
    Column(
        "literature_sr",
        "SR (lit.)",
        number(2),
        group=_TEST,
        hint="annual Sharpe ratio of the 5 firms with the highest forecasts, equal weights, no costs",
    ),
    Column(
        "share_of_truth",
        "% of truth",
        percent(0),
        group=_TEST,
        hint="rank IC divided by that of the true mean",
    ),
    Column(
        "coverage_dates", "dates %", percent(1), group="forecasts", hint="share of test dates with forecasts"
    ),
    Column(
        "coverage_firms",
        "firms %",
        percent(1),
        group="forecasts",
        hint="share of the firms with a label on these dates that have a forecast",
    ),
    Column(
        "tied",
        "tied %",
        percent(1),
        group="forecasts",
        hint="share of forecasts that equal another forecast of the same date",
    ),
    Column(
        "seed_dispersion",
        "seed SD",
        number(2),
        hint="standard deviation between seeds, in standard deviations of the forecast",
    ),
    Column("missing", "missing", text, numeric=False, hint="folds and seeds without forecasts"),
)
_QUANTILE_SCORE_COLUMNS = (
    MODEL_COLUMN,
    Column("level", "level", number(2)),
    Column("pinball", "pinball", significant(4), group=_TEST, hint="in the target's unit; lower is better"),
    Column(
        "reference", "reference", significant(4), group=_TEST, hint="score of the training targets' quantile"
    ),
    Column("below", "below %", percent(1), group=_TEST, hint="share of targets not above the quantile"),
)
_HORIZON_COLUMNS = (
    MODEL_COLUMN,
    Column("horizon", "horizon (sessions)", number(0)),
    Column("seeds", "seeds", number(0)),
    Column("ic", "IC", number(3), group=_TEST),
    Column("ic_t", "t (NW)", number(1), group=_TEST),
    Column("icir", "ICIR", number(2), group=_TEST),
    Column("rank_ic", "rank IC", number(3), group=_TEST),
)
_BOOK_COLUMNS = (
    MODEL_COLUMN,
    Column("sharpe_gross", "gross", number(2), group="Sharpe (annual)"),
    Column("sharpe_net", "net", number(2), group="Sharpe (annual)"),
    Column("sharpe_lower", "from", number(2), group="Sharpe (annual)", hint="95% interval of the net ratio"),
    Column("sharpe_upper", "to", number(2), group="Sharpe (annual)", hint="95% interval of the net ratio"),
    Column(
        "deflated_sharpe",
        "deflated",
        number(2),
        group="Sharpe (annual)",
        hint="probability of skill, given the number of trials in the ledger",
    ),
    Column("annual_return_net", "return % / year", percent(1), group="net of costs"),
    Column("max_drawdown_net", "max drawdown %", percent(1), group="net of costs"),
    Column("turnover", "turnover % / session", percent(1), hint="one-way, of NAV"),
    Column("beats_ridge", "ridge", answer, numeric=False, group="beats"),
    Column("beats_lightgbm", "LightGBM", answer, numeric=False, group="beats"),
)
_COMPARISON_COLUMNS = (
    MODEL_COLUMN,
    Column("rival", "compared with", text, numeric=False),
    Column("ic_difference", "difference", signed(4), group="daily IC"),
    Column("ic_lower", "from", signed(4), group="daily IC"),
    Column("ic_upper", "to", signed(4), group="daily IC"),
    Column("ic_p", "p", number(3), group="daily IC", hint="paired test with Newey-West errors"),
    Column("dm_p", "p (DM)", number(3), group="daily IC", hint="Diebold-Mariano test of the losses 1 - IC"),
    Column("sharpe_difference", "difference", signed(2), group="net Sharpe"),
    Column("sharpe_lower", "from", signed(2), group="net Sharpe"),
    Column("sharpe_upper", "to", signed(2), group="net Sharpe"),
    Column("sharpe_p", "p", number(3), group="net Sharpe", hint="stationary bootstrap"),
    Column("beats", "beats", answer, numeric=False),
)
_OPTIONAL = {
    "valid_rank_ic",
    "missing",
    "seed_dispersion",
    "share_of_truth",
    "precision_at_10",
    "literature_sr",
    "sharpe_lower",
    "sharpe_upper",
    "deflated_sharpe",
    "beats_ridge",
    "beats_lightgbm",
}
_TRANSFORMS = {
    "raw": "",
    "demean": ", minus its mean over the firms of the date",
    "rank": ", ranked within the date",
}


def model_blocks(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    """Show the ladder at the label's delay, validation against test, horizons, quantiles and other delays."""
    header = data.header
    delay = header.label_delay
    compared = (
        f" Models are compared on the {header.measured_on} that all of them forecast."
        if header.measured_on is not None
        else ""
    )
    chosen = (
        f" The shaded row, {best}, was chosen by validation rank IC alone."
        if best is not None and header.trained
        else ""
    )
    label = _TRANSFORMS.get(header.label_transform, f" ({header.label_transform})")
    yield paragraph(
        f"The label is the return over {count_sessions(header.label_horizon)}{label}, from the close "
        f"{count_sessions(delay)} after the forecast. Books trade {_traded(data, delay)}.{compared}{chosen}"
    )
    yield paragraph(
        "The IC of a date is 0 if all its forecasts are equal. Firms with tied forecasts share their ranks. "
        f"Sharpe ratios are in excess of {header.sharpe_rate}, charged on net exposure: in full to a fully "
        "invested book, not at all to a self-financing long-short book."
    )
    yield from _ladder_tables(data, delay, styles, best)
    if has_values(data.ladder, "valid_rank_ic"):
        yield (
            signal.validation_against_test(data.ladder, styles, delay),
            "A filled mark far to the left of its hollow mark is a sign of overfitting to validation.",
        )
    if data.comparisons is not None and not data.comparisons.is_empty():
        level = data.comparisons["level"][0]
        yield f"<h3>Tests against the baselines, delay {header.verdict_delay}</h3>"
        yield paragraph(
            f"Model less baseline, on the same dates, with {1 - level:.0%} intervals. A model beats a "
            "baseline if the interval of the IC difference lies above zero and its net Sharpe ratio is "
            "higher. The answer is no if the interval of the IC difference or of the net Sharpe difference "
            "lies below zero, and unclear otherwise: then the test is too short to tell the two apart."
        )
        yield table(data.comparisons, _COMPARISON_COLUMNS, label="Tests against the baselines", styles=styles)
    if data.horizons is not None and not data.horizons.is_empty():
        yield "<h3>Shorter horizons</h3>"
        yield paragraph(
            "Models with a decoder first forecast shorter horizons, then the label's horizon. Each row is "
            "the IC of the seed ensemble with the return over that horizon. The last horizon is that of "
            "the label."
        )
        yield table(data.horizons, _HORIZON_COLUMNS, label="Horizons", styles=styles)
    if data.quantile_scores is not None and not data.quantile_scores.is_empty():
        yield "<h3>Forecast quantiles</h3>"
        yield paragraph(
            "For models trained with the quantile loss. A lower pinball score is better. The reference is "
            "the score of a constant forecast: the quantile of all training targets. If the forecast "
            "quantiles are calibrated, the share of targets below each equals its level."
        )
        yield table(data.quantile_scores, _QUANTILE_SCORE_COLUMNS, label="Quantile scores", styles=styles)
    for other in sorted(set(data.ladder["delay"].to_list()) - {delay}):
        yield f"<h3>The same forecasts with a delay of {count_sessions(other)}</h3>"
        yield paragraph(
            "Delay 0 trades at the close from which the forecast was computed. Published benchmarks use "
            "it, but it cannot be traded."
            if other == 0
            else f"Evaluated on labels with delay {other}; books trade {_traded(data, other)}. No model was "
            "trained or chosen on these labels."
        )
        yield from _ladder_tables(data, other, styles, best)


def _traded(data: ReportData, delay: int) -> str:
    """When books trade in the rows of a delay: then, unless the evaluation sets another delay for all."""
    header = data.header
    trades = delay if header.execution_delay == header.verdict_delay else header.execution_delay
    return "then" if trades == delay else f"{count_sessions(trades)} after it, as backtest.delay sets"


def _ladder_tables(
    data: ReportData, delay: int, styles: Mapping[str, Style], best: str | None
) -> Iterator[Block]:
    frame = data.ladder.filter(pl.col("delay") == delay)
    for title, columns in (
        ("Forecasts", _FORECAST_COLUMNS),
        (f"Book: {data.header.main_book}", _BOOK_COLUMNS),
    ):
        shown = [c for c in columns if c.field not in _OPTIONAL or has_values(frame, c.field)]
        yield f"<h4>{html.escape(title)}</h4>"
        yield table(frame, shown, label=f"{title}, delay {delay}", styles=styles, highlight=best)
