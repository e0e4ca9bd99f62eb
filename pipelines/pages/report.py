"""The report of a run, or the tear sheet of a file of signals: one self-contained HTML page.

The page has plotly.js (about 5 MB) once, and less than 2 MB of results. Its tables can be read without
scripts. Two screens are open, the verdict and what it is about; everything else is folded.
The templates ``sections.jinja`` (the result) and ``origins.jinja`` (where it comes from) have one macro per
section; this module prepares what a section computes.
"""

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import polars as pl
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from backtest.analysis.history import crisis_returns, monthly_returns, rolling_window, round_trips
from backtest.inference.means import LEVEL, overlap_of
from backtest.look_ahead.finding import VERDICTS, summary_line
from models.spec import BENCHMARKS
from pipelines.columns import COLUMNS
from pipelines.explain.shown import PER_YEAR, START, by_net
from pipelines.format import IC, abbreviate, describe_difference, is_unknown
from pipelines.pages.charts import books, explained, models
from pipelines.pages.describe import describe_notes
from pipelines.pages.figure import MUTED, LineStyle, model_styles
from pipelines.pages.page import Page, script
from pipelines.pages.report_data import ExplainedModel, RunReport
from pipelines.pages.tables import TOTAL, has_values, verdict_rows, with_interval, write
from pipelines.pages.verdict import ReportVerdict, baseline_of, deciding_comparisons, judge_report
from pipelines.results.comparisons import MIN_DEFLATED_SHARPE
from pipelines.results.evaluate import forecast_steps
from pipelines.results.multiverse import OUTCOMES, REST, Multiverse
from pipelines.results.sweeps import Sweep, heat_maps

MAX_MODELS = 8  # columns of the key figures
_FEWEST_SESSIONS = 20  # of a distribution of returns
_WORST_FIRST = {verdict: place for place, verdict in enumerate(VERDICTS)}
_SHOWN_EVIDENCE, _SHOWN_BARS = 20, 10  # rows behind a finding, and those beside their limits
_SHOWN_TRIPS = 10  # the best, and as many of the worst
_RATIO = pl.col("net").clip(lower_bound=0).sum() / -pl.col("net").clip(upper_bound=0).sum()
_BREAKDOWNS = ("side", "sector", "factor", "risk", "name")
_DRAW = SimpleNamespace(
    **{name: value for room in (books, models, explained) for name, value in vars(room).items()}
)


def render_report(report: RunReport) -> str:
    """Render the report of a run or of signals as an HTML document that loads nothing."""
    verdict, header = judge_report(report), report.header
    best = None if verdict.best is None else verdict.best["model"]
    chosen = report.models[0] if best is None else best
    page, checks = Page(model_styles(report.models)), _checks(report)
    context = {
        "r": report,
        "h": header,
        "best": best,
        "chosen": chosen,
        "verdict": verdict,
        "level": LEVEL,
        "checks": checks,
        "behind": {check: shown_evidence(rows) for check, rows in header.behind.items()},
        "summary": _summary(report, checks),
        "worst": min((row["verdict"] for row in checks or ()), key=VERDICTS.index, default="skipped"),
        "styles": page.styles,
        **_shared(report, chosen, verdict),
    }
    shown = {one[0]: one for one in page.sections("sections.jinja", **context)}
    figures = report.table("figures", chosen)
    heading = header.name if report.file is None else abbreviate(report.models, 3)
    return page.render(
        "report.jinja",
        scripts=(get_plotlyjs(), script("report.js")),
        data={
            "figures": page.figures,
            "holdings": None if context["held"] is None else holdings_data(context["held"]),
        },
        title=f"{heading}, {header.record.first} to {header.record.last}: Peerglass report",
        heading=heading,
        first=shown.pop("equity", ("", "", ""))[2],
        second=shown.pop("overview", ("", "", "")),
        results=list(shown.values()),
        origins=page.sections("origins.jinja", **context),
        volatility=figures["annual_volatility_net"][0] if figures.height else None,
        **context,
    )


def _shared(report: RunReport, chosen: str, verdict: ReportVerdict) -> dict[str, Any]:
    """What the sections of the template use beside the report: functions, and what is computed."""
    removals: Mapping[Any, str] = {}
    if report.explained:
        from models.explain.removal import REMOVALS  # imports PyTorch

        removals = REMOVALS
    shown_first = (chosen, *(m for m in report.models if m in BENCHMARKS and m != chosen))
    positions = report.table("positions", chosen)
    held = None if positions.is_empty() else select_holdings(positions)
    benchmarks = report.table("benchmark_series", chosen)
    longest = max(
        (report.table(n)["date"].n_unique() for n in ("equity", "ic_series") if report.table(n).height),
        default=0,
    )
    counts = report.whole("rows")
    if report.file is not None:
        counts = counts.filter((pl.col("rows") > 0) | (pl.col("reason") == "used"))
        counts = counts.pivot(on="reason", index="signal", values="rows")
    series, equity = report.table("ic_series"), report.table("equity")
    steps = dict.fromkeys(report.models, 1.0)
    if series.height:
        steps |= forecast_steps(series, equity if equity.height else series)
    weights = report.whole("ensemble_weights")
    if weights.height:
        weights = weights.pivot(on="fold", index=["model", "member"], values="member_weight")
    return {
        "col": pl.col,
        "declared": COLUMNS,
        "draw": _DRAW,
        "has_values": has_values,
        "with_interval": with_interval,
        "verdict_rows": verdict_rows,
        "removals": removals,
        "by_net": by_net,
        "per_year": lambda net: net.with_columns(pl.col(*PER_YEAR) * report.header.record.periods_per_year),
        "strong": MIN_DEFLATED_SHARPE,
        "shade": shade,
        "window_of": rolling_window,
        "shown_first": shown_first,
        "key_figures": _key_figures(report, shown_first),
        "max_models": MAX_MODELS,
        "books_of": lambda name: _books_of(report, name),
        "describe_notes": describe_notes,
        "paid": lambda book: _paid(report, book),
        "rolling_window": rolling_window(longest) if longest >= 20 else 0,
        "steps": steps,
        "overlaps": {m: overlap_of(report.header.label_horizon, step) for m, step in steps.items()},
        "months_of": _months(report, chosen),
        "returned": _returns(report, chosen, benchmarks),
        "crises": _crises(report, chosen, benchmarks),
        "benchmark_columns": [
            (name, f"{name} %", "+%1", "", "of the benchmark") for name in _names(benchmarks)
        ],
        "made": None if positions.is_empty() else _trips(positions),
        "contributed": _contributed(report, chosen),
        "beaten": [] if verdict.best is None else _beaten(report, verdict.best),
        "held": held,
        "other_delays": sorted(set(report.tables["ladder"]["delay"]) - {report.header.label_delay}),
        "rows_of_file": counts,
        "weights": weights,
        "weight_columns": [
            ("model",),
            ("member",),
            *((fold, fold, "2", "fold") for fold in weights.columns[2:]),
        ],
        "file_columns": [("signal", "signal"), *((name, name, "0") for name in counts.columns[1:])],
        **_planted(report.planted),
    }


def shade(value: float | None, full: float, darkest: float) -> Markup:
    """Background of a cell: blue above zero, orange below, the strongest at ``full``."""
    if value is None or is_unknown(value):
        return Markup()
    colour = "0,114,178" if value >= 0 else "213,94,0"
    strength = darkest * min(abs(value) / full, 1.0)
    return Markup(f' style="background:rgba({colour},{strength:.2f})"')  # noqa: S704  # numbers


def _beaten(report: RunReport, best: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, answer and detail of each baseline that the chosen model is compared with."""
    compared, found = deciding_comparisons(report, best["model"]), []
    for baseline, title in BENCHMARKS.items():
        if baseline_of(best) != baseline:
            row = compared.get(baseline)
            detail = "not tested" if row is None else f"IC difference {describe_difference(row, 'ic', IC)}"
            answer = best[f"beats_{baseline}"] or "unknown"
            found.append((f"beats {title}", answer, detail.replace("-", "\N{MINUS SIGN}")))
    return found


def _checks(report: RunReport) -> list[dict[str, Any]] | None:
    """Checks of the audit, the worst first, or of the guard, by signal; None without an audit."""
    names = ("check", "verdict", "sentence")
    if report.file is not None:
        return report.tables["guard"].select("signal", *names).to_dicts()
    if report.header.audit is None:
        return None
    rows = report.header.audit.select(names).to_dicts()
    return sorted(rows, key=lambda row: VERDICTS.index(row["verdict"]))


def shown_evidence(rows: pl.DataFrame) -> dict[str, Any]:
    """The evidence of a check for a reader: the worst rows, their columns, and values beside their limits."""
    if "verdict" in rows.columns:
        rows = rows.sort(pl.col("verdict").replace_strict(_WORST_FIRST, default=len(_WORST_FIRST)))
    if "sentence" in rows.columns:  # what a question would say if it had found something
        found = pl.col("verdict").is_in(["fail", "warn"])
        named = [pl.when(pl.col(name) != "").then(name).alias(name) for name in ("subject", "check")]
        rows = rows.with_columns(pl.when(found).then("sentence").alias("sentence"), *named)
    if "failed" in rows.columns:
        rows = rows.sort("failed", descending=True)
    shown = rows.head(_SHOWN_EVIDENCE).drop("reason", strict=False)
    columns = [
        (f"?{name}", name.replace("_", " "), "wide" if name == "sentence" else _form(kind))
        for name, kind in shown.schema.items()
    ]
    numbers = {name for name, kind in shown.schema.items() if kind.is_numeric()}
    value = next((name for name in ("value", "ic") if name in numbers), None)
    bars = []
    if value is not None and "limit" in numbers:
        names = [name for name in ("subject", "feature", "column", "check") if name in rows.columns]
        limited = shown.filter(pl.col(value).is_finite(), pl.col("limit") != 0).head(_SHOWN_BARS)
        for row in limited.iter_rows(named=True):
            label = next((row[name] for name in names if row[name]), "")
            length = min(abs(row[value] / row["limit"]), 2.0) / 2.0
            bars.append((label, length, write(row[value], "g3"), write(row["limit"], "g3")))
    return {"rows": shown, "columns": columns, "of": rows.height, "bars": bars}


def _summary(report: RunReport, checks: Sequence[Mapping[str, Any]] | None) -> str:
    """The number of checks by verdict."""
    if report.file is not None:
        verdicts = [row["verdict"] for row in checks or ()]
        counts = (f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts)
        return f"Look-ahead guard: {', '.join(counts)}"
    return "" if report.header.audit is None else f"Audit: {summary_line(report.header.audit)}"


def _key_figures(report: RunReport, first: Sequence[str]) -> pl.DataFrame:
    """One row per model: the chosen one, the baselines, and the others in the order of the ladder."""
    frame = report.table("figures")
    if frame.is_empty():
        return frame
    tested = report.verdict_ladder.select("model", "sharpe_lower", "sharpe_upper", "deflated_sharpe")
    places = {model: place for place, model in enumerate(dict.fromkeys((*first, *report.models)))}
    order = pl.col("model").replace_strict(places, default=len(places))
    return frame.join(tested, on="model", how="left").sort(order, maintain_order=True)


def _books_of(report: RunReport, name: str) -> list[str]:
    """Books of a table: the main book first, the others in order of appearance."""
    frame = report.table(name, every_book=True)
    books: list[str] = [] if frame.is_empty() else frame["book"].unique(maintain_order=True).to_list()
    return sorted(books, key=lambda book: book != report.header.main_book)


def _paid(report: RunReport, book: str) -> tuple[pl.DataFrame, list[tuple[str, ...]]]:
    """What every model traded and paid in one book, and the columns of the kinds of cost."""
    costs = report.table("costs", every_book=True).filter(pl.col("book") == book)
    kinds = books.cost_kinds(costs)
    frame = costs.with_columns(total=pl.sum_horizontal(*kinds))
    figures = report.table("figures", every_book=True)
    if not figures.is_empty():
        notional = 2 * report.header.record.periods_per_year * pl.col("turnover")
        means = figures.filter(pl.col("book") == book).select(
            "model", "turnover", "unfilled", notional=notional
        )
        frame = frame.join(means, on="model", how="left", maintain_order="left")
    titles = {**kinds, "total": "total"}.items()
    return frame, [(kind, title, "0", "paid, bps of NAV per year") for kind, title in titles]


def _months(report: RunReport, chosen: str) -> dict[str, Any] | None:
    """Net returns of the main book by month, with the total of each year; None without a book."""
    equity = report.table("equity", chosen)
    if equity.is_empty():
        return None
    returns = monthly_returns(equity.sort("date"))
    cells = {(year, month): net for year, month, net in returns.iter_rows()}
    months = returns.filter(pl.col("month") > 0)["net"].drop_nulls()
    return {
        "names": calendar.month_abbr[1:],
        "years": {
            year: [cells.get((year, month)) for month in (*range(1, 13), 0)]
            for year in returns["year"].unique().sort()
        },
        "positive": (months > 0).mean(),
        "count": months.len(),
    }


def _names(benchmarks: pl.DataFrame) -> list[str]:
    """Benchmarks in the order of the config."""
    return [] if benchmarks.is_empty() else benchmarks["benchmark"].unique(maintain_order=True).to_list()


def _returns(report: RunReport, chosen: str, benchmarks: pl.DataFrame) -> dict[str, Any] | None:
    """Returns of the main book and of its benchmarks by year, and those of sessions with their moments."""
    equity = report.table("equity", chosen).sort("date") if "equity" in report.tables else pl.DataFrame()
    if equity.height < _FEWEST_SESSIONS:
        return None
    paths = {chosen: equity} | {
        name: benchmarks.filter(pl.col("benchmark") == name).sort("date").rename({"nav_benchmark": "nav_net"})
        for name in _names(benchmarks)
    }
    years = [
        monthly_returns(path).filter(pl.col("month") == 0).select("year", "net", name=pl.lit(name))
        for name, path in paths.items()
    ]
    nav = pl.col("nav_net").cast(pl.Float64).fill_nan(None)
    held = equity.with_columns(net=nav / nav.shift(1, fill_value=1.0) - 1.0)
    daily = held.drop_nulls([name for name in ("net", "excess_net") if name in held.columns])["net"]
    dashes = {name: LineStyle(MUTED) for name in paths}
    return {
        "years": pl.concat(years),
        "styles": dashes | {chosen: model_styles(report.models)[chosen]},
        "daily": daily,
        "mean": daily.mean(),
        "deviation": daily.std(),
        "skewness": daily.skew(),
        "kurtosis": daily.kurtosis(),
        "tail": -(daily.quantile(0.01, "lower") or 0.0),
    }


def _crises(report: RunReport, chosen: str, benchmarks: pl.DataFrame) -> pl.DataFrame:
    """Returns of the main book and its benchmarks in known crises; none on a simulated market."""
    equity = report.table("equity", chosen)
    if equity.is_empty() or report.header.simulated:
        return pl.DataFrame()
    path = equity.sort("date").select("date", net="nav_net")
    for name in _names(benchmarks):
        own = benchmarks.filter(pl.col("benchmark") == name).select(
            "date", pl.col("nav_benchmark").alias(name)
        )
        path = path.join(own, on="date", how="left")
    return crisis_returns(path)


def _trips(positions: pl.DataFrame) -> dict[str, Any]:
    """Figures of all round trips of the main book, and the best and the worst of them."""
    trips = round_trips(positions)
    closed = trips.drop_nulls("exit")
    won, lost = (closed.filter(sign * pl.col("net") > 0)["net"] for sign in (1, -1))
    facts = {"round trips": f"{closed.height:,} closed, {trips.height - closed.height:,} open at the end"}
    if closed.height:
        held = closed["sessions"]
        facts |= {
            "with a profit": f"{write(won.len() / closed.height, '%0')}% of those closed",
            "sessions held": f"median {write(held.median(), '0')}, at most {write(held.max(), '0')}",
            "mean profit": f"{write(won.mean(), '+bps1')} bps of NAV",
            "mean loss": f"{write(lost.mean(), '+bps1')} bps of NAV",
            "profits over losses": write(closed.select(_RATIO).item(), "2"),
        }
    ranked = trips.sort("net", descending=True)
    count = min(_SHOWN_TRIPS, ranked.height // 2)
    tables = {f"The {count} best": ranked.head(count), f"The {count} worst": ranked.tail(count).reverse()}
    return {"facts": facts, "tables": tables if count else {}}


def _contributed(report: RunReport, chosen: str) -> list[tuple[str, str, pl.DataFrame, pl.DataFrame]]:
    """Per breakdown of the profit: its name and title, the rows to draw, and the same with their total."""
    frame, found = report.table("contributions", chosen), []
    titles = {"sector": report.header.group, "risk": "factor of the risk model"}
    for by in _BREAKDOWNS:
        rows = frame.filter(pl.col("by") == by) if frame.height else frame
        if rows.height:
            kept = rows.select("key", "gross", "cost", "net").sort("net", descending=True)
            if by == "sector":
                kept = books.largest_sectors(kept, report.header.group)
            elif by == "name":
                kept = books.largest_names(kept)
            total = rows.select(pl.lit(TOTAL).alias("key"), pl.col("gross", "cost", "net").sum())
            found.append((by, f"By {titles.get(by, by)}", kept, pl.concat([kept, total])))
    return found


def _planted(model: ExplainedModel | None) -> dict[str, Any]:
    """How well the network of a model finds the planted edges: AUC by method, and by kind of edge."""
    if model is None:
        return {}
    methods = {"shap": "shap", "attention": "attention", START: "untrained", "random": "random"}
    auc = {method: model.facts[f"auc_{name}"] for method, name in methods.items()}
    own, kinds = model.table("recovery"), pl.DataFrame()
    if own.height:
        by = {name: own.filter(pl.col("method") == name) for name in ("shap", "attention", START)}
        kinds = by["shap"].select("kind", "n_edges", "error", "lift", "lift_error", shap="auc")
        for name, method in (("attention", "attention"), ("start", START)):
            part = by[method].select("kind", pl.col("auc").alias(name))
            kinds = kinds.join(part, on="kind", maintain_order="left")
    table = pl.DataFrame(list(auc.items()), schema={"method": pl.String, "auc": pl.Float64}, orient="row")
    return {"planted_auc": table, "auc_of": auc, "planted_kinds": kinds}


MAX_ROWS = 24_000  # rows of all sessions together: about 0.5 MB
MIN_NAMES = 6  # per session
MAX_NAMES = 60


@dataclass(frozen=True, slots=True)
class ShownHoldings:
    """The firms kept of a book, by date and falling weight, and sums over all; half as many by trade."""

    rows: pl.DataFrame
    totals: pl.DataFrame
    names_per_date: int
    complete: bool  # every position is kept


def select_holdings(positions: pl.DataFrame, max_rows: int = MAX_ROWS) -> ShownHoldings:
    """Keep all rows of the newest session, and the largest positions and trades of the others.

    These are about ``max_rows`` in all.
    """
    frame = positions.select(
        "date", "ticker", *(pl.col(name).cast(pl.Float64).fill_nan(0.0).fill_null(0.0) for name in _FIELDS)
    ).sort("date", pl.col("weight").abs(), "ticker", descending=[False, True, False])
    count = min(MAX_NAMES, max(MIN_NAMES, max_rows * 2 // (3 * max(frame["date"].n_unique(), 1))))
    ranks = {
        name: pl.col(name).abs().rank("ordinal", descending=True).over("date") for name in ("weight", "trade")
    }
    rows = frame.filter(
        (ranks["weight"] <= count)
        | ((ranks["trade"] <= count // 2) & (pl.col("trade") != 0))
        | (pl.col("date") == pl.col("date").max())
    )
    totals = frame.group_by("date", maintain_order=True).agg(
        (pl.col("weight") != 0).sum().alias("names"),  # others were sold in the session
        pl.col("weight").abs().sum().alias("gross"),
        pl.col("weight").sum().alias("net"),
        pl.col("trade").abs().sum().alias("traded"),
        pl.col("pnl").sum(),
        pl.col("cost").sum(),
    )
    return ShownHoldings(rows, totals, count, rows.height == frame.height)


_FIELDS = ("weight", "trade", "pnl", "cost")


def holdings_data(holdings: ShownHoldings) -> list[dict[str, Any]]:
    """Each session with its totals and ``rows`` of a ticker and numbers; the script writes names as text."""
    shown = holdings.rows.with_columns(pl.col("weight", "trade", "pnl").round(5), pl.col("cost").round(6))
    rows = shown.partition_by("date", maintain_order=True)
    of_sessions = (part.select("ticker", *_FIELDS).rows() for part in rows)
    return [
        {**total, "rows": own}
        for total, own in zip(holdings.totals.cast({"date": pl.String}).to_dicts(), of_sessions, strict=True)
    ]


def render_sweep(run_id: str, sweep: Sweep) -> str:
    """Render a sweep as one page: a cell has the net Sharpe ratio, and the deflated one in small."""
    return Page().render(
        "sweep.jinja",
        title=f"{run_id}: sweep of {sweep.grid.book}",
        sentences=sweep.sentences,
        maps=list(heat_maps(sweep)),
        variants=sweep.table,
        axes=[(a.name, a.name, _form(sweep.table[a.name].dtype)) for a in sweep.grid.axes],
        limit=max((abs(value) for value in sweep.table["sharpe_net"].drop_nulls()), default=0.0) or 1.0,
        shade=shade,
    )


def render_multiverse(name: str, multiverse: Multiverse) -> str:
    """Render a multiverse of a config as one page: specification curves, shares of choices, and tables."""
    page, charts = Page(), []
    for outcome, (figure, *ends) in OUTCOMES.items():
        designs = multiverse.designs.drop_nulls([figure, *ends])
        curve = models.specification_curve(designs, multiverse.choices, figure)
        about = "Each point is a design with its 95% interval; below it, its values."
        charts.append(page.chart(curve, about))
        shares = multiverse.shares.filter((pl.col("outcome") == outcome) & (pl.col("effect") != REST))
        if shares.height:
            about = "Effects of choices and pairs, with 95% intervals."
            charts.append(page.chart(models.share_bars(shares, outcome), about))
    return page.render(
        "multiverse.jinja",
        scripts=(get_plotlyjs(), script("report.js")),
        data={"figures": page.figures},
        title=f"{name}: multiverse of {multiverse.designs.height:,} designs",
        charts=charts,
        result=multiverse,
        choices=[(path, path) for path in multiverse.choices],
    )


def _form(kind: pl.DataType) -> str:
    """How the values of an axis are written in a table; numbers stand at the right."""
    return "g4" if kind.is_float() else "0" if kind.is_integer() else "text"
