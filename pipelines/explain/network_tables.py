"""Tables of the peer network: edges, edges and firms by date, groups, measures beside their nulls, evidence.

Legend: N firms of the panel, E edges, G groups. Matrices are [target i, source j].
"""

from __future__ import annotations

import io

import numpy as np
import polars as pl

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network.edges import edge_table, ranks_of_sources, to_digraph
from models.explain.network.measures import firm_measures
from models.explain.network.weights import PeerNetwork
from models.explain.peers import PeerAttribution
from pipelines.explain.network_measures import evidence, measure_network
from pipelines.explain.network_study import NetworkStudy

STRONGEST = 20
"""Peers per firm in the stored tables; edges that were found are stored in any case."""
UNKNOWN_GROUP = "unknown"


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
        "dated_firms": pl.concat(
            _dated_firms(study, part, fit) for part, fit in zip(study.peers, study.fits, strict=True)
        ),
        "firms": _firms(study),
        "groups": _groups(study),
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
    """The sources with the largest absolute values, and with the most attention, of each target on a date.

    Both lists are stored, so that a comparison of the two is not made on the pairs of one of them.
    """
    others_NN = np.isfinite(part.phi_NN) & ~np.eye(len(part.phi_NN), dtype=np.bool_)
    size_NN = np.where(others_NN, np.abs(part.phi_NN), -1.0)
    weight_NN = np.where(others_NN, part.attention_NN, -1.0)
    rank_NN, attention_rank_NN = ranks_of_sources(size_NN), ranks_of_sources(weight_NN)
    listed_NN = (rank_NN <= STRONGEST) & (size_NN > 0.0)
    listed_NN |= (attention_rank_NN <= STRONGEST) & (weight_NN > 0.0)
    target_E, source_E = np.nonzero(listed_NN)
    tickers, at = study.tickers[part.firms_N], (target_E, source_E)
    frame = pl.DataFrame(
        {
            "leader": tickers[source_E],
            "follower": tickers[target_E],
            "value": part.phi_NN[at],
            "error": part.error_NN[at],
            "rank": rank_NN[at],
            "attention": part.attention_NN[at],
            "attention_rank": attention_rank_NN[at],
        },
        schema_overrides={"leader": pl.String, "follower": pl.String},
    )
    return _of_date(frame, study, part, fit)


def _dated_firms(study: NetworkStudy, part: PeerAttribution, fit: tuple[int, int]) -> pl.DataFrame:
    """The forecast of every firm of a date, and what it is without any peer."""
    frame = pl.DataFrame(
        {"ticker": study.tickers[part.firms_N], "base": part.base_N, "forecast": part.forecast_N},
        schema_overrides={"ticker": pl.String},
    )
    return _of_date(frame, study, part, fit)


def _of_date(
    frame: pl.DataFrame, study: NetworkStudy, part: PeerAttribution, fit: tuple[int, int]
) -> pl.DataFrame:
    date = study.dataset.panel.dates_T[part.session].astype("datetime64[D]").item()
    return frame.select(
        pl.lit(study.model).alias("model"),
        pl.lit(date, dtype=pl.Date).alias("date"),
        pl.lit(fit[0], dtype=pl.Int64).alias("fold"),
        pl.lit(fit[1], dtype=pl.Int64).alias("seed"),
        pl.all(),
    )


def _groups(study: NetworkStudy) -> pl.DataFrame:
    """Root mean square weight and mean attention of the measured pairs between each two groups."""
    names, observed_NN = (*study.dataset.panel.groups_S, UNKNOWN_GROUP), study.network.observed
    group_N = np.where(study.groups < 0, len(names) - 1, study.groups)
    target_E, source_E = np.nonzero(observed_NN)
    block_E = group_N[source_E] * len(names) + group_N[target_E]

    def total(value_E: FloatArray | None) -> FloatArray:
        return np.bincount(block_E, value_E, minlength=len(names) ** 2).astype(np.float64)

    pairs_GG = total(None)
    square_GG = total(study.network.weight_NN[target_E, source_E] ** 2)
    attention_GG = total(study.attention.weight_NN[target_E, source_E])
    known = np.flatnonzero(pairs_GG)
    return pl.DataFrame(
        {
            "model": [study.model] * len(known),
            "leaders": [names[block // len(names)] for block in known],
            "followers": [names[block % len(names)] for block in known],
            "pairs": pairs_GG[known].astype(np.int64),
            "weight": np.sqrt(square_GG[known] / pairs_GG[known]),
            "attention": attention_GG[known] / pairs_GG[known],
        },
        schema_overrides=dict.fromkeys(("model", "leaders", "followers"), pl.String),
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
