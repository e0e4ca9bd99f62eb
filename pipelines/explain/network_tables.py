"""Tables of the peer network: edges, edges by date, firms, measures beside their nulls, and evidence.

Legend: N firms of the panel, E edges. Matrices are [target i, source j].
"""

from __future__ import annotations

import io

import numpy as np
import polars as pl

from features.arrays import BoolArray, IntArray
from models.explain.network.edges import edge_table, ranks_of_sources, to_digraph
from models.explain.network.measures import firm_measures
from models.explain.network.weights import PeerNetwork
from models.explain.peers import PeerAttribution
from pipelines.explain.network_measures import evidence, measure_network
from pipelines.explain.network_study import NetworkStudy

STRONGEST = 20
"""Peers per firm in the stored tables; edges that were found are stored in any case."""


def network_tables(
    study: NetworkStudy, test_sessions: IntArray, planted_NN: BoolArray | None
) -> dict[str, pl.DataFrame]:
    """Build the tables of one model's peer network; the guide's page on attribution lists their columns.

    Parameters
    ----------
    study
        The network.
    test_sessions
        Sessions of all tests, whose returns are the evidence.
    planted_NN
        Planted edges of a simulated market; None on real data.
    """
    return {
        "edges": _edges(study, planted_NN),
        "dated_edges": pl.concat(
            _dated_edges(study, part, fit) for part, fit in zip(study.peers, study.fits, strict=True)
        ),
        "firms": _firms(study),
        "network": measure_network(study),
        "evidence": evidence(study, test_sessions),
    }


def graphml(study: NetworkStudy) -> str:
    """The edges that were found, and all firms of the network, as GraphML."""
    import networkx as nx

    members = _members(study)
    at, network = np.ix_(members, members), study.network
    part = PeerNetwork(network.weight_NN[at], network.signed_NN[at], network.dates_NN[at])
    stream = io.BytesIO()
    nx.write_graphml(to_digraph(part, study.found[at], study.tickers[members].tolist()), stream)
    return stream.getvalue().decode("utf-8")


def _members(study: NetworkStudy) -> IntArray:
    observed_NN = study.network.observed
    return np.flatnonzero(observed_NN.any(axis=0) | observed_NN.any(axis=1))


def _edges(study: NetworkStudy, planted_NN: BoolArray | None) -> pl.DataFrame:
    """The strongest peers of each firm and all edges that were found; ``planted`` is null on real data."""
    every, group_N, tickers = edge_table(study.network, study.tests), study.groups, study.tickers
    at = (every.target_E, every.source_E)
    known_E = (group_N[every.source_E] >= 0) & (group_N[every.target_E] >= 0)
    frame = pl.DataFrame(
        {
            "model": [study.model] * len(every.source_E),
            "leader": tickers[every.source_E],
            "follower": tickers[every.target_E],
            "weight": every.weight_E,
            "error": every.error_E,
            "signed": every.signed_E,
            "t": every.t_E,
            "p": every.p_E,
            "q": every.q_E,
            "found": study.found[at],
            "share": every.weight_E / max(study.network.weight_NN.sum(), np.finfo(np.float64).tiny),
            "rank": every.rank_E,
            "dates": every.dates_E,
            "attention": study.attention.weight_NN[at],
            "same_group": pl.Series(group_N[every.source_E] == group_N[every.target_E]).set(
                pl.Series(~known_E), None
            ),
            "planted": None if planted_NN is None else planted_NN[at],
        },
        schema_overrides={
            **dict.fromkeys(("model", "leader", "follower"), pl.String),
            "planted": pl.Boolean,
        },
    )
    return frame.filter((pl.col("rank") <= STRONGEST) | pl.col("found"))


def _dated_edges(study: NetworkStudy, part: PeerAttribution, fit: tuple[int, int]) -> pl.DataFrame:
    """The sources with the largest absolute Shapley values of each measured target on one date."""
    others_NN = np.isfinite(part.phi_NN) & ~np.eye(len(part.phi_NN), dtype=np.bool_)
    size_NN = np.where(others_NN, np.abs(part.phi_NN), -1.0)
    rank_NN = ranks_of_sources(size_NN)
    target_E, source_E = np.nonzero(others_NN & (rank_NN <= STRONGEST) & (size_NN > 0.0))
    tickers, at = study.tickers[part.firms_N], (target_E, source_E)
    date = study.dataset.panel.dates_T[part.session].astype("datetime64[D]").item()
    return pl.DataFrame(
        {
            "leader": tickers[source_E],
            "follower": tickers[target_E],
            "value": part.phi_NN[at],
            "error": part.error_NN[at],
            "rank": rank_NN[at],
            "attention": part.attention_NN[at],
        },
        schema_overrides={"leader": pl.String, "follower": pl.String},
    ).select(
        pl.lit(study.model).alias("model"),
        pl.lit(date, dtype=pl.Date).alias("date"),
        pl.lit(fit[0], dtype=pl.Int64).alias("fold"),
        pl.lit(fit[1], dtype=pl.Int64).alias("seed"),
        pl.all(),
    )


def _firms(study: NetworkStudy) -> pl.DataFrame:
    members = _members(study)
    measures = firm_measures(study.network, study.found, study.seed)
    names = (*study.dataset.panel.groups_S, None)  # code -1 is the last one
    return pl.DataFrame(
        {
            "model": [study.model] * len(members),
            "ticker": study.tickers[members],
            "group": [names[code] for code in study.groups[members]],
            "out_strength": measures.out_strength_N[members],
            "in_strength": measures.in_strength_N[members],
            "leads": measures.leads_N[members],
            "follows": measures.follows_N[members],
            "pagerank": measures.pagerank_N[members],
            "community": measures.community_N[members],
        },
        schema_overrides={"ticker": pl.String, "group": pl.String},
    )
