"""The report's sections: which tables and charts stand under which heading, and how to read them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go
import polars as pl

from pipelines.report import charts, charts_attribution, network
from pipelines.report.data import ModelAttribution, ReportData, SimulatedTruth
from pipelines.report.endings import ending_blocks
from pipelines.report.label_shares import label_share_blocks
from pipelines.report.provenance import provenance_blocks
from pipelines.report.tables import (
    Column,
    neutral_yes_no,
    number,
    pairs,
    percent,
    plain,
    significant,
    table,
    text,
    yes_no,
)
from pipelines.report.theme import MAX_POINTS, Style
from pipelines.report.verdict import known

NETWORK_ROWS = 20
Block = str | tuple[go.Figure, str]  # HTML, or a figure with its caption in plain text


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its anchor and what stands under it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


def sections(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Section]:
    """Give the sections that the data can fill, in reading order.

    Parameters
    ----------
    data
        The run.
    styles
        Model -> style.
    best
        The chosen model, highlighted in tables.

    Yields
    ------
    Section
        Never an empty one.
    """
    for anchor, title, blocks in (
        ("models", "Models", _models(data, styles, best)),
        ("books", "Books", _books(data, styles)),
        ("endings", "Endings for unknown reasons", ending_blocks(data.endings, styles)),
        ("signal", "Signal", _signal(data, styles)),
        ("costs", "Costs", _costs(data, styles)),
        ("folds", "Folds", _folds(data)),
        ("learning", "Learning", _learning(data, styles)),
        ("labels", "Labels and pretraining", label_share_blocks(data.label_shares, styles)),
        ("truth", "Simulated truth", _truth(data, styles)),
        ("attribution", "Attribution", _attribution(data)),
        ("provenance", "Provenance", provenance_blocks(data.header)),
    ):
        if filled := tuple(blocks):
            yield Section(anchor, title, filled)


def paragraph(words: str) -> str:
    """Wrap plain text as a paragraph."""
    return f"<p>{html.escape(words)}</p>"


_MODEL = Column("model", "model", text, numeric=False)
_TEST = "test sessions"
_FORECAST_COLUMNS = (
    _MODEL,
    Column("seeds", "seeds", number(0)),
    Column("valid_rank_ic", "rank IC", number(3), group="validation", hint="what the choice rests on"),
    Column("ic", "IC", number(3), group=_TEST, hint="mean daily Pearson correlation"),
    Column("ic_t", "t (NW)", number(1), group=_TEST, hint="Newey-West t-statistic of the mean IC"),
    Column("icir", "ICIR", number(2), group=_TEST, hint="mean over standard deviation of daily ICs"),
    Column("rank_ic", "rank IC", number(3), group=_TEST, hint="mean daily Spearman correlation"),
    Column("rank_icir", "rank ICIR", number(2), group=_TEST),
    Column("coverage_dates", "dates %", percent(1), group="forecast", hint="of the test dates with labels"),
    Column(
        "coverage_firms", "firms %", percent(1), group="forecast", hint="of firms with a label on these dates"
    ),
    Column("tied", "tied %", percent(1), group="forecast", hint="forecasts that equal another of their date"),
    Column("precision_at_10", "prec@10 %", percent(1), group=_TEST, hint="of the 10 highest, not falling"),
    Column("literature_sr", "SR (lit.)", number(2), group=_TEST, hint="5 highest, equal weight, no costs"),
    Column(
        "seed_dispersion",
        "dispersion",
        number(2),
        group="seeds",
        hint="deviation between seeds, in score units",
    ),
    Column("share_of_truth", "of truth %", percent(0), group=_TEST, hint="rank IC over that of the truth"),
    Column("missing", "missing", text, numeric=False, hint="folds and seeds without forecasts"),
)
_QUANTILE_SCORE_COLUMNS = (
    _MODEL,
    Column("level", "level", number(2)),
    Column("pinball", "pinball", significant(4), group=_TEST, hint="in the target's unit, lower is better"),
    Column("reference", "reference", significant(4), group=_TEST, hint="of the training targets' quantile"),
    Column("below", "below %", percent(1), group=_TEST, hint="share of targets not above the quantile"),
)
_HORIZON_COLUMNS = (
    _MODEL,
    Column("horizon", "horizon (sessions)", number(0)),
    Column("seeds", "seeds", number(0)),
    Column("ic", "IC", number(3), group=_TEST),
    Column("ic_t", "t (NW)", number(1), group=_TEST),
    Column("icir", "ICIR", number(2), group=_TEST),
    Column("rank_ic", "rank IC", number(3), group=_TEST),
)
_BOOK_COLUMNS = (
    _MODEL,
    Column("sharpe_gross", "gross", number(2), group="Sharpe (annual)"),
    Column("sharpe_net", "net", number(2), group="Sharpe (annual)"),
    Column("annual_return_net", "return % / year", percent(1), group="net of costs"),
    Column("max_drawdown_net", "max drawdown %", percent(1), group="net of costs"),
    Column("turnover", "turnover % / session", percent(1), hint="per cent of NAV"),
    Column("beats_ridge", "ridge", yes_no, numeric=False, group="net Sharpe beats"),
    Column("beats_lightgbm", "LightGBM", yes_no, numeric=False, group="net Sharpe beats"),
)
_LONG_ONLY_COLUMNS = (
    _MODEL,
    Column("sharpe_gross", "gross", number(2), group="Sharpe (annual)"),
    Column("sharpe_net", "net", number(2), group="Sharpe (annual)"),
    Column("annual_return_net", "return % / year", percent(1), group="net of costs"),
    Column("information_ratio", "information ratio", number(2), group="against the universe"),
    Column("tracking_error", "tracking error % / year", percent(1), group="against the universe"),
)
_OPTIONAL = {
    "missing",
    "seed_dispersion",
    "share_of_truth",
    "precision_at_10",
    "literature_sr",
    "beats_ridge",
    "beats_lightgbm",
}


def _compared_on(data: ReportData) -> str:
    on = data.header.measured_on
    return f" Models are compared on the {on} that all of them forecast." if on is not None else ""


def _ladder_tables(
    data: ReportData, delay: int, styles: Mapping[str, Style], best: str | None
) -> Iterator[Block]:
    frame = data.ladder.filter(pl.col("delay") == delay)
    for title, columns in (
        ("Forecasts", _FORECAST_COLUMNS),
        (f"Book: {data.header.main_book}", _BOOK_COLUMNS),
    ):
        shown = [c for c in columns if c.field not in _OPTIONAL or _has_values(frame, c.field)]
        yield f"<h4>{html.escape(title)}</h4>"
        yield table(frame, shown, label=f"{title}, delay {delay}", styles=styles, highlight=best)


def _has_values(frame: pl.DataFrame, field: str) -> bool:
    series = frame[field] if field in frame.columns else pl.Series(dtype=pl.Null)
    filled = series.fill_nan(None) if series.dtype.is_float() else series
    return filled.drop_nulls().len() > 0


def _sessions(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _models(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Block]:
    delay = data.header.label_delay
    chosen = f" The shaded row, {best}, was chosen by validation rank IC alone." if best is not None else ""
    yield paragraph(
        f"Label: {data.header.label_transform} return over {_sessions(data.header.label_horizon)}, traded "
        f"{_sessions(delay)} after the close that the forecast uses.{_compared_on(data)}{chosen}"
    )
    yield paragraph(
        "A date whose forecasts are all equal has an IC of 0. Firms with tied forecasts share "
        f"places equally, in books and in all columns. Sharpe ratios are over {data.header.sharpe_rate}, "
        "paid on net exposure: a long-short book that finances itself pays none of it, a fully invested one "
        "pays all."
    )
    yield from _ladder_tables(data, delay, styles, best)
    yield (
        charts.validation_against_test(data.ladder, styles, delay),
        "Hollow is validation, which chose the model; filled is the test. A long line to the left of the "
        "hollow mark is what selection promised and the test did not keep.",
    )
    if data.horizons is not None and not data.horizons.is_empty():
        yield "<h3>The horizons on the way</h3>"
        yield paragraph(
            "A model with a decoder forecasts the shorter horizons first and the label's from them. IC of "
            "the seed ensemble with the return over each horizon; the label's is the last."
        )
        yield table(data.horizons, _HORIZON_COLUMNS, label="Horizons", styles=styles)
    if data.quantile_scores is not None and not data.quantile_scores.is_empty():
        yield "<h3>Forecast quantiles</h3>"
        yield paragraph(
            "Of models fitted to the quantile loss. The pinball score is lower for better quantiles; its "
            "reference is the one quantile that all training targets had. Where quantiles are honest, the "
            "share of targets below each is its level."
        )
        yield table(data.quantile_scores, _QUANTILE_SCORE_COLUMNS, label="Quantile scores", styles=styles)
    others = [d for d in data.ladder["delay"].unique().sort().to_list() if d != delay]
    for other in others:
        yield f"<h3>The same forecasts, traded after {_sessions(other)}</h3>"
        yield paragraph(
            "Delay 0 trades at the very close that the forecast was computed from. Published benchmarks use "
            "it; nobody can trade it."
            if other == 0
            else f"Measured against labels of delay {other}; nothing was trained or chosen on them."
        )
        yield from _ladder_tables(data, other, styles, best)


def _books(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    if data.equity is None or data.equity.is_empty():
        return
    longest = data.equity.group_by("model", "book").len()["len"].max()
    thinned = (
        f" Lines are drawn through at most {MAX_POINTS} sessions." if _above(longest, MAX_POINTS) else ""
    )
    for book in charts.books_of(data.equity, data.header.main_book):
        yield (
            charts.net_asset_value(data.equity, styles, book),
            "Above, what one unit became; below, how far it stood under its own peak. Switch between net and "
            f"gross to see what costs took; click a model to hide it.{thinned}",
        )
        yield from _long_only(data, styles, book)


def _long_only(data: ReportData, styles: Mapping[str, Style], book: str) -> Iterator[Block]:
    """A long-only book's Sharpe and information ratios; nothing for the other books."""
    fields = [column.field for column in _LONG_ONLY_COLUMNS if column is not _MODEL]
    ladder = data.main_ladder
    if not _has_values(ladder, f"{book}.information_ratio"):
        return
    yield paragraph(
        f"{book} holds no shorts. Its benchmark is the universe in equal weights, decided on the same dates, "
        "traded at the same delay and free of costs. The information ratio is the annual mean of the book's "
        "net return less the benchmark's, over the tracking error: the annual deviation of that difference. "
        f"The Sharpe ratio is over {data.header.sharpe_rate}."
    )
    frame = ladder.select("model", *(pl.col(f"{book}.{field}").alias(field) for field in fields))
    yield table(frame, _LONG_ONLY_COLUMNS, label=f"{book} against the universe", styles=styles)


def _above(value: object, limit: int) -> bool:
    return isinstance(value, int) and value > limit


def _signal(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    if data.ic_series is not None and not data.ic_series.is_empty():
        yield (
            charts.cumulative_rank_ic(data.ic_series, styles),
            "A steady slope is a signal that works all the time; a staircase worked on few days, and a flat "
            "end has stopped working.",
        )
        yield (
            charts.rolling_rank_ic(data.ic_series, styles),
            f"Mean over the {charts.rolling_window(data.ic_series)} sessions up to each date; below zero, "
            "the forecasts ranked firms the wrong way round.",
        )
    if data.quantiles is not None and not data.quantiles.is_empty():
        yield (
            charts.quantile_returns(data.quantiles, styles),
            "Bars should climb from left to right; if only the outermost ones differ, the signal lives in "
            "few firms.",
        )


def _costs(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    if data.cost_assumptions is not None and not data.cost_assumptions.is_empty():
        yield "<h3>Assumptions</h3>"
        yield table(
            data.cost_assumptions,
            (
                Column("assumption", "assumption", text, numeric=False),
                Column("value", "value", lambda v: plain(4)(v) if isinstance(v, int | float) else str(v)),
                Column("unit", "unit", text, numeric=False),
            ),
            label="Cost assumptions",
        )
    if data.cost_breakdown is None or data.cost_breakdown.is_empty():
        return
    kinds = ("half_spread", "commission", "borrow")
    columns = [Column(kind, f"{kind} bps / year", number(0)) for kind in (*kinds, "total")]
    for book in charts.books_of(data.cost_breakdown, data.header.main_book):
        yield (
            charts.cost_breakdown(data.cost_breakdown, styles, book),
            "The length of a bar is what the book pays in a year; 100 bps are 1% of NAV.",
        )
        paid = data.cost_breakdown.filter(pl.col("book") == book)
        yield table(
            paid.with_columns(total=pl.sum_horizontal(kinds)),
            (_MODEL, *columns),
            label=f"Costs of {book} in basis points of NAV per year",
            styles=styles,
        )


def _folds(data: ReportData) -> Iterator[Block]:
    if data.folds is None or data.folds.is_empty():
        return
    yield (
        charts.fold_timeline(data.folds),
        "Each row is one fold: fitted on grey, chosen on orange, measured once on blue. Gaps between them "
        "are the purge, which follows from the label, and the embargo.",
    )
    dates = [
        Column(f"{segment}_{end}", end, text, group=title)
        for segment, title in (("train", "train"), ("valid", "validation"), ("test", "test"))
        for end in ("from", "to")
    ]
    counts = [
        Column(f"n_{segment}", title, number(0), group="sessions")
        for segment, title in (("train", "train"), ("valid", "validation"), ("test", "test"))
    ]
    yield table(data.folds, [Column("fold", "fold", text), *dates, *counts], label="Folds")


def _learning(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    if data.learning is None or data.learning.is_empty():
        return
    yield (
        charts.learning_curves(data.learning, styles),
        "Thin lines are single runs (fold and seed), thick ones their median while at least half of them are "
        "still training. Loss falling while validation rank IC falls as well is overfitting.",
    )


def _truth(data: ReportData, styles: Mapping[str, Style]) -> Iterator[Block]:
    truth = data.truth
    if truth is None:
        return
    ceiling = truth.ceiling.filter(pl.col("delay") == data.header.label_delay)
    yield paragraph(
        "The market is simulated, so its conditional mean is known. No model can be expected to do better "
        "than that mean itself does."
    )
    yield table(
        truth.ceiling,
        (
            Column("delay", "delay (sessions)", number(0)),
            Column("ic", "IC of the truth", number(3)),
            Column("rank_ic", "rank IC of the truth", number(3)),
        ),
        label="What the planted mean itself scores",
    )
    if not ceiling.is_empty() and known(ceiling["rank_ic"][0]):
        yield (
            charts_attribution.share_of_ceiling(data.main_ladder, styles, float(ceiling["rank_ic"][0])),
            "The dashed line is the truth's own rank IC; the figure at a bar's end is the share of it that "
            "the model reached.",
        )
    yield from _edge_recovery(truth)


def _edge_recovery(truth: SimulatedTruth) -> Iterator[Block]:
    if truth.roc is None and truth.edge_auc is None and truth.top_edges is None:
        return
    yield "<h3>Does the peer network find the planted edges?</h3>"
    of_model = f"Network of {truth.edge_model}. " if truth.edge_model is not None else ""
    size = (
        f"{truth.n_planted:,} planted edges among {truth.n_pairs:,} ordered pairs "
        f"({truth.n_planted / truth.n_pairs:.2%}). "
        if truth.n_planted is not None and truth.n_pairs
        else ""
    )
    yield paragraph(f"{of_model}{size}An AUC of 0.5 is a random order, 1 finds every planted edge first.")
    auc = {} if truth.edge_auc is None else dict(truth.edge_auc.select("method", "auc").iter_rows())
    if truth.edge_auc is not None:
        yield table(
            truth.edge_auc,
            (Column("method", "pairs ranked by", text, numeric=False), Column("auc", "AUC", number(3))),
            label="Recovery of planted edges",
        )
        if "attention before training" in auc:
            yield paragraph(
                "Attention before training is what the model's start already points at. Only what is found "
                "beyond it was learned from the data."
            )
    if truth.roc is not None and not truth.roc.is_empty():
        yield (
            charts_attribution.edge_roc(truth.roc, auc),
            "The further a curve bends to the upper left, the fewer false alarms its planted edges cost.",
        )
    if truth.top_edges is not None and not truth.top_edges.is_empty():
        yield f"<h3>The {truth.top_edges.height} strongest edges by SHAP</h3>"
        yield table(
            truth.top_edges,
            (
                Column("leader", "leader", text, numeric=False),
                Column("follower", "follower", text, numeric=False),
                Column("weight", "mean |SHAP|", significant(3)),
                Column("planted", "planted?", yes_no, numeric=False),
            ),
            label="Strongest edges",
        )


def _attribution(data: ReportData) -> Iterator[Block]:
    for model in data.attribution:
        yield f"<h3>{html.escape(model.model)}</h3>"
        yield "<h4>How far this can be believed</h4>"
        yield pairs(_belief(model))
        if model.agreement is not None and not model.agreement.is_empty():
            yield "<h4>Attention against SHAP</h4>"
            yield paragraph(
                "Rank correlation of attention weights with |SHAP|, mean over forecasts: near 1 attention "
                "could stand in for an explanation, near 0 it could not."
            )
            yield table(
                model.agreement,
                (
                    Column("kind", "players", text, numeric=False),
                    Column("rank_correlation", "mean rank correlation", number(2)),
                ),
                label="Agreement of attention with SHAP",
            )
        if not model.players.is_empty():
            hidden = model.players.height - charts_attribution.MAX_PLAYERS
            more = f" {hidden} smaller ones are not drawn." if hidden > 0 else ""
            yield (
                charts_attribution.player_importance(model.players, model.model),
                "A bar is how far that player moved a forecast on average, in either direction; it says "
                f"nothing about whether it moved it the right way.{more}",
            )
        if model.example is not None:
            yield (
                charts_attribution.one_forecast(model.example, model.model),
                "Read downwards from what is forecast when every player is absent: blue raises the forecast, "
                "orange lowers it, and the last bar is the forecast.",
            )
        yield from _network(model)


def _belief(model: ModelAttribution) -> dict[str, str]:
    short_number = significant(2)
    rows = {
        "forecasts explained": f"{model.n_forecasts:,}",
        "additivity error, largest": f"{short_number(model.additivity_max_abs)} (unit of the forecast)",
        "additivity error, relative": f"{short_number(100 * model.additivity_relative)} % of mean |change|",
    }
    rows["Monte Carlo error"] = (
        f"{short_number(model.monte_carlo_error)} per value, mean standard error (unit of the forecast)"
        if model.monte_carlo_error is not None and known(model.monte_carlo_error)
        else "none: every coalition was evaluated"
        if model.monte_carlo_error is None
        else "unknown"
    )
    return rows


def _network(model: ModelAttribution) -> Iterator[Block]:
    if model.edges is None or model.edges.is_empty():
        return
    drawn = (
        "An arrow runs from the firm whose information moved a forecast to the firm whose forecast it moved; "
        "the thicker, the more. Blue arrows stay within a group, orange ones cross groups."
    )
    if model.homophily is not None and known(model.homophily):
        chance = (
            f" (random pairs: {model.homophily_by_chance:.0%})"
            if model.homophily_by_chance is not None and known(model.homophily_by_chance)
            else ""
        )
        drawn += f" {model.homophily:.0%} of all weight stays within a group{chance}."
    yield network.peer_network(model.edges, model.model), drawn
    top = model.edges.sort("weight", descending=True).head(NETWORK_ROWS)
    yield f"<h4>The {top.height} strongest of {model.edges.height:,} edges</h4>"
    yield table(
        top,
        (
            Column("leader", "leader", text, numeric=False),
            Column("follower", "follower", text, numeric=False),
            Column("weight", "mean |SHAP|", significant(3)),
            Column("share", "share of all weight %", percent(2)),
            Column("same_group", "same group?", neutral_yes_no, numeric=False),
        ),
        label="Strongest edges of the peer network",
    )
