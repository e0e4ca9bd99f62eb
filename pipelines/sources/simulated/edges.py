"""Leader-follower edges of the simulated market, and the rules that create them.

Every rule except the hidden one ranks the firms of an industry by size, by book-to-market or by a random
table (``leaders``); the first ones lead. Size and book-to-market are observable data, as are industries.

=====================  =============================================================================  ===
rule                   edge                                                                           hop
=====================  =============================================================================  ===
industry               the first firms of an industry -> its other firms; where size leads, those       1
                       that are smaller by a factor of at least ``size_gap``
supplier               the first firm of the supplier industry -> every firm of the customer            1
                       industry
supplier_of_supplier   the first firm of the supplier's supplier -> every firm of the customer          2
                       industry, through the supplier's first firm, which follows it by the rule
                       above
hidden                 a randomly drawn firm -> its follower                                            1
=====================  =============================================================================  ===

Shape suffixes: N firms, E edges, L lags.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from features.arrays import BoolArray, FloatArray
from pipelines.sources.simulated.config import INDUSTRIES, MarketConfig
from pipelines.sources.simulated.firms import Firms, Index, supplier_of

RULES: tuple[str, ...] = ("industry", "supplier", "supplier_of_supplier", "hidden")
WEIGHTS_BY_LAG: dict[str, dict[int, float]] = {
    "industry": {1: 1.0, 2: 0.6},
    "supplier": {1: 0.8, 3: 0.5},
    "supplier_of_supplier": {2: 0.6},
    "hidden": {1: 0.8},
}
"""Rule -> lag in sessions -> relative weight; lag 1 is the first session after the decision."""

MAX_LAG = 3


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Edges at one review: firm indices, index into RULES, and index of the firm in between (-1: none)."""

    leader_E: Index
    follower_E: Index
    rule_E: Index
    via_E: Index

    def weights(self, n_firms: int) -> FloatArray:
        """Return relative weights [L, follower N, leader N] for lags 1 to MAX_LAG."""
        weights_LNN = np.zeros((MAX_LAG, n_firms, n_firms))
        for code, rule in enumerate(RULES):
            of_rule_E = self.rule_E == code
            for lag, weight in WEIGHTS_BY_LAG[rule].items():
                weights_LNN[lag - 1, self.follower_E[of_rule_E], self.leader_E[of_rule_E]] = weight
        return weights_LNN


def review_edges(config: MarketConfig, firms: Firms, priority_N: FloatArray, live_N: BoolArray) -> Edges:
    """Decide the edges from the listed firms and their priority, both as of the review.

    The firms with the highest priority lead. It is log market equity where size leads.
    """
    follower: list[Index] = []
    leader: list[int] = []
    rule: list[int] = []
    via: list[int] = []

    def add(leading: int, following_E: Index, code: int, through: int = -1) -> None:
        follower.append(following_E)
        leader.extend([leading] * len(following_E))
        rule.extend([code] * len(following_E))
        via.extend([through] * len(following_E))

    ranked = [
        members_N[np.argsort(-priority_N[members_N], kind="stable")]
        for code in range(len(INDUSTRIES))
        for members_N in (np.flatnonzero(live_N & (firms.industry_N == code)),)
    ]
    supplier = supplier_of()
    for code, members in enumerate(ranked):
        for j in members[: config.industry_leaders]:
            follows_E = members != j
            if config.leaders == "size":
                follows_E &= priority_N[j] - priority_N[members] >= np.log(config.size_gap)
            add(int(j), members[follows_E], 0)
        if supplier[code] < 0 or not len(ranked[supplier[code]]):
            continue
        j = ranked[supplier[code]][0]
        add(int(j), members, 1)
        beyond = supplier[supplier[code]]
        if beyond >= 0 and len(ranked[beyond]):
            add(int(ranked[beyond][0]), members, 2, int(j))
    hidden_N = np.flatnonzero(live_N & (firms.hidden_leader_N >= 0) & live_N[firms.hidden_leader_N])
    for i in hidden_N:
        add(int(firms.hidden_leader_N[i]), np.asarray([i]), 3)
    return Edges(
        leader_E=np.asarray(leader, dtype=np.int64),
        follower_E=np.concatenate([*follower, np.empty(0, dtype=np.int64)]).astype(np.int64),
        rule_E=np.asarray(rule, dtype=np.int64),
        via_E=np.asarray(via, dtype=np.int64),
    )


def edges_frame(
    reviews: dict[int, Edges],
    dates_T: npt.NDArray[np.datetime64],
    firms: Firms,
    scale: float,
    leaders: str,
) -> pl.DataFrame:
    """Return the edges as a table, one row per leader, follower, lag and spell of consecutive reviews.

    Parameters
    ----------
    reviews
        Session index of each review -> its edges, in order.
    dates_T
        Sessions.
    firms
        The firms that the indices refer to.
    scale
        Return per unit of relative weight; ``weight`` is multiplied by it.
    leaders
        What leaders are chosen by (`MarketConfig.leaders`).

    Returns
    -------
    DataFrame
        leader, follower, lag, weight (return per unit of the leader's shock), hop, explained, rule, led_by
        (``leaders``; ``random`` for hidden edges), via, valid_from (first decision date) and valid_to (first
        decision date on which it no longer holds; null if it holds to the end).
    """
    starts = list(reviews)
    frame = pl.concat(
        pl.DataFrame(
            {"leader": e.leader_E, "follower": e.follower_E, "rule": e.rule_E, "via": e.via_E}
        ).with_columns(review=pl.lit(k, dtype=pl.Int64))
        for k, e in enumerate(reviews.values())
    )
    key = ["leader", "follower", "rule", "via"]
    spells = (
        frame.sort(*key, "review")
        .with_columns(spell=pl.col("review") - pl.int_range(pl.len()).over(key))  # constant while unbroken
        .group_by(*key, "spell", maintain_order=True)
        .agg(first=pl.col("review").min(), last=pl.col("review").max())
    )
    lags = pl.DataFrame(
        [
            (code, lag, scale * weight)
            for code, rule in enumerate(RULES)
            for lag, weight in WEIGHTS_BY_LAG[rule].items()
        ],
        schema={"rule": pl.Int64, "lag": pl.Int64, "weight": pl.Float64},
        orient="row",
    )
    ticker = pl.Series(firms.ticker_N)
    review_date = pl.Series(dates_T[starts].astype("datetime64[D]")).append(pl.Series([None], dtype=pl.Date))
    rows = spells.join(lags, on="rule", maintain_order="left_right")
    hidden = RULES.index("hidden")
    led_by = pl.Series(["random" if code == hidden else leaders for code in rows["rule"]], dtype=pl.String)
    return rows.select(
        ticker[rows["leader"]].alias("leader"),
        ticker[rows["follower"]].alias("follower"),
        "lag",
        "weight",
        pl.when(pl.col("rule") == RULES.index("supplier_of_supplier")).then(2).otherwise(1).alias("hop"),
        (led_by != "random").alias("explained"),
        pl.Series([RULES[code] for code in rows["rule"]], dtype=pl.String).alias("rule"),
        led_by.alias("led_by"),
        pl.Series([None if v < 0 else ticker[v] for v in rows["via"]], dtype=pl.String).alias("via"),
        review_date[rows["first"]].alias("valid_from"),
        review_date[rows["last"] + 1].alias("valid_to"),
    )
