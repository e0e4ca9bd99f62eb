"""Tables of the peer network: edges, edges and firms by date, groups, measures beside their nulls, evidence.

Legend: N firms of the panel, E edges, G groups. Matrices are [target i, source j].
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray, IntArray
from models.explain.network.evidence import adjusted_returns, lead_lag
from models.explain.network.measures import (
    AgainstNull,
    firm_measures,
    homophily,
    rank_correlation,
    reciprocity,
    return_correlations,
    same_group,
)
from models.explain.network.weights import (
    EdgeTests,
    NetworkSums,
    PeerNetwork,
    attention_network,
    edge_table,
    ranks_of_sources,
    shuffled_sources,
    sum_dates,
    to_digraph,
)
from models.explain.peers import PeerAttribution
from pipelines.dataset.build import Dataset

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


@dataclass(frozen=True, slots=True, eq=False)
class NetworkStudy:
    """The peer network of one model, over its folds and seeds.

    Attributes
    ----------
    model
        Entry of the config.
    peers
        One attribution per explained date.
    fits
        Fold and seed of the model that forecast each of these dates.
    dataset
        Dataset of the run.
    network, tests
        Weights over all dates, and their tests.
    attention
        Network of the mean attention on the same dates.
    seed
        Seed of the nulls.
    """

    model: str
    peers: Sequence[PeerAttribution]
    fits: Sequence[tuple[int, int]]
    dataset: Dataset
    network: PeerNetwork
    tests: EdgeTests
    attention: PeerNetwork
    seed: int

    @classmethod
    def of(
        cls,
        model: str,
        peers: Sequence[PeerAttribution],
        fits: Sequence[tuple[int, int]],
        dataset: Dataset,
        *,
        seed: int,
    ) -> NetworkStudy:
        """Sum the dates and test the edges; there must be at least one date."""
        sums = sum_dates(peers, dataset.panel.n_firms)
        attention = attention_network(peers, dataset.panel.n_firms)
        return cls(model, peers, fits, dataset, sums.network(), sums.tests(), attention, seed)

    @property
    def found(self) -> BoolArray:
        """Bool [N, N]: the edges that were found, with a false discovery rate of 5%."""
        return self.tests.found()

    @property
    def groups(self) -> IntArray:
        """Group code of every firm on the last explained date; -1 is unknown."""
        group_N: IntArray = self.dataset.panel.group_TN[int(self.peers[-1].session)].astype(np.int64)
        return group_N

    @property
    def tickers(self) -> npt.NDArray[np.str_]:
        """Tickers of the panel."""
        return np.asarray(self.dataset.panel.tickers_N)

    def network_of(self, *, fold: int | None = None, seed: int | None = None) -> PeerNetwork:
        """Network of the dates of one fold or one seed."""
        parts = [
            part
            for part, fit in zip(self.peers, self.fits, strict=True)
            if fold in (None, fit[0]) and seed in (None, fit[1])
        ]
        return sum_dates(parts, self.dataset.panel.n_firms).network()


def session_returns(dataset: Dataset) -> FloatArray:
    """Simple total return of every firm over each session; NaN on the first one and where unknown."""
    index_TN = dataset.panel.total_return_index_TN
    return_TN = np.full(index_TN.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return_TN[1:] = index_TN[1:] / index_TN[:-1] - 1.0
    return_TN[~np.isfinite(return_TN)] = np.nan
    return return_TN


EVIDENCE_EDGES = 200
"""Strongest edges whose followers are regressed on their leaders, and random pairs beside them."""
_CORRELATION_SESSIONS = 252
_SHUFFLES = 5


def measure_network(study: NetworkStudy) -> pl.DataFrame:
    """Measures of the whole network, each beside its mean and 95% interval under its null."""
    network, attention, found_NN = study.network, study.attention, study.found
    weight_NN, observed_NN, group_N = network.weight_NN, network.observed, study.groups
    rng = np.random.default_rng(study.seed)
    same_NN, known_NN = same_group(group_N)
    first = min(part.session for part in study.peers)
    past_TN = session_returns(study.dataset)[max(1, first + 1 - _CORRELATION_SESSIONS) : first + 1]
    correlated_NN = return_correlations(past_TN)
    rows = {
        "edges found": _found(study, rng),
        "homophily": homophily(weight_NN, observed_NN, group_N, rng),
        "homophily of the edges found": homophily(
            np.where(found_NN, weight_NN, 0.0), observed_NN, group_N, rng
        ),
        "reciprocity of the edges found": reciprocity(found_NN, observed_NN, rng),
        "rank correlation with attention": rank_correlation(
            weight_NN, attention.weight_NN, observed_NN & attention.observed, rng
        ),
        "rank correlation with the same group": rank_correlation(
            weight_NN, same_NN, observed_NN & known_NN, rng
        ),
        "rank correlation with past return correlations": rank_correlation(
            weight_NN, np.nan_to_num(correlated_NN), observed_NN & np.isfinite(correlated_NN), rng
        ),
        **_persistence(study, rng),
    }
    columns = ("value", "null_mean", "null_low", "null_high")
    return pl.DataFrame(
        {
            "model": [study.model] * len(rows),
            "measure": list(rows),
            **{name: [float(getattr(row, name)) for row in rows.values()] for name in columns},
            "number": [row.number for row in rows.values()],
        }
    )


def _persistence(study: NetworkStudy, rng: np.random.Generator) -> dict[str, AgainstNull]:
    def compare(one: PeerNetwork, two: PeerNetwork) -> AgainstNull:
        return rank_correlation(one.weight_NN, two.weight_NN, one.observed & two.observed, rng)

    rows: dict[str, AgainstNull] = {}
    n_firms = study.dataset.panel.n_firms
    if len(study.peers) > 1:
        halves = [sum_dates(study.peers[half::2], n_firms).network() for half in (0, 1)]
        rows["persistence between odd and even dates"] = compare(*halves)
    folds = sorted({fold for fold, _ in study.fits})
    by_fold = [study.network_of(fold=kept) for kept in folds]
    for (one, first), (two, second) in pairwise(zip(folds, by_fold, strict=True)):
        rows[f"persistence from fold {one} to fold {two}"] = compare(first, second)
    seeds = sorted({seed for _, seed in study.fits})
    by_seed = [study.network_of(seed=kept) for kept in seeds]
    for (one, first), (two, second) in pairwise(zip(seeds, by_seed, strict=True)):
        rows[f"persistence from seed {one} to seed {two}"] = compare(first, second)
    return rows


def _found(study: NetworkStudy, rng: np.random.Generator) -> AgainstNull:
    """Number of edges found, beside the numbers that are found among shuffled peers."""
    null = []
    for _ in range(_SHUFFLES):
        sums = NetworkSums(len(study.found))
        for part in study.peers:
            square_NN = shuffled_sources(part.square_NN, rng)
            sums.add(part.firms_N, square_NN, square_NN)
        null.append(float(sums.tests().found().sum()))
    pairs = int(study.network.observed.sum())
    return AgainstNull(float(study.found.sum()), float(np.mean(null)), min(null), max(null), pairs)


def evidence(study: NetworkStudy, test_sessions: IntArray) -> pl.DataFrame:
    """Regressions of followers' next returns on leaders' returns over the test sessions.

    ``kind`` is ``edge`` for the strongest edges that were found, and ``random`` for as many random pairs. The
    latter show how many slopes look significant without any choice. No model has seen the returns of a test
    session in training, and no edge was chosen by the returns that follow its dates.
    """
    network, found_NN, dataset = study.network, study.found, study.dataset
    rng, return_TN = np.random.default_rng(study.seed), session_returns(dataset)
    sessions = test_sessions[test_sessions + 1 < len(return_TN)]
    universe_TN, group_TN = dataset.universe_TN[sessions], dataset.panel.group_TN[sessions].astype(np.int64)
    now_TN = adjusted_returns(return_TN[sessions], universe_TN, group_TN)
    next_TN = adjusted_returns(return_TN[sessions + 1], universe_TN, group_TN)
    target_E, source_E = np.nonzero(found_NN)
    strongest = np.argsort(-network.weight_NN[target_E, source_E], kind="stable")[:EVIDENCE_EDGES]
    pairs = np.argwhere(network.observed & ~found_NN)
    drawn = pairs[rng.permutation(len(pairs))[: len(strongest)]]
    frames = []
    for kind, targets, sources in (
        ("edge", target_E[strongest], source_E[strongest]),
        ("random", drawn[:, 0], drawn[:, 1]),
    ):
        measured = lead_lag(now_TN, next_TN, sources, targets)
        columns = {
            "model": [study.model] * len(sources),
            "kind": [kind] * len(sources),
            "leader": study.tickers[sources],
            "follower": study.tickers[targets],
            "weight": network.weight_NN[targets, sources],
            "slope": measured.slope_E,
            "error": measured.error_E,
            "t": measured.t_E,
            "p": measured.p_E,
            "q": measured.q_E,
            "sessions": measured.sessions_E,
        }
        text = dict.fromkeys(("model", "kind", "leader", "follower"), pl.String)
        frames.append(pl.DataFrame(columns, schema_overrides=text))
    return pl.concat(frames)
