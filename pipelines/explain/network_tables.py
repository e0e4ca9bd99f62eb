"""Tables of the peer network: edges, edges and firms by date, groups, measures beside their nulls, evidence.

Legend: N firms of the panel, E edges, G groups, T sessions. Matrices are [target i, source j].
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.look_ahead.returns import session_returns
from features.arrays import BoolArray, IntArray
from models.explain import network as networks
from models.explain.peers import PeerAttribution
from pipelines.dataset.build import Dataset
from pipelines.explain.games import ModelExplanation

STRONGEST = 20  # peers per firm in the stored tables; edges that were found are stored in any case
UNKNOWN_GROUP = "unknown"
EVIDENCE_EDGES = 200  # strongest ones, regressed beside as many random pairs
_CORRELATION_SESSIONS = 252
_SHUFFLES = 5


class NetworkStudy:
    """The peer network of one model, over its explained peers, each with fold and seed of its fits."""

    def __init__(self, explained: ModelExplanation, dataset: Dataset, seed: int) -> None:
        self.model, self.peers, self.fits = explained.model, explained.peers, explained.fits
        self.dataset, self.seed = dataset, seed
        self.n_firms, self.tickers = dataset.panel.n_firms, np.asarray(dataset.panel.tickers_N)
        sums = networks.sum_dates(self.peers, self.n_firms)
        self.network, self.tests = sums.network(), sums.tests()
        self.attention = networks.attention_network(self.peers, self.n_firms)
        self.found_NN = self.tests.found()  # with a false discovery rate of 5%
        # groups on the last explained date; -1 is unknown
        self.group_N: IntArray = dataset.panel.group_TN[self.peers[-1].session].astype(np.int64)
        observed_NN = self.network.observed
        self.members: IntArray = np.flatnonzero(observed_NN.any(axis=0) | observed_NN.any(axis=1))
        self.return_TN = session_returns(dataset.panel.total_return_index_TN)  # prices are carried

    def tables(self, test_sessions: IntArray, planted_NN: BoolArray | None) -> dict[str, pl.DataFrame]:
        """Build the tables; the evidence are the returns of the test sessions."""
        found = {
            "edges": self._edges(planted_NN),
            "dated_edges": self._dated(_dated_edges),
            "dated_firms": self._dated(_dated_firms),
            "firms": self._firms(),
            "groups": self._groups(),
            "network": self._measures(),
            "evidence": self._evidence(test_sessions),
        }
        model = pl.lit(self.model).alias("model")
        return {name: frame.select(model, pl.all()) for name, frame in found.items()}

    def graphml(self) -> str:
        """The edges that were found, and all firms of the network, as GraphML."""
        import networkx as nx

        at, network = np.ix_(self.members, self.members), self.network
        part = networks.PeerWeights(network.weight_NN[at], network.signed_NN[at], network.dates_NN[at])
        stream = io.BytesIO()
        nx.write_graphml(
            networks.to_digraph(part, self.found_NN[at], self.tickers[self.members].tolist()), stream
        )
        return stream.getvalue().decode("utf-8")

    def _edges(self, planted_NN: BoolArray | None) -> pl.DataFrame:
        """The strongest peers of each firm and all edges that were found, by follower and rank."""
        weight_NN, rank_NN = self.network.weight_NN, networks.ranks_of_sources(self.network.weight_NN)
        target_E, source_E = np.nonzero((weight_NN > 0.0) & ((rank_NN <= STRONGEST) | self.found_NN))
        by_rank_E = np.lexsort((rank_NN[target_E, source_E], target_E))
        at = target_E, source_E = target_E[by_rank_E], source_E[by_rank_E]
        leader_E, follower_E = self.group_N[source_E], self.group_N[target_E]
        known_E = (leader_E >= 0) & (follower_E >= 0)
        same_group = [
            same if known else None for same, known in zip(leader_E == follower_E, known_E, strict=True)
        ]
        share_E = weight_NN[at] / max(weight_NN.sum(), np.finfo(np.float64).tiny)
        columns = {
            **{"leader": self.tickers[source_E], "follower": self.tickers[target_E]},
            **{"weight": weight_NN[at], "error": self.tests.error_NN[at]},
            "signed": self.network.signed_NN[at],
            **{name: getattr(self.tests, f"{name}_NN")[at] for name in ("t", "p", "q")},
            **{"found": self.found_NN[at], "share": share_E, "rank": rank_NN[at]},
            **{"dates": self.network.dates_NN[at], "attention": self.attention.weight_NN[at]},
            "same_group": same_group,
            "planted": None if planted_NN is None else planted_NN[at],
        }
        booleans = pl.col("same_group", "planted").cast(pl.Boolean)
        return _frame(columns, "leader", "follower").with_columns(booleans)

    def _dated(self, rows_of: Callable[[PeerAttribution, Tickers], pl.DataFrame]) -> pl.DataFrame:
        """Rows of every explained date, with the date and the model that explains it."""
        frames = []
        for part, (fold, seed) in zip(self.peers, self.fits, strict=True):
            date = self.dataset.panel.dates_T[part.session].item()
            fit = (pl.lit(one, pl.Int64).alias(name) for name, one in (("fold", fold), ("seed", seed)))
            rows = rows_of(part, self.tickers[part.firms_N])
            frames.append(rows.select(pl.lit(date, pl.Date).alias("date"), *fit, pl.all()))
        return pl.concat(frames)

    def _groups(self) -> pl.DataFrame:
        """Root mean square weight and mean attention of the measured pairs between each two groups."""
        names = np.array([*self.dataset.panel.groups_S, UNKNOWN_GROUP])  # code -1 is the last one
        target_E, source_E = np.nonzero(self.network.observed)
        columns = {
            "leaders": names[self.group_N[source_E]],
            "followers": names[self.group_N[target_E]],
            "code": self.group_N[source_E] % len(names) * len(names) + self.group_N[target_E] % len(names),
            "square": self.network.weight_NN[target_E, source_E] ** 2,
            "attention": self.attention.weight_NN[target_E, source_E],
        }
        return (
            _frame(columns, "leaders", "followers")
            .group_by("code", "leaders", "followers")
            .agg(
                pl.len().cast(pl.Int64).alias("pairs"),
                pl.col("square").mean().sqrt().alias("weight"),
                pl.col("attention").mean(),
            )
            .sort("code")
            .drop("code")
        )

    def _firms(self) -> pl.DataFrame:
        found = networks.firm_measures(self.network, self.found_NN, self.seed)
        names = (*self.dataset.panel.groups_S, None)  # code -1 is the last one
        columns: dict[str, object] = {
            "ticker": self.tickers[self.members],
            "group": [names[code] for code in self.group_N[self.members]],
        }
        for field in fields(found):
            columns[field.name.removesuffix("_N")] = getattr(found, field.name)[self.members]
        return _frame(columns, "ticker", "group")

    def _measures(self) -> pl.DataFrame:
        """Measures of the whole network, each beside its mean and 95% interval under its null."""
        weight_NN, observed_NN, group_N = self.network.weight_NN, self.network.observed, self.group_N
        rng = np.random.default_rng(self.seed)
        same_NN, known_NN = networks.same_group(group_N)
        first = min(part.session for part in self.peers)
        past_TN = self.return_TN[max(1, first + 1 - _CORRELATION_SESSIONS) : first + 1]
        correlated_NN = networks.return_correlations(past_TN)
        found_weight_NN = np.where(self.found_NN, weight_NN, 0.0)
        others = {
            "attention": (self.attention.weight_NN, self.attention.observed),
            "the same group": (same_NN, known_NN),
            "past return correlations": (np.nan_to_num(correlated_NN), np.isfinite(correlated_NN)),
        }
        rows = {
            "edges found": self._edges_found(rng),
            "homophily": networks.homophily(weight_NN, observed_NN, group_N, rng),
            "homophily of the edges found": networks.homophily(found_weight_NN, observed_NN, group_N, rng),
            "reciprocity of the edges found": networks.reciprocity(self.found_NN, observed_NN, rng),
            **{
                f"rank correlation with {name}": networks.rank_correlation(
                    weight_NN, other_NN, observed_NN & valid_NN, rng
                )
                for name, (other_NN, valid_NN) in others.items()
            },
            **self._persistence(rng),
        }
        return pl.DataFrame([{"measure": name, **asdict(row)} for name, row in rows.items()])

    def _persistence(self, rng: np.random.Generator) -> dict[str, networks.AgainstNull]:
        rows: dict[str, networks.AgainstNull] = {}

        def compare(name: str, one: Sequence[PeerAttribution], two: Sequence[PeerAttribution]) -> None:
            first, second = (networks.sum_dates(parts, self.n_firms).network() for parts in (one, two))
            valid_NN = first.observed & second.observed
            rows[f"persistence {name}"] = networks.rank_correlation(
                first.weight_NN, second.weight_NN, valid_NN, rng
            )

        if len(self.peers) > 1:
            compare("between odd and even dates", self.peers[::2], self.peers[1::2])
        for place, kind in enumerate(("fold", "seed")):
            values = sorted({fit[place] for fit in self.fits})
            parts = {
                value: [part for part, fit in zip(self.peers, self.fits, strict=True) if fit[place] == value]
                for value in values
            }
            for one, two in pairwise(values):
                compare(f"from {kind} {one} to {kind} {two}", parts[one], parts[two])
        return rows

    def _edges_found(self, rng: np.random.Generator) -> networks.AgainstNull:
        """Number of edges found, beside the numbers that are found among shuffled peers."""
        null = []
        for _ in range(_SHUFFLES):
            sums = networks.NetworkSums(self.n_firms)
            for part in self.peers:
                square_NN = networks.shuffled_sources(part.square_NN, rng)
                sums.add(part.firms_N, square_NN, square_NN)
            null.append(float(sums.tests().found().sum()))
        pairs = int(self.network.observed.sum())
        return networks.AgainstNull(
            float(self.found_NN.sum()), float(np.mean(null)), min(null), max(null), pairs
        )

    def _evidence(self, test_sessions: IntArray) -> pl.DataFrame:
        """Regressions of followers' next returns on leaders' returns over the test sessions.

        ``kind`` is ``edge`` for the strongest edges that were found, and ``random`` for as many random pairs.
        The latter show how many slopes look significant without any choice. No model has seen the returns of
        a test session in training, and no edge was chosen by the returns that follow its dates.
        """
        sessions = test_sessions[test_sessions + 1 < len(self.return_TN)]
        universe_TN, panel = self.dataset.universe_TN[sessions], self.dataset.panel
        group_TN = panel.group_TN[sessions].astype(np.int64)
        now_TN, next_TN = (
            networks.adjusted_returns(self.return_TN[at], universe_TN, group_TN)
            for at in (sessions, sessions + 1)
        )
        found_E2, rng = np.argwhere(self.found_NN), np.random.default_rng(self.seed)
        strongest = np.argsort(-self.network.weight_NN[tuple(found_E2.T)], kind="stable")[:EVIDENCE_EDGES]
        pairs = np.argwhere(self.network.observed & ~self.found_NN)
        drawn = pairs[rng.permutation(len(pairs))[: len(strongest)]]
        frames = []
        for kind, pairs_E2 in (("edge", found_E2[strongest]), ("random", drawn)):
            target_E, source_E = pairs_E2.T
            measured = networks.lead_lag(now_TN, next_TN, source_E, target_E)
            names = {"leader": self.tickers[source_E], "follower": self.tickers[target_E]}
            slopes = {one.name.removesuffix("_E"): getattr(measured, one.name) for one in fields(measured)}
            weight_E = self.network.weight_NN[target_E, source_E]
            columns = {"kind": [kind] * len(source_E), **names, "weight": weight_E, **slopes}
            frames.append(_frame(columns, "kind", "leader", "follower"))
        return pl.concat(frames)


Tickers = npt.NDArray[np.str_]


def _frame(columns: Mapping[str, object], *text: str) -> pl.DataFrame:
    """A frame whose columns of text are so even if they are empty."""
    return pl.DataFrame(dict(columns), schema_overrides=dict.fromkeys(text, pl.String))


def _dated_edges(part: PeerAttribution, tickers: Tickers) -> pl.DataFrame:
    """The sources with the largest values, and those with the most attention, of each target on a date."""
    others_NN = np.isfinite(part.phi_NN) & ~np.eye(len(part.phi_NN), dtype=np.bool_)
    size_NN = np.where(others_NN, np.abs(part.phi_NN), -1.0)
    weight_NN = np.where(others_NN, part.attention_NN, -1.0)
    rank_NN, attention_rank_NN = networks.ranks_of_sources(size_NN), networks.ranks_of_sources(weight_NN)
    listed_NN = (rank_NN <= STRONGEST) & (size_NN > 0.0)
    listed_NN |= (attention_rank_NN <= STRONGEST) & (weight_NN > 0.0)
    at = target_E, source_E = np.nonzero(listed_NN)
    pairs = {"leader": tickers[source_E], "follower": tickers[target_E]}
    values = {"value": part.phi_NN[at], "error": part.error_NN[at], "rank": rank_NN[at]}
    attention = {"attention": part.attention_NN[at], "attention_rank": attention_rank_NN[at]}
    return _frame({**pairs, **values, **attention}, "leader", "follower")


def _dated_firms(part: PeerAttribution, tickers: Tickers) -> pl.DataFrame:
    """The forecast of every firm of a date, and what it is without any peer."""
    return _frame({"ticker": tickers, "base": part.base_N, "forecast": part.forecast_N}, "ticker")
