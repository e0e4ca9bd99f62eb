"""The trial ledger for a terminal: what was tried, what counts, and why."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from backtest.accounts.performance import sharpe
from features.panel.periods import periods_per_year
from pipelines.errors import ConfigError
from pipelines.results.signal_file import find_signals
from pipelines.run.record import open_run
from pipelines.run.registration import registered_runs
from pipelines.terminal import text_table
from pipelines.train.trials import Scope, count_trials, read_returns, read_trials

_TRAINED = "trained"  # stands for the book of what was only trained


def trial_rows(output: Path, run: str | None) -> list[dict[str, Any]]:
    """List the trials of an output folder, oldest first, and whether each counts (against ``run``)."""
    judge, rows = _judge(output, run), []
    for row in read_trials(output).iter_rows(named=True):
        counts, why = judge(row)
        own = {name: row[name] for name in ("model", "book", "market")}
        known = {name: row[name] for name in ("lake", "hypotheses", "first_tried", "runs")}
        named = {"trial": _name(row), **own, "source": _source(row["config"]), **known}
        rows.append({**named, "counts": counts, "why": why})
    return rows


def describe_trials(rows: list[dict[str, Any]]) -> str:
    """Format trials for a terminal: one line each, then the number that counts on every market."""
    if not rows:
        return "Nothing has been tried in this folder."
    cells = []
    for row in rows:
        names, tried = ", ".join(row["hypotheses"]) or "-", f"{row['first_tried']:%Y-%m-%d %H:%M}"
        counts = f"{'yes' if row['counts'] else 'no'}: {row['why']}"
        cells.append(
            (row["trial"], row["model"], row["book"] or _TRAINED, str(row["market"]), names, tried, counts)
        )
    heads = ("trial", "model", "book", "market", "hypothesis", "first tried", "counts")
    lines = text_table(cells, heads, left=len(heads), indent="")
    for market in sorted({row["market"] for row in rows}):
        own = [row for row in rows if row["market"] == market]
        named = sorted({name for row in own for name in row["hypotheses"]})
        counted = [row["hypotheses"] for row in own if row["counts"]]
        shares = [f"{name} {sum(name in names for names in counted)}" for name in named]
        by_name = f" (by hypothesis: {', '.join(shares)})" if shares else ""
        lake = next((row["lake"] for row in own if row["lake"] is not None), None)
        where = own[0]["source"] + ("" if lake is None else f", lake {lake}")
        lines.append(f"market {market} ({where}): {len(counted)} count{by_name}")
    return "\n".join(lines)


def trial_details(output: Path, trial: str) -> Mapping[str, Any]:
    """Collect what the ledger knows of one trial, with its results by set of assumptions, newest first."""
    trials = read_trials(output)
    found = [row for row in trials.iter_rows(named=True) if _name(row).startswith(trial)]
    if len(found) != 1:
        which = "More than one trial begins" if found else "No trial begins"
        raise ConfigError(f"{which} with {trial!r}; 'peerglass trials list --output {output}' lists them.")
    (row,) = found
    own = trials.filter(pl.col("forecast") == row["forecast"], pl.col("traded") == row["traded"])
    listed = next(one for one in trial_rows(output, None) if one["trial"] == _name(row))
    settings = json.loads(row["config"])
    year = settings.get("label", {}).get("periods_per_year")
    measured = [
        {
            "assumptions": one["assumptions"],
            "first": min(one["dates"]),
            "last": max(one["dates"]),
            "sessions": len(one["dates"]),
            "sharpe_net": sharpe(
                pl.Series(one["returns"], dtype=pl.Float64).to_numpy(),
                year or periods_per_year(pl.Series(one["dates"]).to_numpy()),
            ),
        }
        for one in read_returns(output, own).iter_rows(named=True)
        if one["dates"]
    ]
    registered = {run: said for run, said in registered_runs(output).items() if run in row["runs"]}
    return {**listed, "registered": registered, "settings": settings, "measured": measured}


def describe_trial(details: Mapping[str, Any]) -> str:
    """Format one trial for a terminal."""
    facts = {
        "forecast": details["model"],
        "book": details["book"] or _TRAINED,
        "market": f"{details['market']} ({details['source']})",
        "hypotheses": ", ".join(details["hypotheses"]) or "none: the market",
        "first tried": f"{details['first_tried']:%Y-%m-%d %H:%M:%S} UTC",
        "runs": ", ".join(details["runs"]),
        **details["registered"],
        "counts": f"{'yes' if details['counts'] else 'no'}: {details['why']}",
    }
    measured = (
        f"under assumptions {one['assumptions']}: {one['first']} to {one['last']}, "
        f"{one['sessions']:,} sessions, net Sharpe ratio {one['sharpe_net']:.2f}"
        for one in details["measured"]
    )
    rows = [*facts.items(), *(("measured", one) for one in measured)]
    lines = [f"trial {details['trial']}", *text_table(rows, left=2)]
    settings = yaml.safe_dump(details["settings"], sort_keys=True, default_flow_style=False)
    return "\n".join([*lines, "  settings", *(f"    {line}" for line in settings.splitlines())])


def _judge(output: Path, run: str | None) -> Callable[[Mapping[str, Any]], tuple[bool, str]]:
    """Return a function that says whether a trial counts (against a run, if one is given), and why."""
    keys, on_market, against = set[Any](), set[Any](), ""
    if run is not None:
        owner = find_signals(run, output) or open_run(run, output, models=False)
        counted, against = count_trials(output, Scope.of(owner.config)), owner.run_id
        keys, on_market = (
            set(rows.select("forecast", "traded").rows()) for rows in (counted.rows, counted.on_market)
        )

    def judge(row: Mapping[str, Any]) -> tuple[bool, str]:
        if not row["counts"]:
            return False, "its books count in its place"
        what = "a forecast with a book of its own" if row["traded"] else "trained, not evaluated yet"
        key = (row["forecast"], row["traded"])
        if run is None or key in keys:
            return True, what if run is None else f"{what}, against {against}"
        return False, "another hypothesis" if key in on_market else f"another market than {against}"

    return judge


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['forecast']}-{row['traded'] or _TRAINED}"


def _source(config: str) -> str:
    market = json.loads(config).get("market") or {}
    seed = f" seed {market['seed']}" if "seed" in market else ""
    prices = f" {Path(market['prices']).name}" if market.get("prices") else ""
    return f"{market.get('kind', 'unknown')}{seed}{prices}"
