"""The report: its contents, that it loads nothing, and that names which look like HTML are escaped.

This file is long because its fixture is a complete report.
"""

import base64
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest
from plotly.offline import get_plotlyjs

from pipelines.report import theme
from pipelines.report.charts import attribution, network, performance, training
from pipelines.report.contents.attribution import ExampleForecast, ModelAttribution
from pipelines.report.contents.header import RunHeader
from pipelines.report.contents.report import ReportData
from pipelines.report.contents.truth import SimulatedTruth
from pipelines.report.html import render
from pipelines.report.sections.assemble import sections
from pipelines.report.verdict import judge

MODELS = (
    "zero",
    "reversal",
    "momentum",
    "ridge",
    "lightgbm",
    "temporal_transformer",
    "self_peer",
    "temporal_peer",
)
SKILL = dict(zip(MODELS, (0.0, 0.010, 0.004, 0.021, 0.026, 0.029, 0.034, 0.041), strict=True))
NEURAL = MODELS[5:]
BOOKS = ("quantile long-short, 5 quantiles", "top 20 long-only")


def make_report(**changes: object) -> ReportData:
    """Build a run of 8 models, 2 delays, 3 folds and 100 firms, with planted truth and attribution."""
    parts: dict[str, Any] = {
        "header": make_header(),
        "ladder": make_ladder(),
        "folds": make_folds(),
        **make_series(),
        "quantiles": make_quantiles(),
        "comparisons": make_comparisons(),
        "cost_assumptions": pl.DataFrame(
            {
                "assumption": ["half-spread", "commission", "borrow on shorts"],
                "value": [5.0, 0.5, 50.0],
                "unit": ["bps of traded value", "bps of traded value", "bps of short value per year"],
            }
        ),
        "cost_breakdown": make_costs(),
        "learning": make_learning(),
        "truth": make_truth(),
        "attribution": (make_attribution("temporal_peer"), make_attribution("self_peer", example=False)),
    }
    return ReportData(**(parts | changes))


def make_header(**changes: object) -> RunHeader:
    parts: dict[str, Any] = {
        "run_id": "20260105T051500-3f9c2a",
        "name": "Nightly, simulated market",
        "created_at": "2026-01-05 05:15 UTC",
        "git_commit": "a58d3754c0ffee00112233445566778899aabbcc",
        "config_yaml": "name: nightly\nsource:\n  kind: simulated\n  seed: 7\nlabel:\n  delay: 1\n",
        "config_hash": "9b1f6c1de2a84b5f9b1f6c1de2a84b5f",
        "device": "CPU, 2 threads",
        "libraries": {"torch": "2.13.0", "polars": "2.1.0", "lightgbm": "4.7.1"},
        "data_versions": pl.DataFrame(
            {
                "table": ["prices", "securities", "fundamentals"],
                "version": [3, 1, None],
                "rows": [151200, 112, 9408],
            }
        ),
        "trial_count": 42,
        "seeds": (0, 1, 2),
        "label_delay": 1,
        "verdict_delay": 1,
        "execution_delay": 1,
        "label_horizon": 1,
        "label_transform": "rank",
        "universe": "price of at least 1, median dollar volume of at least 100,000 over 63 sessions",
        "mean_firms_per_date": 97.4,
        "main_book": BOOKS[0],
        "stage_seconds": {"ingest": 3.1, "train": 512.7, "backtest": 4.4, "explain": 61.0, "report": 2.2},
        "hazards": (
            "12 firms' prices end before the data do: they are assumed delisted at -30%.",
            "The universe was chosen with knowledge of the year 2017.",
        ),
        "notes": ("No volume in the source: liquidity characteristics are left out.",),
    }
    return RunHeader(**(parts | changes))


def answer(model: str, baseline: str) -> str | None:
    """Say yes or no if the planted ICs differ by 0.01 or more."""
    gap = SKILL[model] - SKILL[baseline]
    return None if model == baseline else "yes" if gap > 0.0101 else "no" if gap < -0.0099 else "unclear"


def make_comparisons() -> pl.DataFrame:
    rows = []
    for baseline in ("ridge", "lightgbm"):
        for model in MODELS:
            gap = SKILL[model] - SKILL[baseline]
            if model != baseline:
                rows.append(
                    {
                        "model": model,
                        "baseline": baseline,
                        "rival": baseline,
                        "delay": 1,
                        "level": 0.05,
                        "ic_difference": gap,
                        "ic_lower": gap - 0.0101,
                        "ic_upper": gap + 0.0099,
                        "ic_p": 0.0321,
                        "dm_p": 0.0432,
                        "sharpe_difference": 55 * gap,
                        "sharpe_lower": 55 * gap - 0.7,
                        "sharpe_upper": 55 * gap + 0.7,
                        "sharpe_p": 0.0765,
                        "beats": answer(model, baseline),
                    }
                )
    return pl.DataFrame(rows)


def make_ladder() -> pl.DataFrame:
    rows = []
    for delay, strength in ((1, 1.0), (0, 1.35)):
        for model in MODELS:
            ic = SKILL[model] * strength
            flat = model == "zero"
            net = 0.0 if flat else 55 * ic - 0.9
            rows.append(
                {
                    "model": model,
                    "delay": delay,
                    "seeds": 3 if model in NEURAL else 1,
                    "ic": None if flat else ic,
                    "icir": None if flat else 7 * ic,
                    "ic_t": None if flat else 160 * ic,
                    "rank_ic": None if flat else 0.93 * ic,
                    "rank_icir": None if flat else 6.6 * ic,
                    "coverage_dates": 1.0,
                    "coverage_firms": 0.975,
                    "tied": 1.0 if flat else 0.0,
                    "precision_at_10": 0.5 + ic,
                    "literature_sr": 60 * ic,
                    "valid_rank_ic": None if flat else 1.1 * SKILL[model],
                    "share_of_truth": None if flat else ic / 0.081,
                    "sharpe_gross": 0.0 if flat else 70 * ic,
                    "sharpe_net": net,
                    "ic_lower": None if flat or delay != 1 else ic - 0.012,
                    "ic_upper": None if flat or delay != 1 else ic + 0.012,
                    "sharpe_lower": None if flat or delay != 1 else net - 0.9,
                    "sharpe_upper": None if flat or delay != 1 else net + 0.9,
                    "deflated_sharpe": None if flat or delay != 1 else 0.7 + 0.2 * net,
                    "turnover": 0.0 if flat else 0.62,
                    "annual_return_net": 0.09 * net,
                    "max_drawdown_net": -0.02 if flat else -0.08 - 0.02 / (1 + ic),
                    "beats_ridge": None if delay != 1 else answer(model, "ridge"),
                    "beats_lightgbm": None if delay != 1 else answer(model, "lightgbm"),
                }
            )
    return pl.DataFrame(rows)


def make_folds() -> pl.DataFrame:
    rows = []
    for fold in range(3):
        test_from = dt.date(2021 + fold, 1, 4)
        rows.append(
            {
                "fold": fold,
                "train_from": dt.date(2018, 1, 2),
                "train_to": dt.date(2020 + fold, 6, 25),
                "valid_from": dt.date(2020 + fold, 7, 6),
                "valid_to": dt.date(2020 + fold, 12, 22),
                "test_from": test_from,
                "test_to": dt.date(2021 + fold, 12, 31),
                "n_train": 620 + 252 * fold,
                "n_valid": 118,
                "n_test": 252,
            }
        )
    return pl.DataFrame(rows)


def make_series(sessions: int = 756) -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(3)
    dates = pl.date_range(dt.date(2021, 1, 4), dt.date(2026, 1, 4), eager=True)
    dates = dates.filter(dates.dt.weekday() <= 5).head(sessions)
    common = rng.normal(0, 0.004, len(dates))
    equity, ic = [], []
    for model in MODELS:
        flat = model == "zero"
        daily = rng.normal(SKILL[model], 0.11, len(dates)) * (0 if flat else 1)
        values = np.full(len(dates), np.nan) if flat else daily
        ic.append(pl.DataFrame({"date": dates, "model": model, "ic": values, "rank_ic": 0.93 * values}))
        for book, drift in zip(BOOKS, (0.0, 0.0004), strict=True):
            gross = (0 if flat else 1) * (0.03 * daily * 0.5 + common * (drift > 0)) + drift
            net = gross - (0 if flat else 0.00035)
            equity.append(
                pl.DataFrame(
                    {
                        "date": dates,
                        "model": model,
                        "book": book,
                        "nav_gross": np.cumprod(1 + gross),
                        "nav_net": np.cumprod(1 + net),
                    }
                )
            )
    return {"equity": pl.concat(equity), "ic_series": pl.concat(ic)}


def make_quantiles() -> pl.DataFrame:
    rng = np.random.default_rng(4)
    return pl.DataFrame(
        [
            {
                "model": model,
                "quantile": q,
                "mean_return_bps": 400 * SKILL[model] * (q - 3) / 2 + rng.normal(0, 1) + 3,
            }
            for model in MODELS
            if model != "zero"
            for q in range(1, 6)
        ]
    )


def make_costs() -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "model": model,
                "book": book,
                "half_spread": 0.0 if model == "zero" else 640.0 * (1 + i / 9) * scale,
                "commission": 0.0 if model == "zero" else 64.0 * scale,
                "impact": 30.0 * scale * (model != "zero"),
                "financing": 0.0,
                "borrow": 50.0 * (scale == 1.0) * (model != "zero"),
            }
            for book, scale in zip(BOOKS, (1.0, 0.3), strict=True)
            for i, model in enumerate(MODELS)
        ]
    )


def make_learning() -> pl.DataFrame:
    rng = np.random.default_rng(5)
    rows = []
    for model in NEURAL:
        for fold in range(3):
            for seed in range(3):
                for epoch in range(1, int(rng.integers(8, 20))):
                    gain = 1 - math.exp(-epoch / 4)
                    rows.append(
                        {
                            "model": model,
                            "fold": fold,
                            "seed": seed,
                            "epoch": epoch,
                            "train_loss": 1 - 2 * SKILL[model] * gain + rng.normal(0, 0.004),
                            "valid_rank_ic": SKILL[model] * gain + rng.normal(0, 0.004),
                        }
                    )
    return pl.DataFrame(rows)


def make_edges(n_firms: int = 100, n_edges: int = 900) -> pl.DataFrame:
    rng = np.random.default_rng(6)
    firms = [f"S{i:04d}" for i in range(n_firms)]
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < n_edges:
        leader, follower = int(rng.zipf(1.4)) % n_firms, int(rng.integers(n_firms))
        if leader != follower:
            pairs.add((leader, follower))
    weight = (rng.pareto(1.8, n_edges) + 0.02) * 0.003
    return pl.DataFrame(
        {
            "leader": [firms[i] for i, _ in sorted(pairs)],
            "follower": [firms[j] for _, j in sorted(pairs)],
            "weight": weight,
            "share": weight / weight.sum(),
            "same_group": [i % 8 == j % 8 for i, j in sorted(pairs)],
        }
    ).sort("weight", descending=True)


def make_attribution(model: str, example: bool = True) -> ModelAttribution:
    days = [f"days {5 * i + 1} to {5 * i + 5} back" for i in range(4)]
    families = ["momentum", "reversal", "volatility", "liquidity", "value", "quality", "size"]
    kinds = ["days"] * 4 + ["features"] * 7 + ["peers"] * 2
    players = [*days, *families, "peers in the group", "other peers"]
    size = [0.021, 0.012, 0.006, 0.003, 0.009, 0.014, 0.006, 0.004, 0.011, 0.007, 0.005, 0.016, 0.004]
    values = [0.031, -0.012, 0.004, -0.001, 0.009, -0.018, 0.006, 0.002, 0.011, -0.003, 0.002, 0.022, -0.004]
    return ModelAttribution(
        model=model,
        n_forecasts=2_400,
        players=pl.DataFrame({"kind": kinds, "player": players, "mean_abs_shap": size}),
        additivity_max_abs=3.1e-7,
        additivity_relative=4.2e-6,
        monte_carlo_error=0.0004,
        agreement=pl.DataFrame({"kind": ["days", "peers"], "rank_correlation": [0.41, 0.18]}),
        example=ExampleForecast(
            "2023-11-17",
            "S0042",
            0.011,
            0.011 + sum(values),
            pl.DataFrame({"player": players, "value": values}),
        )
        if example
        else None,
        edges=make_edges(),
        homophily=0.63,
        homophily_by_chance=0.12,
    )


def make_truth() -> SimulatedTruth:
    fpr = np.linspace(0, 1, 2_000)
    powers = {"shap": 0.12, "attention": 0.45, "random": 1.0}
    curves = [pl.DataFrame({"method": m, "fpr": fpr, "tpr": fpr**p}) for m, p in powers.items()]
    top = make_edges().head(15)
    return SimulatedTruth(
        ceiling=pl.DataFrame({"delay": [1, 0], "ic": [0.081, 0.093], "rank_ic": [0.077, 0.089]}),
        edge_model="temporal_peer",
        edge_auc=pl.DataFrame({"method": list(powers), "auc": [1 / (1 + p) for p in powers.values()]}),
        roc=pl.concat(curves),
        top_edges=top.select("leader", "follower", "weight", planted=pl.int_range(pl.len()) % 4 != 3),
        n_planted=212,
        n_pairs=9_900,
    )


class Page(HTMLParser):
    """Parses a page into elements with attributes, text, scripts and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self.text = ""
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, code = self.scripts[-1]
            self.scripts[-1] = (attrs, code + data)
        elif self._inside == "style":
            self.style += data
        else:
            self.text += data


@functools.cache
def standard_page() -> str:
    return render(make_report())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(standard_page())


def figures_of(data: ReportData) -> list[go.Figure]:
    styles = theme.model_styles(data.models)
    blocks = (block for part in sections(data, styles, "temporal_peer") for block in part.blocks)
    return [block[0] for block in blocks if not isinstance(block, str)]


def section_titles(page: str) -> list[str]:
    return re.findall(r"<section id=\"([a-z]+)\">", page)


def test_the_page_loads_nothing(page: Page) -> None:
    ours = [code for attrs, code in page.scripts if code != get_plotlyjs()]
    assert len(ours) == len(page.scripts) - 1, "plotly.js is inlined exactly once"
    for tag, attrs in page.elements:
        assert tag not in {"iframe", "object", "embed", "img", "base", "form", "video", "audio"}
        assert "src" not in attrs
        assert "srcset" not in attrs
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attrs)
    everything = page.style + "".join(ours)
    banned = r"https?://|//cdn|url\(|@import|@font-face|fetch\(|XMLHttpRequest|topojson|mapbox|maplibre|MathJax|\$\$"
    assert re.search(banned, everything) is None
    assert '"scattergeo"' not in everything
    assert '"choropleth"' not in everything
    assert "showSendToCloud: false" in everything, "plotly.js 7 shows an upload button by default"
    assert 'plotlyServerURL: ""' in everything


def test_the_content_security_policy_allows_only_the_two_scripts(page: Page) -> None:
    metas = [
        a for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    policy = metas[0]["content"] or ""
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    script_rule = next(rule for rule in policy.split("; ") if rule.startswith("script-src"))
    assert "unsafe-inline" not in script_rule
    executed = [code for attrs, code in page.scripts if attrs.get("type") is None]
    hashes = {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in executed}
    assert set(re.findall(r"'sha256-([^']+)'", script_rule)) == hashes
    assert len(executed) == 2
    assert not any("\r" in code for code in executed), "browsers normalise line ends before they hash"


def test_every_figure_has_its_titles_and_a_caption(page: Page) -> None:
    figures = figures_of(make_report())
    assert len(figures) == 17
    for figure in figures:
        layout = figure.to_dict()["layout"]
        assert layout["title"]["text"].strip()
        axes = {name: value for name, value in layout.items() if name.startswith(("xaxis", "yaxis"))}
        assert axes
        for name, value in axes.items():
            hidden = value.get("showticklabels") is False
            assert value["title"]["text"].strip() or hidden, f"{layout['title']['text']}: {name} has no title"
    assert sum(tag == "figcaption" for tag, _ in page.elements) == len(figures)
    assert sum(tag == "figure" for tag, _ in page.elements) == len(figures)


def test_every_figure_is_in_the_page_as_valid_json(page: Page) -> None:
    places = [a["id"] for tag, a in page.elements if tag == "div" and a.get("class") == "plot"]
    drawn = {
        a["data-figure"]: json.loads(code) for a, code in page.scripts if a.get("type") == "application/json"
    }
    assert list(drawn) == places
    assert all(figure["data"] for figure in drawn.values())


def test_size_stays_small_for_a_long_run() -> None:
    long = make_series(1_300)
    tripled = [
        long["equity"].with_columns(pl.col("date").dt.offset_by(f"{5 * k}y")) for k in range(3)
    ]  # 15 years of two books
    data = make_report(equity=pl.concat(tripled), ic_series=long["ic_series"])
    assert len(render(data).encode()) < 8_000_000


def test_names_from_data_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    image = "\"><img src=x onerror=alert(2)> <a href='http://x.invalid'>y</a>"
    edges = make_edges().with_columns(leader=pl.lit(evil))
    attribution = dataclasses.replace(
        make_attribution("temporal_peer"),
        model=image,
        edges=edges,
        players=make_attribution("x").players.with_columns(player=pl.lit(evil) + pl.col("player")),
        example=ExampleForecast(
            evil, image, 0.0, 1.0, pl.DataFrame({"player": [evil, image], "value": [0.5, 0.5]})
        ),
    )
    rename = pl.col("model").replace("temporal_peer", image)
    clean = make_report()
    frames: dict[str, Any] = {
        name: getattr(clean, name).with_columns(rename)
        for name in ("ladder", "equity", "ic_series", "quantiles", "cost_breakdown", "learning")
    }
    frames["equity"] = frames["equity"].with_columns(book=pl.lit(evil))
    frames["cost_breakdown"] = frames["cost_breakdown"].with_columns(book=pl.lit(image))
    header = make_header(
        name=evil,
        run_id=image,
        config_yaml=f"a: {evil}",
        hazards=(evil, image),
        notes=(image,),
        libraries={evil: image},
        stage_seconds={evil: 1.0},
        main_book=evil,
        universe=image,
        data_versions=pl.DataFrame({"table": [evil], "version": [1], "rows": [2]}),
    )
    truth = make_truth()
    assert truth.top_edges is not None
    evil_edges = truth.top_edges.with_columns(leader=pl.lit(image))
    truth = dataclasses.replace(truth, edge_model=evil, top_edges=evil_edges)
    hostile = dataclasses.replace(clean, header=header, attribution=(attribution,), truth=truth, **frames)
    page = Page(render(hostile))
    assert evil in page.text
    assert image in page.text
    assert len([a for a, _ in page.scripts if a.get("type") is None]) == 2
    assert not any(tag == "img" for tag, _ in page.elements)
    assert not any("onerror" in attrs for _, attrs in page.elements)
    for figure in figures_of(hostile):  # plotly.js interprets chart texts as HTML: all must be escaped
        written = json.dumps(json.loads(figure.to_json()), ensure_ascii=False)
        visible = re.sub(r'"(legendgroup)": ?"(?:[^"\\]|\\.)*"', "", written)
        assert not re.search(r"<(script|img|a |/(?!extra>))", visible)


def test_sections_without_data_are_omitted() -> None:
    everything = [
        "models",
        "books",
        "signal",
        "costs",
        "folds",
        "learning",
        "truth",
        "attribution",
        "provenance",
    ]
    assert section_titles(standard_page()) == everything
    bare = ReportData(
        header=make_header(hazards=(), notes=(), git_commit=None), ladder=make_ladder().drop_nulls("ic")
    )
    page = render(bare)
    assert section_titles(page) == ["models", "provenance"]
    assert 'class="hazards"' not in page
    assert 'class="notes"' not in page
    assert re.findall(r'href="#([a-z]+)"', page) == ["top", "models", "provenance"]


@pytest.mark.parametrize(
    ("field", "anchor"),
    [
        ("equity", "books"),
        ("folds", "folds"),
        ("learning", "learning"),
        ("truth", "truth"),
    ],
)
def test_a_missing_part_removes_only_its_section(field: str, anchor: str) -> None:
    data = make_report(**{field: None})
    left = [part.anchor for part in sections(data, theme.model_styles(data.models), None)]
    assert anchor not in left
    assert len(left) == 8


def test_unknown_delistings_are_shown_by_book_and_only_if_there_were_any() -> None:
    sides = {"side": ["book", "long", "short"], "paid_out": [5, 3, 2]}
    sharpes = {
        "sharpe_net_0": [1.5, 1.2, 0.4],
        "sharpe_net_30": [0.9, 0.2, 0.8],
        "sharpe_net_55": [0.3, -0.7, 1.1],
    }
    returns = {
        "annual_return_net_0": [0.15, 0.12, 0.04],
        "annual_return_net_30": [0.09, 0.02, 0.08],
        "annual_return_net_55": [0.03, -0.07, 0.11],
    }
    endings = pl.DataFrame({**sides, **sharpes, **returns}).with_columns(
        model=pl.lit("ridge"), book=pl.lit("long_short")
    )
    page = render(make_report(endings=endings))
    assert section_titles(page)[:3] == ["models", "books", "delistings"]
    part = page[page.index('id="delistings"') : page.index('id="signal"')]
    rows = [
        [re.sub("<.*?>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", part)
    ]
    minus = "\N{MINUS SIGN}"
    long_side = [
        "ridge",
        "long_short",
        "long",
        "3",
        "1.20",
        "0.20",
        f"{minus}0.70",
        "12.0",
        "2.0",
        f"{minus}7.0",
    ]
    assert len(rows) == 5  # two rows of headers
    assert rows[3] == long_side
    assert "delistings" not in section_titles(render(make_report(endings=None)))
    assert "delistings" not in section_titles(render(make_report(endings=endings.clear())))


def test_empty_frames_count_as_no_data() -> None:
    full = make_report()
    empty = {
        name: getattr(full, name).clear()
        for name in (
            "equity",
            "ic_series",
            "quantiles",
            "cost_breakdown",
            "cost_assumptions",
            "folds",
            "learning",
        )
    }
    data = make_report(**empty, truth=None, attribution=())
    left = [part.anchor for part in sections(data, theme.model_styles(data.models), None)]
    assert left == ["models", "provenance"]


def ladder_with(model: str, **values: object) -> pl.DataFrame:
    chosen = (pl.col("model") == model) & (pl.col("delay") == 1)
    return make_ladder().with_columns(
        pl.when(chosen).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def test_the_verdict_chooses_by_validation_not_by_test() -> None:
    ladder = ladder_with(
        "self_peer", valid_rank_ic=0.09, ic=-0.01, ic_lower=-0.02, sharpe_net=-0.4, beats_ridge="no"
    )
    verdict = judge(make_report(ladder=ladder))
    assert verdict.best is not None
    assert verdict.best["model"] == "self_peer"
    assert verdict.tone == "bad"
    assert "loses money net of costs" in verdict.headline
    assert "not significantly above zero" in verdict.headline
    assert "does not beat ridge" in verdict.headline
    assert "unclear whether it beats LightGBM" in verdict.headline


def test_the_verdict_gives_the_evidence() -> None:
    verdict = judge(make_report())
    assert verdict.tone == "good"
    assert verdict.headline == "temporal_peer leads on validation and beats ridge and LightGBM on the test."
    assert "Validation rank IC 0.045" in verdict.evidence
    assert "sessions at delay 1: IC 0.041 (seed ensemble: t 6.6, [0.029, 0.053])" in verdict.evidence
    assert "Sharpe 1.35 [0.45, 2.25] net and 2.87 before costs" in verdict.evidence
    assert "deflated Sharpe 0.97" in verdict.evidence
    assert (
        "Beats ridge: yes (IC difference 0.0200 [0.0099, 0.0299], net Sharpe difference 1.10 [0.40, 1.80])"
        in verdict.evidence
    )
    assert "Beats lightgbm: yes" in verdict.evidence
    assert "42 trials" in verdict.evidence


@pytest.mark.parametrize(
    ("values", "doubt"),
    [
        ({"deflated_sharpe": 0.94}, "its deflated Sharpe ratio of 0.94 is below 0.95"),
        ({"deflated_sharpe": None}, "it has no deflated Sharpe ratio"),
        ({"ic_lower": 0.0}, "its test IC is not significantly above zero"),
        ({"ic_lower": None}, "its test IC has no interval"),
        (
            {"beats_ridge": "unclear", "beats_lightgbm": "unclear"},
            "it is unclear whether it beats ridge or LightGBM",
        ),
        ({"beats_lightgbm": "no"}, "it does not beat LightGBM"),
    ],
)
def test_each_threshold_of_the_verdict_is_a_doubt(values: dict[str, object], doubt: str) -> None:
    verdict = judge(make_report(ladder=ladder_with("temporal_peer", **values)))
    assert verdict.tone == "caution"
    assert verdict.headline == f"temporal_peer leads on validation, but {doubt}."


def test_the_verdict_is_about_the_first_delay_that_can_be_traded() -> None:
    trained_at_0 = make_report(header=make_header(label_delay=0, verdict_delay=1))
    assert judge(trained_at_0) == judge(make_report())
    page = Page(render(trained_at_0)).text
    assert "1.35" in page[: page.index("Hazards")]
    untradable = make_report(header=make_header(label_delay=0, verdict_delay=0, execution_delay=0))
    verdict = judge(untradable)
    assert verdict.tone == "caution"
    assert "no delay that can be traded was measured" in verdict.headline
    assert "On the test sessions at delay 0: IC 0.055 (seed ensemble: t 8.9, no interval)" in verdict.evidence
    at_once = judge(make_report(header=make_header(execution_delay=0)))
    assert at_once.headline.endswith("but no delay that can be traded was measured.")


def test_the_report_says_how_it_decides_and_shows_the_tests(page: Page) -> None:
    head = page.text[: page.text.index("Hazards")]
    assert "How this is decided" in head
    assert "deflated value is at least 0.95" in head
    assert "the 95% interval of the daily IC difference lies above 0" in head
    assert "IC difference +0.0200 [+0.0099, +0.0299]" in head, "in the tile"
    text = standard_page()
    found = re.search(r'aria-label="Tests against the baselines">.*?</table>', text, re.DOTALL)
    assert found is not None
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>.*?</tr>", found[0])
    ]
    peer = next(row for row in rows if row[:2] == ["self_peer", "lightgbm"])
    minus = "\N{MINUS SIGN}"
    assert peer[2:7] == ["+0.0080", f"{minus}0.0021", "+0.0179", "0.032", "0.043"]
    assert peer[7:] == ["+0.44", f"{minus}0.26", "+1.14", "0.076", "? unclear"]
    assert '<td class="unclear">? unclear</td>' in text
    untested = render(make_report(comparisons=None))
    assert "Tests against the baselines" not in untested
    assert "not tested" in untested


def test_the_verdict_names_missing_comparisons_and_winning_baselines() -> None:
    alone = (
        make_ladder()
        .filter(pl.col("model") == "temporal_peer")
        .with_columns(beats_ridge=pl.lit(None, dtype=pl.String), beats_lightgbm=pl.lit(None, dtype=pl.String))
    )
    verdict = judge(make_report(ladder=alone, comparisons=None))
    assert verdict.tone == "caution"
    assert "was not compared with ridge" in verdict.headline
    wins = judge(make_report(ladder=ladder_with("ridge", valid_rank_ic=0.2)))
    assert wins.tone == "caution"
    assert "it is itself a baseline" in wins.headline
    unscored = judge(make_report(ladder=make_ladder().with_columns(valid_rank_ic=pl.lit(float("nan")))))
    assert unscored.tone == "bad"
    assert unscored.best is None
    render(make_report(ladder=make_ladder().with_columns(valid_rank_ic=pl.lit(None, dtype=pl.Float64))))


def test_long_only_books_are_compared_with_the_universe_and_the_rate_is_named() -> None:
    book = BOOKS[1]
    numbers = {
        "sharpe_gross": 0.913,
        "sharpe_net": 0.711,
        "annual_return_net": 0.123,
        "information_ratio": -0.456,
        "tracking_error": 0.0789,
    }
    columns = [pl.lit(value).alias(f"{book}.{name}") for name, value in numbers.items()]
    ladder = make_ladder().with_columns(columns)
    text = render(make_report(ladder=ladder, header=make_header(sharpe_rate="the rates in tbill.csv")))
    found = re.search(rf'aria-label="{book} against the universe">.*?</table>', text, re.DOTALL)
    assert found is not None
    row = re.search(r"<tbody>(<tr>.*?</tr>)", found[0], re.DOTALL)
    assert row is not None
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row[1])]
    assert cells[1:] == ["0.91", "0.71", "12.3", "\N{MINUS SIGN}0.46", "7.9"]
    assert text.count("against the universe</th>") == 1
    assert text.count("in excess of the rates in tbill.csv") == 2
    plain = standard_page()
    assert "against the universe" not in plain
    assert "Sharpe ratios are in excess of a rate of 0, charged on net exposure" in plain


def test_numbers_have_units_and_missing_ones_are_dashes(page: Page) -> None:
    text = standard_page()
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r'<tr class="chosen">.*?</tr>', text)
    ]
    forecast = ["3", "0.045", "0.041", "6.6", "0.29", "0.038", "0.27", "54.1", "2.46", "51"]
    forecast += ["100.0", "97.5", "0.0"]
    book = [
        "2.87",
        "1.35",
        "0.45",
        "2.25",
        "0.97",
        "12.2",
        "\N{MINUS SIGN}9.9",
        "62.0",
        "\N{CHECK MARK} yes",
        "\N{CHECK MARK} yes",
    ]
    assert rows[:2] == [["temporal_peer", *forecast], ["temporal_peer", *book]]
    assert len(rows) == 4, "the chosen model is highlighted at both delays"
    assert "\N{EN DASH}</td>" in text
    assert "max drawdown %" in page.text
    assert "turnover % / session" in page.text
    assert "return % / year" in page.text


def test_other_delays_have_their_own_tables(page: Page) -> None:
    assert "The same forecasts with a delay of 0 sessions" in page.text
    assert "it cannot be traded" in page.text
    only = make_ladder().filter(pl.col("delay") == 1)
    data = make_report(ladder=only)
    blocks = next(sections(data, theme.model_styles(data.models), None)).blocks
    assert not any(isinstance(block, str) and "The same forecasts" in block for block in blocks)


def test_a_model_has_the_same_colour_in_every_chart() -> None:
    data = make_report()
    styles = theme.model_styles(data.models)
    assert len({style.colour for style in styles.values()}) == len(MODELS)
    assert data.equity is not None
    assert data.ic_series is not None
    assert data.learning is not None
    figures = [
        performance.net_asset_value(data.equity, styles, BOOKS[0]),
        performance.cumulative_rank_ic(data.ic_series, styles),
        training.learning_curves(data.learning, styles),
    ]
    for figure in figures:
        lines = [trace for trace in figure.data if trace.name in styles]
        assert len({trace.name for trace in lines}) >= 3
        assert all(trace.line.color == styles[trace.name].colour for trace in lines)
    many = theme.model_styles([str(i) for i in range(25)])
    assert len({(style.colour, style.dash) for style in many.values()}) == 25


def test_cumulative_and_rolling_rank_ic_by_hand() -> None:
    dates = [dt.date(2024, 1, day) for day in range(1, 9)]
    values = [0.1, None, -0.2, 0.3, float("nan"), 0.1, 0.1, 0.2]
    frame = pl.DataFrame({"date": dates, "model": "a", "ic": values, "rank_ic": values}, strict=False)
    styles = theme.model_styles(["a"])
    total = performance.cumulative_rank_ic(frame, styles).data[0]
    assert total.y.tolist() == pytest.approx([0.1, 0.1, -0.1, 0.2, 0.2, 0.3, 0.4, 0.6], abs=1e-6)
    assert performance.rolling_window(frame) == 2
    mean = performance.rolling_rank_ic(frame, styles).data[0]
    assert list(mean.x) == [f"2024-01-0{day}" for day in range(2, 9)]
    assert mean.y.tolist() == pytest.approx([0.1, -0.2, 0.05, 0.3, 0.1, 0.1, 0.15], abs=1e-6)


def test_drawdowns_are_computed_before_thinning() -> None:
    nav = np.ones(5_000)
    nav[1_001] = 2.0  # thinning removes the peak itself
    frame = pl.DataFrame(
        {
            "date": pl.date_range(dt.date(2000, 1, 1), dt.date(2030, 1, 1), eager=True).head(5_000),
            "model": "a",
            "book": "b",
            "nav_gross": nav,
            "nav_net": nav,
        }
    )
    figure = performance.net_asset_value(frame, theme.model_styles(["a"]), "b")
    drawdown = figure.data[1].y
    assert len(drawdown) <= theme.MAX_POINTS + 1
    assert drawdown[0] == 0
    assert drawdown[-1] == pytest.approx(-0.5)


def test_thinning_keeps_the_first_and_the_last_row() -> None:
    for height in (1, 999, 1_000, 1_001, 2_500, 2_501):
        kept = theme.thin(pl.DataFrame({"i": range(height)}))["i"].to_list()
        assert kept[0] == 0
        assert kept[-1] == height - 1
        assert len(kept) <= 1_001


def test_the_network_draws_the_strongest_edges_without_overlapping_names() -> None:
    edges = make_edges()
    figure = network.peer_network(edges, "temporal_peer", n_edges=40)
    arrows = [a for a in figure.layout.annotations if a.showarrow]
    names = [a for a in figure.layout.annotations if not a.showarrow]
    assert len(arrows) == 40
    top = edges.sort("weight", descending=True).head(40)
    assert {a.text for a in names} == {*top["leader"].to_list(), *top["follower"].to_list()}
    places = {a.text: (a.x, a.y) for a in names}
    first, arrow = top.row(0, named=True), arrows[0]
    assert (arrow.ax, arrow.ay) == places[first["leader"]]
    assert (arrow.x, arrow.y) == places[first["follower"]]
    at = np.array(list(places.values()))
    gap = np.abs(at[:, None] - at[None, :])
    close = (gap[..., 0] < 48) & (gap[..., 1] < 22)
    assert close.sum() == len(at), "names overlap"


def test_the_waterfall_of_a_forecast_adds_up_and_merges_small_players() -> None:
    values = [0.5, -0.3, *([0.01] * 15)]
    example = ExampleForecast(
        "2024-01-02",
        "A",
        0.1,
        0.1 + sum(values),
        pl.DataFrame({"player": [f"p{i}" for i in range(17)], "value": values}),
    )
    bars = attribution.one_forecast(example, "m").data[0]
    assert list(bars.measure) == ["absolute", *["relative"] * 13, "total"]
    assert sum(bars.x[:-1]) == pytest.approx(bars.x[-1])
    assert bars.y[-2] == "5 other players"


def test_missing_columns_and_delays_are_refused() -> None:
    equity = make_report().equity
    assert equity is not None
    with pytest.raises(ValueError, match="equity frame lacks nav_net"):
        make_report(equity=equity.drop("nav_net"))
    with pytest.raises(ValueError, match="no row with delay 5"):
        make_report(header=make_header(label_delay=5))


def test_rendering_twice_gives_the_same_page() -> None:
    assert render(make_report()) == standard_page()
