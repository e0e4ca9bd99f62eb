"""The explorer of peer networks: one HTML page, which needs no network.

Its content security policy forbids all requests and allows only the page's own script. The script writes
every name from the data as text, so a name that looks like markup or a script is shown and never executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from pipelines.errors import ConfigError, DataError
from pipelines.explain.network_tables import STRONGEST, UNKNOWN_GROUP
from pipelines.explain.shown import Unit, unit_of_run
from pipelines.files import write_text
from pipelines.pages.page import Page, script
from pipelines.pages.tables import verdict_rows
from pipelines.run.evaluations import leader, newest_evaluation
from pipelines.run.provenance import ExplanationMade, read_provenance
from pipelines.run.record import RecordedRun

Network = Mapping[str, pl.DataFrame]  # tables of one model by name, without their column ``model``


def render_explorer(run: RecordedRun, networks: Mapping[str, Network]) -> str:
    """Render the explorer of models of a run: 5 MB for 1,026 firms on 32 dates with 200 followers."""
    data = {
        "unit": unit_payload([unit_of_run(run, model) for model in networks]),
        "models": [model_payload(model, own, orders_per_date(run)) for model, own in networks.items()],
    }
    return Page().render(
        "explorer.jinja",
        css=("explorer.css",),
        scripts=(script("rows.js", "elements.js", "firm.js", "network.js", "controls.js"),),
        data=data,
        title=f"{run.config.name}: peer network",
        run=run.run_id,
        networks=list(networks.values()),
        verdicts=[_verdict(network["verdict"]) for network in networks.values()],
        tones={"yes": "good", "no": "bad"},
    )


def _verdict(criteria: pl.DataFrame) -> dict[str, Any]:
    """All criteria, and those that decide the answer on peers and on days; nothing if none was measured."""
    if criteria.is_empty():
        return {}
    rows, deciding = verdict_rows(criteria), {}
    for over in ("peers", "days"):
        own = rows.filter(pl.col("over") == over)
        failed, open_ = (
            own.filter(one) for one in (pl.col("outcome") == "fail", pl.col("outcome") != "pass")
        )
        if own.height:
            deciding[over] = (failed if failed.height else open_ if open_.height else own).to_dicts()
    return {"rows": rows, "deciding": deciding}


_REQUIRED = ("edges", "dated_edges", "dated_firms", "firms", "groups", "network")
_OPTIONAL = ("evidence", "verdict")


def read_networks(run: RecordedRun, model: str | None = None) -> dict[str, Network]:
    """Read the peer networks of a run, the chosen model's first, or that of one model; at least one.

    The chosen model is the one that leads on validation among those with a network; the others follow in the
    order of the config.
    """
    if model is not None and model not in run.config.models:
        raise ConfigError(
            f"The run {run.run_id} has no model {model!r}; choose among: {', '.join(run.config.models)}."
        )
    tables = {name: run.read_table(f"explain_{name}") for name in (*_REQUIRED, *_OPTIONAL)}
    firms = tables["firms"]
    if firms is None or firms.is_empty():
        raise DataError(
            f"The run {run.run_id} has no peer network; a config with a model of peers, such as "
            f"temporal_peer, gets one by 'peerglass explain {run.run_id}'."
        )
    if any(tables[name] is None for name in _REQUIRED):
        raise DataError(
            f"The peer network of the run {run.run_id} lacks tables that the explorer "
            f"shows; make it again with 'peerglass explain {run.run_id}'."
        )
    named = set(firms["model"])
    if model is not None and model not in named:
        raise ConfigError(
            f"The model {model} of the run {run.run_id} has no peer network; choose among: "
            f"{', '.join(sorted(named))}."
        )
    chosen = [name for name in run.config.models if name in named and model in (None, name)]
    evaluation = newest_evaluation(run)
    if len(chosen) > 1 and evaluation is not None:
        ladder = evaluation.table("ladder").filter(pl.col("model").is_in(chosen))
        best = leader(ladder)["model"] if ladder.height else chosen[0]
        chosen.sort(key=lambda name: name != best)
    return {name: {table: _own(frame, name) for table, frame in tables.items()} for name in chosen}


def has_networks(run: RecordedRun) -> bool:
    """Whether the run has a peer network with all tables that the explorer needs."""
    try:
        read_networks(run)
    except DataError:
        return False
    return True


def orders_per_date(run: RecordedRun) -> int:
    """Independent pairs of orders behind every Shapley value of the newest explanation of a run."""
    made = [event for event in read_provenance(run) if isinstance(event, ExplanationMade)]
    settings = made[-1].settings if made else {}
    return int(settings.get("network_permutations", run.config.explain.network_permutations))


def _own(frame: pl.DataFrame | None, model: str) -> pl.DataFrame:
    return pl.DataFrame() if frame is None else frame.filter(pl.col("model") == model).drop("model")


FILE = "explorer.html"  # in the folder of its run; the report links to it


def write_explorer(run: RecordedRun, model: str | None = None, out: Path | None = None) -> Path:
    """Write the explorer of a run's peer networks, by default into the run's folder, and return its path."""
    text = render_explorer(run, read_networks(run, model))
    if out is None:
        return run.write_text(FILE, text)
    try:
        return write_text(out, text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); choose another file.") from error


Payload = dict[str, Any]
_CELLS = ("base", "forecast", "weight", "attention")
_EVIDENCE = ("kind", "leader", "follower", "slope", "error", "t", "q", "sessions")


def unit_payload(units: Sequence[Unit]) -> Payload:
    """Unit of the values of a page: that of its models if it is the same for all, and otherwise none."""
    if len(set(units)) == 1:
        unit = units[0]
    else:
        unit = Unit("", 1.0, "none", "; ".join(dict.fromkeys(one.sentence for one in units)))
    digits = 2 if unit.name else 4
    return {"name": unit.name, "factor": unit.factor, "digits": digits, "sentence": unit.sentence}


def model_payload(model: str, network: Network, orders: int) -> Payload:
    """One model's network as data of the page: firms, dates and groups are numbers that count their lists."""
    firms = network["firms"].sort("ticker").with_columns(pl.col("group").fill_null(UNKNOWN_GROUP))
    dated = network["dated_edges"].sort("date", "follower", "rank")
    edges, evidence = network["edges"].sort("follower", "rank"), network["evidence"]
    of_groups = (firms["group"], *network["groups"].select("leaders", "followers"))
    groups = sorted(
        {name for column in of_groups for name in column}, key=lambda name: (name == UNKNOWN_GROUP, name)
    )
    days = network["dated_firms"].select("date", "fold", "seed").unique().sort("date")
    starts = np.searchsorted(dated["date"].cast(pl.Date).to_numpy(), days["date"].to_numpy())
    columns = ("out_strength", "in_strength", "pagerank", "leads", "follows")
    return {
        "model": model,
        "interval": float(stdtrit(orders - 1, 0.975)),  # 95%, by Student's t of independent pairs
        "strongest": STRONGEST,
        "firms": firms["ticker"],
        "groups": groups,
        "group": _places(firms["group"], groups),
        **firms.select(*columns, pl.col("community") + 1).to_dict(),  # 0 without an edge
        "dates": days["date"],
        "folds": days["fold"],
        "seeds": days["seed"],
        # by date and firm, and by groups of follower and leader; null where there is none
        "forecasts": _grid(network["dated_firms"], date=days["date"], ticker=firms["ticker"]),
        "blocks": _grid(network["groups"], followers=pl.Series(groups), leaders=pl.Series(groups)),
        "dated": {
            "starts": [*starts.tolist(), dated.height],  # first row of each date
            **_pairs(dated, firms["ticker"], "value"),
        },
        "edges": _pairs(edges, firms["ticker"], "found", "weight", "signed", "t", "q"),
        "evidence": [] if evidence.is_empty() else evidence.select(_EVIDENCE).to_dicts(),
    }


def _places(names: pl.Series, known: Sequence[str] | pl.Series) -> pl.Series:
    return names.replace_strict(list(known), range(len(known)), return_dtype=pl.Int64)


def _grid(frame: pl.DataFrame, **sides: pl.Series) -> Payload:
    """Columns of numbers for every pair of values of two other columns; null for a pair without a row."""
    one, other = (pl.DataFrame({name: values.cast(frame.schema[name])}) for name, values in sides.items())
    every = one.join(other, how="cross").join(frame, on=list(sides), how="left", maintain_order="left")
    return {name: every[name] for name in _CELLS if name in every.columns}


def _pairs(rows: pl.DataFrame, tickers: pl.Series, *columns: str) -> Payload:
    """Leaders and followers by number, other columns, and errors and attention with three digits."""
    sides = {side: _places(rows[side], tickers) for side in ("leader", "follower")}
    roughly = pl.col("error", "attention").cast(pl.Float64).round_sig_figs(3)
    return sides | rows.select(*columns, roughly).to_dict()
