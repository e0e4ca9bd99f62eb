"""The peer network of a run: a firm's peers on a date, what they contributed, and what has changed."""

import bisect
import datetime as dt
import functools
from dataclasses import dataclass, field

import polars as pl

from peerglass.runs import Run
from pipelines.errors import ConfigError
from pipelines.explain.shown import unit_of_run
from pipelines.pages.tables import verdict_rows

_MONTH = dt.timedelta(days=28)
STORED = 20
"""Peers of a firm and date that a run stores by the size of their values."""


_VERDICT = ("over", "answer", "criterion", "value", "interval", "needs", "outcome", "margin", "near")


def _no_verdict() -> pl.DataFrame:
    numbers = dict.fromkeys(("value", "margin"), pl.Float64)
    return pl.DataFrame(schema={**dict.fromkeys(_VERDICT, pl.String), **numbers})


@dataclass(frozen=True, eq=False)
class PeerNetwork:
    """Peers of every firm in the forecasts of one model, on the dates that the run explained.

    Made by :func:`peer_network`. Values are Shapley values out of sample: how much knowing the leader moved
    the forecast of the follower. They say what the model uses, not how the market works.

    Attributes
    ----------
    model
        Name of the model.
    unit
        Unit of all values: ``bps``, ``standard deviations`` if the model forecasts normal scores of ranks, or
        ``none`` if its forecasts have no unit.
    edges
        One row per edge over all dates: leader, follower, weight (root mean square of the values) with its
        standard error, signed (mean value), t and q against shuffled peers, found, attention, and more, as
        the guide's page on attribution lists them.
    dated
        One row per date and edge: date, fold, seed, leader, follower, value with its Monte Carlo standard
        error, rank, attention. The 20 largest values of each follower are stored, and those of the 20 peers
        with most attention; another value is smaller, not zero.
    firms
        One row per firm: ticker, group, and its strength and place in the network.
    measures
        Measures of the whole network beside what chance gives.
    verdict
        One row per criterion of the verdict on the model's attention: over (days or peers), answer (of all
        criteria together), criterion, value, interval (90%), needs, outcome (pass, fail or open), margin
        (distance to another outcome, in halves of the interval) and near (other answers that a small move of
        a figure would give). Without rows if the run has no verdict.

    Examples
    --------
    >>> import peerglass
    >>> network = peerglass.peer_network(peerglass.open_run("latest"))
    >>> network.latest() == network.dated["date"].max()
    True
    """

    model: str
    unit: str
    edges: pl.DataFrame
    dated: pl.DataFrame
    firms: pl.DataFrame
    measures: pl.DataFrame
    verdict: pl.DataFrame = field(default_factory=_no_verdict)

    def __repr__(self) -> str:
        return f"<peer network of {self.model}: {self.edges.height} edges, {len(self.dates)} dates>"

    @functools.cached_property
    def dates(self) -> tuple[dt.date, ...]:
        """Dates that were explained, the oldest first."""
        return tuple(self.dated["date"].unique().sort().to_list())

    def latest(self, date: dt.date | str | None = None) -> dt.date:
        """Return the last explained date at or before ``date``; None: the last one.

        Raises
        ------
        ConfigError
            If ``date`` is not YYYY-MM-DD or before the first explained date.
        """
        if date is None:
            return self.dates[-1]
        try:
            wanted = dt.date.fromisoformat(date) if isinstance(date, str) else date
        except ValueError:
            raise ConfigError(f"{date!r} is not a date; write it as YYYY-MM-DD.") from None
        place = bisect.bisect_right(self.dates, wanted)
        if not place:
            raise ConfigError(
                f"No date up to {wanted} was explained; the first one is {self.dates[0]}, the last one "
                f"{self.dates[-1]}."
            )
        return self.dates[place - 1]

    def month_before(self, date: dt.date, ticker: str | None = None) -> dt.date:
        """Return the last explained date at least four weeks before ``date``, or else the first one.

        Only dates count that the same seed explains, if ``date`` was explained, and with ``ticker``, on which
        this firm's forecast was explained.
        """
        rows = self.dated if ticker is None else self.dated.filter(pl.col("follower") == ticker)
        seed = self._seed(date)
        rows = rows if seed is None else rows.filter(pl.col("seed") == seed)
        earlier = [day for day in rows["date"].unique().sort().to_list() if day <= date]
        month = [day for day in earlier if day <= date - _MONTH]
        return month[-1] if month else earlier[0] if earlier else date

    def followers(self, date: dt.date) -> tuple[str, ...]:
        """Firms whose forecast of the date was explained, sorted."""
        return tuple(self.dated.filter(pl.col("date") == date)["follower"].unique().sort().to_list())

    def peers(self, ticker: str, date: dt.date) -> pl.DataFrame:
        """Return what each peer contributed to a firm's forecast.

        Parameters
        ----------
        ticker
            The firm, which is the follower.
        date
            One of :attr:`dates`.

        Returns
        -------
        polars.DataFrame
            leader, group (of the leader), same_group, value, error (Monte Carlo standard error), attention,
            weight, q and found (of the edge over all dates; null if it was not stored). The largest absolute
            value first.

        Raises
        ------
        ConfigError
            If the firm's forecast of the date was not explained.
        """
        rows = self.dated.filter((pl.col("date") == date) & (pl.col("follower") == ticker))
        if rows.is_empty():
            raise ConfigError(self._not_explained(ticker, date))
        groups = self.firms.select(leader="ticker", group="group")
        own = self.firms.filter(pl.col("ticker") == ticker)["group"]
        of_edge = self.edges.filter(pl.col("follower") == ticker).select("leader", "weight", "q", "found")
        found = rows.join(groups, on="leader", how="left").join(of_edge, on="leader", how="left")
        own_group = pl.lit(own[0] if len(own) else None, dtype=pl.String)
        return (
            found.filter(pl.col("rank") <= STORED)
            .with_columns(same_group=pl.col("group") == own_group)
            .sort(pl.col("value").abs(), descending=True)
            .select("leader", "group", "same_group", "value", "error", "attention", "weight", "q", "found")
        )

    def followers_of(self, ticker: str, date: dt.date) -> pl.DataFrame:
        """Return the firms that a firm contributed to on a date: follower, group, value, error, rank.

        Only followers among whose 20 largest peers the firm is. The largest absolute value first.
        """
        rows = self.dated.filter((pl.col("date") == date) & (pl.col("leader") == ticker))
        groups = self.firms.select(follower="ticker", group="group")
        return (
            rows.filter(pl.col("rank") <= STORED)
            .join(groups, on="follower", how="left")
            .sort(pl.col("value").abs(), descending=True)
            .select("follower", "group", "value", "error", "rank")
        )

    def changes(self, date: dt.date, since: dt.date, ticker: str | None = None) -> pl.DataFrame:
        """Compare what peers contributed on two dates, which the same seed explains.

        The seeds of a run take turns over the explained dates. Two seeds weigh other peers on the same date,
        so a change from one to another is none of the market. Dates of two folds are explained by two fitted
        models of one seed.

        Parameters
        ----------
        date, since
            Two of :attr:`dates`.
        ticker
            Follower; None: all firms.

        Returns
        -------
        polars.DataFrame
            follower, leader, before, now, change, error, z (change over error). A value that is not among the
            20 largest of the follower on its date was not stored: it is null, and so is the change. The
            error contains the Monte Carlo errors of both dates. The largest absolute change first.

        Raises
        ------
        ConfigError
            If a firm is named whose forecast of one of the dates was not explained, or two seeds explain the
            dates.
        """
        keys, one = ["follower", "leader"], pl.col("rank") <= STORED
        if ticker is not None:
            one &= pl.col("follower") == ticker
            for day in (date, since):
                if ticker not in self.followers(day):
                    raise ConfigError(self._not_explained(ticker, day))
        seeds = self._seed(date), self._seed(since)
        if None not in seeds and seeds[0] != seeds[1]:
            raise ConfigError(
                f"Seed {seeds[0]} explains {date}, and seed {seeds[1]} explains {since}: the change would be "
                f"one between seeds. Compare with a date of the same seed, such as {self.month_before(date)}."
            )
        rows = self.dated.filter(one)
        now = rows.filter(pl.col("date") == date).select(*keys, now="value", now_error="error")
        before = rows.filter(pl.col("date") == since).select(*keys, before="value", before_error="error")
        both = now.join(before, on=keys, how="full", coalesce=True)
        error = (pl.col("now_error") ** 2 + pl.col("before_error") ** 2).sqrt()
        found = both.with_columns(change=pl.col("now") - pl.col("before"), error=error)
        return (
            found.with_columns(z=pl.col("change") / pl.col("error"))
            .sort(
                pl.col("change").abs(), "follower", "leader", descending=[True, False, False], nulls_last=True
            )
            .select(*keys, "before", "now", "change", "error", "z")
        )

    def _seed(self, date: dt.date) -> int | None:
        """Seed of the model that explains a date; None if the date was not explained."""
        seeds = self.dated.filter(pl.col("date") == date)["seed"]
        return None if seeds.is_empty() else int(seeds[0])

    def _not_explained(self, ticker: str, date: dt.date) -> str:
        if date not in self.dates:
            listed = ", ".join(str(one) for one in self.dates[-5:])
            return f"{date} was not explained; the last explained dates are {listed}."
        if ticker not in set(self.firms["ticker"]):
            return f"{ticker} is not in the network of {self.model}."
        return (
            f"The forecast of {ticker} on {date} was not explained: it was not in the universe, or it is not "
            "in the sample of followers (explain.max_peers)."
        )


def peer_network(run: Run, model: str | None = None) -> PeerNetwork:
    """Read the peer network of a run's model.

    Parameters
    ----------
    run
        A run that was explained, by `peerglass run` or `peerglass explain`.
    model
        A model with peers; None: the last one of the config.

    Raises
    ------
    ConfigError
        If the run was not explained, or has no network of the model.

    Examples
    --------
    >>> import peerglass
    >>> peerglass.peer_network(peerglass.open_run("latest")).model
    'temporal_peer'
    """
    needs = "a network needs a model that attends to peers, such as temporal_peer, in explain.models"
    if "explain_players" in run.tables and "explain_edges" not in run.tables:
        raise ConfigError(f"The run {run.id} was explained, but none of its models has peers: {needs}.")
    edges = run.table("explain_edges")
    models = edges["model"].unique(maintain_order=True).to_list()
    chosen = models[-1] if model is None and models else model
    if chosen not in models:
        raise ConfigError(
            f"The run {run.id} has no peer network of {chosen!r}, only of "
            f"{', '.join(models) or 'none'}: {needs}."
        )
    unit = unit_of_run(run.trained, str(chosen))
    edges, dated, firms, measures = (
        run.table(f"explain_{name}").filter(pl.col("model") == chosen).drop("model")
        for name in ("edges", "dated_edges", "firms", "network")
    )
    verdict = _no_verdict()
    if "explain_verdict" in run.tables:
        rows = verdict_rows(run.table("explain_verdict").filter(pl.col("model") == chosen))
        verdict = rows.with_columns(criterion="question").select(_VERDICT)
    edges = edges.with_columns(pl.col("weight", "error", "signed") * unit.factor)
    dated = dated.with_columns(pl.col("value", "error") * unit.factor)
    return PeerNetwork(str(chosen), unit.name or unit.short, edges, dated, firms, measures, verdict)
