"""What the explorer shows of one model: its peer network by date, its tests, and the verdict on attention.

Legend: N firms, D dates, R rows of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.errors import ConfigError, DataError
from pipelines.run.provenance import ExplanationMade, read_provenance
from pipelines.run.record import Run

_REQUIRED = ("edges", "dated_edges", "dated_firms", "firms", "groups", "network")


@dataclass(frozen=True, slots=True, eq=False)
class ModelNetwork:
    """The tables of one model's network, without their column ``model``; the guide lists their columns.

    Attributes
    ----------
    model
        Entry of the config.
    edges
        The strongest edges of each follower over all dates, and those that were found.
    dated_edges, dated_firms
        Shapley values and forecasts by date, sorted by date.
    firms, groups, network
        Measures of firms, of groups and of the whole network.
    evidence
        Followers' next returns on leaders' returns; empty without an edge found.
    verdict
        Criteria of the verdict on attention, over days and over peers; empty if it was not measured.
    """

    model: str
    edges: pl.DataFrame
    dated_edges: pl.DataFrame
    dated_firms: pl.DataFrame
    firms: pl.DataFrame
    groups: pl.DataFrame
    network: pl.DataFrame
    evidence: pl.DataFrame
    verdict: pl.DataFrame


def read_networks(run: Run, model: str | None = None) -> tuple[ModelNetwork, ...]:
    """Read the peer networks of a run.

    Parameters
    ----------
    run
        The run.
    model
        Entry of its config; None for every model that has a network.

    Returns
    -------
    tuple of ModelNetwork
        In the order of the config; never empty.

    Raises
    ------
    ConfigError
        If the run has no such model, or the model has no network.
    DataError
        If the run has no network, or one without the tables that the explorer needs.
    """
    if model is not None and model not in run.config.models:
        raise ConfigError(
            f"The run {run.run_id} has no model {model!r}; choose among: {', '.join(run.config.models)}."
        )
    firms = run.read_table("explain_firms")
    if firms is None or firms.is_empty():
        raise DataError(
            f"The run {run.run_id} has no peer network; a config with a model of peers, such as "
            f"temporal_peer, gets one by 'peerglass explain {run.run_id}'."
        )
    if not has_networks(run):
        raise DataError(
            f"The peer network of the run {run.run_id} was made by an earlier version of Peerglass and lacks "
            f"what the explorer shows; make it again with 'peerglass explain {run.run_id}'."
        )
    named = set(firms["model"])
    if model is not None and model not in named:
        raise ConfigError(
            f"The model {model} of the run {run.run_id} has no peer network; choose among: "
            f"{', '.join(sorted(named))}."
        )
    tables = {name: run.read_table(f"explain_{name}") for name in (*_REQUIRED, "evidence", "verdict")}
    chosen = [name for name in run.config.models if name in named and model in (None, name)]
    return tuple(
        ModelNetwork(name, **{table: _own(frame, name) for table, frame in tables.items()}) for name in chosen
    )


def has_networks(run: Run) -> bool:
    """Whether the run has a peer network with all tables that the explorer needs."""
    tables = {name: run.read_table(f"explain_{name}") for name in _REQUIRED}
    firms, dated = tables["firms"], tables["dated_edges"]
    if firms is None or firms.is_empty() or dated is None or "attention_rank" not in dated.columns:
        return False
    verdict = run.read_table("explain_verdict")
    if verdict is not None and "margin" not in verdict.columns:
        return False
    return all(frame is not None for frame in tables.values())


def orders_per_date(run: Run) -> int:
    """Independent pairs of orders behind every Shapley value of the newest explanation of a run."""
    made = [event for event in read_provenance(run) if isinstance(event, ExplanationMade)]
    settings = made[-1].settings if made else {}
    return int(settings.get("network_permutations", run.config.explain.network_permutations))


def _own(frame: pl.DataFrame | None, model: str) -> pl.DataFrame:
    return pl.DataFrame() if frame is None else frame.filter(pl.col("model") == model).drop("model")
