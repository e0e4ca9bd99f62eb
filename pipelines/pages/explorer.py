"""The explorer of peer networks: one HTML page, which needs no network.

Its content security policy forbids all requests and allows only the page's own script. The script writes
every name from the data as text, so a name that looks like markup or a script is shown and never executed.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from features.arrays import IntArray
from pipelines.errors import ConfigError, DataError
from pipelines.explain.fitted import Unit, unit_of_run
from pipelines.explain.network_tables import STRONGEST, UNKNOWN_GROUP
from pipelines.files import write_text
from pipelines.pages.page import Page, asset, in_script
from pipelines.pages.tables import verdict_rows
from pipelines.run.provenance import ExplanationMade, read_provenance
from pipelines.run.record import RecordedRun

_SCRIPTS = ("data.js", "elements.js", "firm.js", "network.js", "controls.js")
"""In the order in which they are read; together they are one function."""


def render_explorer(run: RecordedRun, networks: Sequence[ModelNetwork]) -> str:
    """Render the explorer of some models of a run.

    1,026 firms on 32 dates take 5 MB with 200 measured followers, and 27 MB if all firms are.
    """
    script = f"(function () {{\n{''.join(asset(name) for name in _SCRIPTS)}}})();\n"
    data = {
        "unit": unit_payload([unit_of_run(run, network.model) for network in networks]),
        "models": [model_payload(network, orders_per_date(run)) for network in networks],
    }
    return Page().render(
        "explorer.jinja",
        css=("explorer.css",),
        scripts=(script,),
        title=f"{run.config.name}: peer network",
        run=run.run_id,
        networks=networks,
        verdicts=[_verdict(network.verdict) for network in networks],
        tones={"yes": "good", "no": "bad"},
        payload=in_script(data),
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


@dataclass(frozen=True, slots=True, eq=False)
class ModelNetwork:
    """The tables of one model's network, without their column ``model``; the last two may be empty."""

    model: str
    edges: pl.DataFrame
    dated_edges: pl.DataFrame
    dated_firms: pl.DataFrame
    firms: pl.DataFrame
    groups: pl.DataFrame
    network: pl.DataFrame
    evidence: pl.DataFrame
    verdict: pl.DataFrame


def read_networks(run: RecordedRun, model: str | None = None) -> tuple[ModelNetwork, ...]:
    """Read the peer networks of a run in the order of its config, or that of one model; at least one."""
    if model is not None and model not in run.config.models:
        raise ConfigError(
            f"The run {run.run_id} has no model {model!r}; choose among: {', '.join(run.config.models)}."
        )
    tables = _read_tables(run)
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
    return tuple(
        ModelNetwork(name, **{table: _own(frame, name) for table, frame in tables.items()}) for name in chosen
    )


def has_networks(run: RecordedRun) -> bool:
    """Whether the run has a peer network with all tables that the explorer needs."""
    tables = _read_tables(run)
    firms = tables["firms"]
    return firms is not None and not firms.is_empty() and all(tables[name] is not None for name in _REQUIRED)


def _read_tables(run: RecordedRun) -> dict[str, pl.DataFrame | None]:
    return {name: run.read_table(f"explain_{name}") for name in (*_REQUIRED, "evidence", "verdict")}


def orders_per_date(run: RecordedRun) -> int:
    """Independent pairs of orders behind every Shapley value of the newest explanation of a run."""
    made = [event for event in read_provenance(run) if isinstance(event, ExplanationMade)]
    settings = made[-1].settings if made else {}
    return int(settings.get("network_permutations", run.config.explain.network_permutations))


def _own(frame: pl.DataFrame | None, model: str) -> pl.DataFrame:
    return pl.DataFrame() if frame is None else frame.filter(pl.col("model") == model).drop("model")


FILE = "explorer.html"
"""Name of the page in the folder of its run; the report links to it."""


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
_CELLS = {"base", "forecast", "weight", "attention"}
_EVIDENCE = ("kind", "leader", "follower", "slope", "error", "t", "q", "sessions")


def unit_payload(units: Sequence[Unit]) -> Payload:
    """Unit of the values of a page: that of its models if it is the same for all, and otherwise none."""
    if len(set(units)) == 1:
        unit = units[0]
    else:
        unit = Unit("", 1.0, "none", "; ".join(dict.fromkeys(one.sentence for one in units)))
    digits = 2 if unit.name else 4
    return {"name": unit.name, "factor": unit.factor, "digits": digits, "sentence": unit.sentence}


def model_payload(network: ModelNetwork, orders: int) -> Payload:
    """Encode one model's network.

    Firms, dates and groups are numbers, which count the lists of the same names. ``orders`` are the
    independent pairs of orders behind a value, at least 2; they give its 95% interval by Student's t
    distribution. Entry d of ``dated.starts`` is the first row of date d.
    """
    firms, dated, edges = network.firms.sort("ticker"), network.dated_edges, network.edges
    dated, edges = dated.sort("date", "follower", "rank"), edges.sort("follower", "rank")
    tickers = firms["ticker"].to_list()
    groups = sorted({*firms["group"].drop_nulls(), *network.groups["leaders"], *network.groups["followers"]})
    if firms["group"].null_count() and UNKNOWN_GROUP not in groups:
        groups.append(UNKNOWN_GROUP)
    days = network.dated_firms.select("date", "fold", "seed").unique().sort("date")
    starts = np.searchsorted(dated["date"].cast(pl.Date).to_numpy(), days["date"].to_numpy())
    return {
        "model": network.model,
        "interval": float(stats.t.ppf(0.975, orders - 1)),
        "strongest": STRONGEST,
        "firms": tickers,
        "groups": groups,
        "group": whole_numbers(_numbers(firms["group"].fill_null(UNKNOWN_GROUP), groups)),
        **{name: values(firms[name]) for name in ("out_strength", "in_strength", "pagerank")},
        **{name: whole_numbers(firms[name]) for name in ("leads", "follows")},
        "community": whole_numbers(firms["community"].to_numpy() + 1),  # 0 without an edge
        "dates": [str(date) for date in days["date"]],
        "folds": days["fold"].to_list(),
        "seeds": days["seed"].to_list(),
        # by date and firm, and by groups of follower and leader; NaN where there is none
        "forecasts": _grid(network.dated_firms, {"date": days["date"].to_list(), "ticker": tickers}),
        "blocks": _grid(network.groups, {"followers": groups, "leaders": groups}),
        "dated": {
            "starts": [*starts.tolist(), dated.height],
            **_pairs(dated, tickers, "value"),
        },
        "edges": {
            "found": whole_numbers(edges["found"].cast(pl.UInt8)),
            **_pairs(edges, tickers, "weight", "signed", "t", "q"),
        },
        "evidence": []
        if network.evidence.is_empty()
        else network.evidence.select(_EVIDENCE).fill_nan(None).to_dicts(),
    }


def _numbers(names: pl.Series, known: Sequence[object]) -> IntArray:
    place = {name: number for number, name in enumerate(known)}
    return np.array([place[name] for name in names], dtype=np.int64)


def _grid(frame: pl.DataFrame, sides: Mapping[str, Sequence[object]]) -> Payload:
    """Columns of numbers as matrices over the values of two other columns, by row; NaN without a cell."""
    at = tuple(_numbers(frame[name], known) for name, known in sides.items())
    cells: Payload = {}
    for name in filter(_CELLS.__contains__, frame.columns):
        cell_XY = np.full([len(known) for known in sides.values()], np.nan)
        cell_XY[at] = frame[name].to_numpy()
        cells[name] = values(cell_XY.ravel())
    return cells


def _pairs(rows: pl.DataFrame, tickers: Sequence[str], *exact: str) -> Payload:
    """Leaders and followers by number, some columns as they are, and errors and attention roughly."""
    return {
        **{side: whole_numbers(_numbers(rows[side], tickers)) for side in ("leader", "follower")},
        **{name: values(rows[name]) for name in exact},
        **{name: rough_values(rows[name]) for name in ("error", "attention")},
    }


_Column = dict[str, str | float]
_LARGEST = 2.0**15  # of a scaled column; float16 ends at 65,504


def whole_numbers(value_E: npt.ArrayLike) -> _Column:
    """Encode whole numbers from 0 to 65,535 with one or two bytes each; others raise ValueError."""
    whole_E = np.asarray(value_E)
    if whole_E.size and not 0 <= whole_E.min() <= whole_E.max() <= np.iinfo(np.uint16).max:
        raise ValueError(
            f"A column has values from {whole_E.min()} to {whole_E.max()}; only 0 to 65,535 can be encoded."
        )
    small = not whole_E.size or whole_E.max() <= np.iinfo(np.uint8).max
    return {"u1" if small else "u2": _base64(whole_E.astype("u1" if small else "<u2"))}


def values(value_E: npt.ArrayLike) -> _Column:
    """Encode numbers that a reader compares with a table: four bytes each, IEEE single precision."""
    return {"f4": _base64(np.asarray(value_E, dtype=np.float64).astype("<f4"))}


def rough_values(value_E: npt.ArrayLike) -> _Column:
    """Encode errors and shares with two bytes each, in half precision after division by a power of two."""
    real_E = np.asarray(value_E, dtype=np.float64)
    finite_E = np.isfinite(real_E)
    largest = float(np.abs(real_E[finite_E]).max(initial=0.0))
    # The quotient largest / _LARGEST would be zero where largest is subnormal.
    scale = 2.0 ** max(math.ceil(math.log2(largest) - math.log2(_LARGEST)), -1074) if largest > 0.0 else 1.0
    scaled_E = np.where(finite_E, real_E, np.nan) / scale
    return {"f2": _base64(scaled_E.astype("<f2")), "scale": scale}


def _base64(array: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
