"""The page of a night: one self-contained HTML file without scripts, so that a name from the data stays text.

Shape suffix: T sessions.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backtest.analysis.history import LABELS, rolling_mean_ic
from pipelines.nightly.book.account import earned
from pipelines.nightly.book.next_book import amount
from pipelines.nightly.result import NightFinding, NightResult, read_warnings
from pipelines.pages import figure
from pipelines.pages.page import Page, static_chart
from pipelines.pages.tables import write

_NAMES = 10  # at each end
_WINDOW = 20  # sessions of the rolling mean of the realised rank IC
_SESSIONS = 250  # of a chart
_FEATURES = 12  # of the drift table without unfolding
_MOVERS = 3
_ROLES = (("champion", figure.LineStyle(figure.BLUE)), ("challenger", figure.LineStyle(figure.INK, "dash")))
_ORDER = ("account", "checks", "trades", "names", "monitoring", "nights", "promotions", "versions")
_TITLES = {"names": "Highest and lowest signals", "nights": "Last nights"}
_SECTIONS = {name: _TITLES.get(name, name.capitalize()) for name in _ORDER}


def render_page(result: NightResult) -> str:
    """Render the page of a night, also of one that failed, as an HTML document that loads nothing."""
    page, titles = Page(), _SECTIONS
    if result.state == "done":  # nothing to look into: what is to be done tonight comes first
        titles = {name: titles[name] for name in ("account", "trades", "names", "checks", *list(titles)[4:])}
    parts = page.sections("night_sections.jinja", titles, **_context(result))
    versions = f"model {result.champion}" if result.champion is not None else "no model"
    if result.challenger is not None:
        versions += f"; challenger {result.challenger}"
    return page.render(
        "night.jinja",
        css=("night.css",),
        title=f"{result.config} {result.session}: {result.state}",
        night=result,
        versions=versions,
        headline=_headline(result),
        parts=parts,
    )


def _context(result: NightResult) -> dict[str, Any]:
    found = {
        name: [_check(one) for one in result.findings if one.level == name] for name in ("fail", "warn", "ok")
    }
    moved = _movers(result.tables.get("attributions", pl.DataFrame()))
    charts, words = _skill(result)
    account_tiles, account_charts = _account(result.tables.get("profits", pl.DataFrame()))
    return {
        "col": pl.col,
        "night": result,
        "serious": found["fail"] + found["warn"],
        "fine": found["ok"],
        "account_tiles": account_tiles,
        "account_charts": account_charts,
        "tiles": _tiles(result),
        "limits": _limits(result.tables.get("limits", pl.DataFrame())),
        "orders": result.book.filter(pl.col("trade") != 0)
        .sort(pl.col("trade").abs(), descending=True)
        .with_columns(side=pl.when(pl.col("trade") > 0).then(pl.lit("buy")).otherwise(pl.lit("sell"))),
        "ends": list(_ends(result, moved)),
        "explained": bool(moved),
        "charts": charts,
        "charts_say": words,
        "drift": _drift(result.tables.get("drift", pl.DataFrame())),
        "behaviour": _behaviour(result),
        "nights_before": _nights(result.nights),
        "used": _versions(result),
        "seconds": pl.DataFrame(
            list(result.seconds.items()), schema={"step": pl.String, "seconds": pl.Float64}, orient="row"
        ),
    }


def _headline(result: NightResult) -> str:
    """Say in one sentence how the night ended."""
    if result.state == "failed":
        failures = (one.sentence for one in result.findings if one.level == "fail")
        return result.error or next(failures, "The night ended with an error that has no message.")
    book = "nothing is traded"
    if result.trade_count:
        book = (
            f"{result.trade_count:,} trades turn over {result.turnover:.1%} of NAV at an expected cost of "
            f"{1e4 * result.expected_cost:.1f} bps"
        )
    warnings = sorted({finding.check for finding in result.findings if finding.level != "ok"})
    noted = f" Warnings: {', '.join(warnings)}." if warnings else ""
    return f"{result.signal_count:,} signals for the session after {result.session}; {book}.{noted}"


def _check(finding: NightFinding) -> dict[str, str]:
    subject = f" ({finding.subject})" if finding.subject else ""
    return {"verdict": finding.level, "check": f"{finding.check}{subject}", "sentence": finding.sentence}


def _tiles(result: NightResult) -> list[tuple[str, str, str]]:
    weight = result.book["weight"]
    figures = {
        "trades": write(result.trade_count, "0"),
        "turnover": f"{write(result.turnover, '%1')}%",
        "expected cost, bps": write(result.expected_cost, "bps1"),
        "positions": write((weight != 0).sum(), "0"),
        "gross": f"{write(float(weight.abs().sum()), '%1')}%",
        "net": f"{write(float(weight.sum()), '+%1')}%",
    }
    return [(name, value, "") for name, value in figures.items()]


def _account(profits: pl.DataFrame) -> tuple[list[tuple[str, str, str]], list[dict[str, Any]]]:
    """Tiles and the chart of the account; none before a night has booked it."""
    if profits.is_empty():
        return [], []
    found, newest = earned(profits), profits.row(-1, named=True)
    tiles = [
        (f"P&L of {newest['session']}", write(found["pnl"], "+0"), f"{write(found['return'], '+%2')}%"),
        ("P&L of the month", write(found["pnl_month"], "+0"), f"{write(found['return_month'], '+%2')}%"),
        ("NAV", write(newest["nav"], "0"), f"gross {write(newest['gross'], '0')}"),
    ]
    if profits.height < 2:
        return tiles, []
    lines = {
        "account": ("nav", figure.LineStyle(figure.BLUE)),
        "backtest of its decisions": ("backtest_nav", figure.LineStyle(figure.INK, "dash")),
    }
    grown = profits.with_columns((pl.col("nav", "backtest_nav") / pl.col("capital") - 1.0) * 100.0)
    return tiles, [_chart("Return on the capital, after costs, %", _lines(grown, lines))]


def _lines(frame: pl.DataFrame, lines: Mapping[str, tuple[str, figure.LineStyle]]) -> list[figure.Trace]:
    """Columns of the last sessions as lines, by their names in the legend."""
    newest = frame.sort("session").tail(_SESSIONS)
    return [
        figure.line(newest.select(date="session", y=y), name, style, "") for name, (y, style) in lines.items()
    ]


def _chart(title: str, traces: Sequence[figure.Trace]) -> dict[str, Any]:
    return static_chart(figure.draw(title, 180, traces, figure.over_time(figure.axis(""))))


def _limits(limits: pl.DataFrame) -> pl.DataFrame:
    """The limits of the book's rule with their amounts in words: those that bind first."""
    if limits.is_empty():
        return limits
    order = pl.col("state").replace_strict({"exceeded": 0, "binds": 1, "free": 2})
    ordered = limits.sort(order, maintain_order=True)
    return ordered.with_columns(
        pl.Series(name, [amount(*row) for row in ordered.select(field, "unit").iter_rows()])
        for name, field in (("amount", "value"), ("allowed", "limit"))
    )


def _ends(result: NightResult, moved: dict[str, str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """The highest and the lowest signals of the champion, with what moved them."""
    ranked = _champion_signals(result).drop_nulls("signal").sort("signal", descending=True)
    reasons = pl.col("ticker").replace_strict(moved, default=None, return_dtype=pl.String)
    ranked, half = ranked.with_columns(moved=reasons), min(_NAMES, ranked.height // 2) or 1
    if ranked.height:
        yield "Highest", ranked.head(half)
        yield "Lowest", ranked.tail(half).reverse()


def _champion_signals(result: NightResult) -> pl.DataFrame:
    """The champion's signals in this session; without a champion, those of all versions."""
    if result.champion is None:
        return result.signals
    return result.signals.filter(pl.col("version") == str(result.champion))


def _movers(attributions: pl.DataFrame) -> dict[str, str]:
    """Ticker -> its largest Shapley values in words, such as ``momentum +0.42, days 1-5 -0.20``."""
    if attributions.is_empty():
        return {}
    ordered = attributions.sort(pl.col("value").abs(), descending=True, maintain_order=True)
    return {
        str(ticker): ", ".join(
            f"{player} {write(value, '+2')}"
            for player, value in rows.head(_MOVERS).select("player", "value").iter_rows()
        )
        for (ticker,), rows in ordered.partition_by("ticker", as_dict=True, maintain_order=True).items()
    }


def _skill(result: NightResult) -> tuple[list[dict[str, Any]], list[str]]:
    """The realised rank IC with its band, and the CUSUM with its limit; and what the charts show."""
    realised, cusum = (result.tables.get(name, pl.DataFrame()) for name in ("realised_ic", "cusum"))
    charts, words = [], []
    if not realised.is_empty():
        charts.append(_chart("Realised rank IC", _realised(realised, result.overlap)))
        band = "with a band of 95%"
        if result.overlap * LABELS > _WINDOW:
            band = f"too few for a band, because the labels of {result.overlap} sessions overlap"
        many = realised.filter(pl.col("role") == "champion").height >= _WINDOW
        words = [
            "The thin grey line is the rank IC of single sessions whose labels have ended.",
            f"The thick lines are means of {_WINDOW} sessions, {band}."
            if many
            else f"A mean is drawn from {_WINDOW} sessions on.",
        ]
    if not cusum.is_empty():
        lines = {
            "CUSUM of the champion": ("sum", figure.LineStyle(figure.BLUE)),
            "limit": ("limit", figure.LineStyle(figure.VERMILION, "dash")),
        }
        charts.append(_chart("CUSUM of realised rank IC", _lines(cusum, lines)))
        words.append(
            "The CUSUM rises while forecasts are worse than in the backtest; at the limit it is an alarm."
        )
    return charts, words


def _realised(realised: pl.DataFrame, overlap: int) -> list[figure.Trace]:
    newest = realised["session"].unique().sort().tail(_SESSIONS)
    series = {
        role: realised.filter(pl.col("role") == role).select(date="session", rank_ic="rank_ic").sort("date")
        for role, _ in _ROLES
    }
    within = pl.col("date").is_in(newest.implode())
    daily = series["champion"].filter(within).rename({"rank_ic": "y"})
    grey = figure.LineStyle(figure.UNSKILLED["zero"])
    traces = [figure.line(daily, "champion, daily", grey, "", line={"color": grey.colour, "width": 0.8})]
    for role, style in _ROLES:
        mean = rolling_mean_ic(series[role], _WINDOW, overlap).filter(within).rename({"rank_ic": "y"})
        known, name = mean.drop_nulls("half"), f"{role}, mean of {_WINDOW} sessions"
        if mean["y"].is_null().all():
            continue
        if role == "champion" and not known.is_empty():
            traces.append(figure.band(known, known["half"], name, style))
        traces.append(figure.line(mean, name, style, "", legendgroup=name) | {"name": name})  # not shortened
    return traces


def _drift(drift: pl.DataFrame) -> list[pl.DataFrame]:
    """The features that are closest to the limits of their drift, and the others."""
    if drift.is_empty():
        return []
    share = pl.col("psi") / pl.col("psi_limit")
    ordered = drift.sort("drifted", share, descending=True, nulls_last=True, maintain_order=True)
    return [rows for rows in (ordered.head(_FEATURES), ordered.slice(_FEATURES)) if not rows.is_empty()]


def _behaviour(result: NightResult) -> pl.DataFrame:
    """Turnover and seed dispersion of the signals, and how champion and challenger agree, newest first."""
    parts = []
    for table, name in (("turnover", "turnover"), ("dispersion", "mean_dispersion")):
        for role, _ in _ROLES:
            if table in result.tables:
                own = result.tables[table].filter(pl.col("role") == role)
                parts.append(own.select("session", pl.col(name).alias(f"{name}_{role}")))
    if "agreement" in result.tables:
        parts.append(result.tables["agreement"].select("session", "rank_correlation"))
    known = [part for part in parts if not part.is_empty()]
    if not known:
        return pl.DataFrame()
    return pl.concat(known, how="align_full").sort("session", descending=True).head(10)


def _nights(nights: pl.DataFrame) -> pl.DataFrame:
    """The last nights, newest first, with what happened in them."""
    shown = nights.sort("session", descending=True).head(20)
    warned = (sorted({one.check for one in read_warnings(text)}) for text in shown["warnings"])
    happened = [
        error if error is not None else ", ".join(checks) or None
        for error, checks in zip(shown["error"], warned, strict=True)
    ]
    return shown.with_columns(
        pl.Series("happened", happened, dtype=pl.String), pl.col("version").fill_null("none")
    )


def _versions(result: NightResult) -> dict[str, str]:
    """Versions of models and data."""
    used = {role: str(getattr(result, role) or "none") for role, _ in _ROLES}
    signals = _champion_signals(result)
    if not signals.is_empty():
        versions = json.loads(signals["data_versions"][0])
        used["data"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        used["revision of the signals"] = str(signals["revision"][0])
    return used
