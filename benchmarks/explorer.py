"""The explorer of a network of 1,026 firms: size of the page, time to open it, and time to answer a click.

The tables are made up: 1,026 firms in 110 groups on 32 dates. The first network has 200 followers, as
`explain.max_peers: 200` measures; the second has all firms as followers. On every date 20 peers of a follower
are stored by value and 20 by attention. The page is opened in Chromium by Playwright. A click ends with the
next frame of the browser. The targets: the page opens in less than 5 s, and a click of every kind is answered
in less than 200 ms, both as medians. The exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from playwright.sync_api import Page, sync_playwright

from features.arrays import IntArray
from pipelines.config.load import load_config
from pipelines.pages.explorer import write_explorer
from pipelines.run.identity import Identity
from pipelines.run.record import RecordedRun

ROOT = Path(__file__).resolve().parents[1]
FIRMS, GROUPS, DATES, STORED = 1_026, 110, 32, 40
OPEN_SECONDS, CLICK_MILLISECONDS = 5.0, 200.0
MODEL = "temporal_peer"
# Resolves with the milliseconds from an action to the end of the next frame.
_TIMED = """async (action) => {
  const started = performance.now();
  action();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - started;
}"""
_INPUT = "dispatchEvent(new Event('input', {bubbles: true}))"
ACTIONS: Mapping[str, str] = {
    "firm": "document.querySelectorAll('#edges button.firm')[1 + 2 * (STEP % 20)].click()",
    "date": f"const e = document.getElementById('date'); e.value = STEP % 32; e.{_INPUT}",
    "search": f"const e = document.getElementById('firm'); e.value = 'F0' + STEP; e.{_INPUT}",
    "edge through time": "document.querySelectorAll('#peersIn button.history')[STEP % 12].click()",
    "matrices": "document.querySelectorAll('#matrixPart .views button')[(STEP + 1) % 2].click()",
    "filter by t": f"const e = document.getElementById('least'); e.value = STEP % 3; e.{_INPUT}",
}


def made_tables(followers: int) -> Mapping[str, pl.DataFrame]:
    """Random tables of a network in the sizes of a run."""
    rng = np.random.default_rng(0)
    tickers = np.array([f"F{firm:04d}" for firm in range(FIRMS)])
    groups = np.array([f"Industry {group}" for group in range(GROUPS)])
    dates = [dt.date(2016, 1, 4) + dt.timedelta(days=21 * d) for d in range(DATES)]

    def pairs(count: int) -> tuple[IntArray, IntArray]:
        """Distinct leaders of each follower, not itself."""
        step = rng.permuted(np.tile(np.arange(1, FIRMS), (followers, 1)), axis=1)[:, :count]
        follower = np.repeat(np.arange(followers), count)
        return (follower + step.ravel()) % FIRMS, follower

    dated = []
    for date in dates:
        leader, follower = pairs(STORED)
        dated.append(
            pl.DataFrame(
                {
                    "leader": tickers[leader],
                    "follower": tickers[follower],
                    "value": 1e-3 * rng.standard_t(3, len(leader)),
                    "error": 1e-4 * rng.random(len(leader)),
                    "rank": np.tile(np.arange(1, STORED + 1), followers),
                    "attention": rng.dirichlet(np.ones(len(leader))),
                    "attention_rank": np.tile(np.arange(STORED, 0, -1), followers),
                }
            ).with_columns(date=pl.lit(date))
        )
    firms = pl.DataFrame({"ticker": tickers}).with_columns(
        base=pl.lit(rng.normal(size=FIRMS)) * 1e-3, forecast=pl.lit(rng.normal(size=FIRMS)) * 1e-3
    )
    leader, follower = pairs(150)
    count = len(leader)
    edges = {name: rng.random(count) for name in ("weight", "error", "signed", "q", "attention")}
    one, two = np.divmod(np.arange(GROUPS**2), GROUPS)
    tables = {
        "dated_edges": pl.concat(dated),
        "dated_firms": pl.concat(
            firms.with_columns(date=pl.lit(date), fold=d // 16, seed=0) for d, date in enumerate(dates)
        ),
        "edges": pl.DataFrame(
            {"leader": tickers[leader], "follower": tickers[follower], **edges}
        ).with_columns(
            t=pl.lit(rng.normal(2, 3, count)),
            found=pl.lit(rng.random(count) < 0.8),
            rank=pl.lit(np.tile(np.arange(1, 151), followers)),
        ),
        "firms": pl.DataFrame(
            {
                "ticker": tickers,
                "group": groups[np.arange(FIRMS) % GROUPS],
                **{name: rng.random(FIRMS) for name in ("out_strength", "in_strength", "pagerank")},
                **{name: rng.integers(0, 200, FIRMS) for name in ("leads", "follows", "community")},
            }
        ),
        "groups": pl.DataFrame({"leaders": groups[one], "followers": groups[two]}).with_columns(
            weight=pl.lit(rng.random(GROUPS**2)), attention=pl.lit(rng.random(GROUPS**2))
        ),
        "network": pl.DataFrame(
            {
                "measure": ["homophily"],
                "value": [0.1],
                "null_mean": [0.0],
                "null_low": [0.0],
                "null_high": [0.1],
            }
        ).with_columns(number=1),
    }
    return {name: frame.with_columns(model=pl.lit(MODEL)) for name, frame in tables.items()}


def click_times(page: Page, repeats: int) -> Mapping[str, Sequence[float]]:
    """Milliseconds of every action, repeated."""
    return {
        name: [
            page.evaluate(f"({_TIMED})(() => {{ {action.replace('STEP', str(step))} }})")
            for step in range(repeats)
        ]
        for name, action in ACTIONS.items()
    }


def measure(followers: int, repeats: int, browser: str) -> bool:
    """Write, open and click; print the figures and return whether both targets are met."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(ROOT / "configs" / "demo.yaml", ["label.transform=demean"])
        run = RecordedRun("made-0123456789", config, Identity.nothing(), Path(folder))
        for name, frame in made_tables(followers).items():
            run.write_table(f"explain_{name}", frame)
        started = time.perf_counter()
        path = write_explorer(run)
        wrote = time.perf_counter() - started
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            opened = []
            for _ in range(3):
                page = chromium.new_page(viewport={"width": 1280, "height": 900})
                started = time.perf_counter()
                page.goto(path.as_uri())
                page.wait_for_selector("#peersIn tbody tr")
                opened.append(time.perf_counter() - started)
            clicks = click_times(page, repeats)
            chromium.close()
        print(f"{FIRMS:,} firms, {followers:,} followers, {DATES} dates: {path.stat().st_size / 1e6:.1f} MB")
    print(
        f"  written in {wrote:.2f} s, opened in {statistics.median(opened):.2f} s (target {OPEN_SECONDS:g} s)"
    )
    for name, times in clicks.items():
        print(
            f"  {name:<18} median {statistics.median(times):4.0f} ms, slowest {max(times):4.0f} ms"
            f" (target {CLICK_MILLISECONDS:g} ms)"
        )
    slowest = max(statistics.median(times) for times in clicks.values())
    return statistics.median(opened) < OPEN_SECONDS and slowest < CLICK_MILLISECONDS


def main() -> int:
    """Measure both networks."""
    parser = argparse.ArgumentParser(description="Size and speed of the explorer.")
    parser.add_argument("--followers", type=int, nargs="+", default=[200, FIRMS])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--browser", default="/usr/bin/chromium", help="path of Chromium")
    options = parser.parse_args()
    if not Path(options.browser).is_file():
        print(f"There is no browser at {options.browser}; give the path of Chromium with --browser.")
        return 1
    met = [measure(followers, options.repeats, options.browser) for followers in options.followers]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
