"""Sections of a configuration."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from functools import reduce
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from backtest.books.book import Book
from backtest.books.registry import BOOKS
from backtest.books.rules.quantile_long_short import QuantileLongShort
from backtest.books.rules.top_k_long_only import TopKLongOnly
from backtest.splits.calendar import CalendarPlan
from backtest.splits.combinatorial import CombinatorialPlan
from backtest.splits.folds import DatedPlan, FoldPlan, LivePlan
from features.library.standardise import TransformRule
from features.panel.universe import UniverseRule
from pipelines.machine import cores
from pipelines.settings import PathSetting, Section, StoreSetting, by_kind


class UniverseConfig(UniverseRule):
    """Firms that may be forecast at ``t``, decided with what is known at ``t``."""

    membership: str | None = None
    """Universe of the lake's membership table; only its members at ``t`` are included. Null: all firms."""


class FeatureStoreConfig(Section):
    """Where channels and characteristics are kept between commands; lost ones are computed again."""

    folder: PathSetting | None = None
    """Folder on a local disk. Null: ``features`` beside the folder of the runs (``output``), or in the user's
    cache if ``output`` is a URL."""
    limit_gib: float = Field(default=50.0, gt=0)
    """GiB that they may take; those that were not used for the longest time are removed first."""


class OutputStoreConfig(Section):
    """A copy of the runs' folders on an object store, for machines without a disk in common."""

    url: str | None = None
    """Where the folders are copied to, such as s3://bucket/runs. Null: nowhere."""
    options: dict[str, str] = Field(default={})
    """Options of the object store, as ``lake_options``. Credentials come from the environment."""


class FeaturesConfig(Section):
    """Inputs of the models: the window of days and the characteristics of the cross-section."""

    window: int = Field(default=20, ge=2, le=2048)
    """Number of sessions in a window, the decision date included."""
    set: Literal["peerglass158", "peerglass", "alpha158", "alpha360", "all"] = "peerglass158"
    """Features that are used where ``characteristics`` or ``channels`` is null: the library's own and the
    characteristics of qlib's Alpha158 (``peerglass158``); the library's own alone, which take a third of the
    memory; its channels with the characteristics of Alpha158; the channels of qlib's Alpha360 with the
    characteristic ``return_1`` alone, and a ``window`` of 60 if none is set; or everything (``all``)."""
    expressions: dict[str, str] = Field(default={})
    """Name -> formula of further characteristics, such as ``mean(close, 5) / close`` (docs/features.md). A
    name that is listed in ``channels`` is a channel as well."""
    channels: tuple[str, ...] | None = None
    """Names of the channels (daily series) of the window. Null: all of ``set`` that the data allow."""
    characteristics: tuple[str, ...] | None = None
    """Names of the characteristics. Null: all of ``set`` and ``expressions`` that the data allow."""
    inputs: tuple[str, ...] | None = None
    """Names of your own numbers (the lake's table ``inputs``) to use as characteristics. Null: all
    of them."""
    hold_inputs: int = Field(default=0, ge=0)
    """Number of sessions for which the last known value of your own numbers is held. A value that is dated on
    a day without a session is then known from the next session on. 0: a value is used on its own session
    alone, so that monthly numbers are known on one session a month."""
    group_by: Literal["sector", "industry"] = "industry"
    """Groups for neutralisation, group medians and models of peers by group."""
    transform: TransformRule = TransformRule()
    """Transformation of the characteristics within each date."""

    @model_validator(mode="before")
    @classmethod
    def _published_window(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        alpha360 = isinstance(given, Mapping) and given.get("set") == "alpha360"
        return {"window": 60, **given} if alpha360 else given

    def deciding(self) -> dict[str, Any]:
        """Return the settings as JSON values; without expressions where there are none."""
        settings = super().deciding()
        return {name: value for name, value in settings.items() if name != "expressions" or value}


class LabelConfig(Section):
    """The label ``close[t+delay+horizon] / close[t+delay] - 1`` and the target that models are fitted to."""

    horizon: int = Field(default=1, ge=1)
    """Sessions from the trade to the end of the label."""
    delay: int = Field(default=1, ge=0)
    """Sessions from the decision to the trade; 0 trades at the close of the decision."""
    transform: Literal["raw", "demean", "zscore", "rank"] = "zscore"
    """Transformation of the label within each date: none, demeaned, demeaned and divided by the standard
    deviation, or ranked to a standard normal distribution."""
    clip: float | None = Field(default=None, gt=0)
    """Models are fitted to targets clipped to [-clip, clip], in the unit of the target. Null: no clipping.
    Where it is not set, ``zscore`` is clipped at 3 and the other targets are not."""
    residualise_factors: int = Field(default=5, ge=0)
    """Number of statistical factors that are removed from the label before fitting; fewer where there are
    fewer than four firms per factor, and none with 0. Models are trained on the residual, because the returns
    of common factors are noise to a forecast of each firm, and evaluated on the full label."""
    unknown_delisting_return: float = Field(default=0.0, ge=-1, allow_inf_nan=False)
    """Return paid on a delisting that has neither a recorded return nor a reason; 0 pays the last price."""
    periods_per_year: float | None = Field(default=None, gt=0, le=366)
    """Sessions in a year, which annual figures use. Null: what the dates of the prices say
    (`features.panel.periods.periods_per_year`): 252 for days, 365 if weekends are sessions, 52 for weeks, 12
    for months."""
    forecast_frequency: Literal["daily", "weekly", "monthly", "quarterly"] = "daily"
    """How often forecasts are made: every session, or the first session of each week, month or quarter."""
    extra_delays: tuple[int, ...] = ()
    """Further delays at which the same forecasts are evaluated, in sessions."""
    shorter_horizons: tuple[int, ...] = ()
    """Horizons below ``horizon`` that seq2seq also forecasts, ascending, in sessions."""

    @model_validator(mode="before")
    @classmethod
    def _clip_scores(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        scores = isinstance(given, Mapping) and given.get("transform", "zscore") == "zscore"
        return {"clip": 3.0, **given} if scores else given

    @model_validator(mode="after")
    def _check_horizons(self) -> LabelConfig:
        rising = (0, *self.horizons)
        if any(a >= b for a, b in itertools.pairwise(rising)):
            raise ValueError(
                f"shorter_horizons is {list(self.shorter_horizons)}; it must be ascending, start at 1 or "
                f"more and stay below horizon ({self.horizon})"
            )
        return self

    @property
    def horizons(self) -> tuple[int, ...]:
        """The shorter horizons, ascending, then the label's horizon."""
        return (*self.shorter_horizons, self.horizon)

    @property
    def delays(self) -> tuple[int, ...]:
        """The trained delay, then the further delays that are evaluated."""
        return (self.delay, *(d for d in self.extra_delays if d != self.delay))

    @property
    def max_delay(self) -> int:
        """Longest delay in use. The purge covers the labels of every delay that is evaluated."""
        return max(self.delays)


class ExplainConfig(Section):
    """Attribution of test forecasts by Shapley values.

    ``dates`` times ``firms_per_date`` forecasts are attributed to days, feature families and peers. The peer
    network is computed on ``network_dates`` dates, with every firm as a player.
    """

    models: tuple[str, ...] | None = None
    """Models to explain. Null: every neural model and every ensemble."""
    dates: int = Field(default=12, ge=1)
    """Number of test dates whose forecasts are attributed."""
    firms_per_date: int = Field(default=4, ge=1)
    """Number of forecasts that are attributed on each date."""
    network_dates: int = Field(default=24, ge=1)
    """Number of test dates that the peer network is computed on, over all folds. The seeds take turns."""
    max_peers: int = Field(default=150, ge=2)
    """Maximum number of firms on one side of the measured pairs. With more firms, this many are drawn at
    random: as followers of a model with one peer layer, as leaders of other models."""
    permutations: int = Field(default=8, ge=1)
    """Number of antithetic permutations, and of background firms, per attributed forecast: the draws of the
    engine."""
    engine: Literal["permutation", "linear", "tree"] = "permutation"
    """How the values are computed. ``linear`` is for ridge, ``tree`` for lightgbm and double_ensemble."""
    removal: Literal["date", "train", "conditional"] = "date"
    """What absent characteristics are replaced with: the values of another firm of the same ``date``, those
    of a random firm and session of the training fold (``train``), or draws from the training fold given the
    characteristics that are kept (``conditional``). Absent peers are masked, and so are absent days, except
    in models that read them through a linear map or a convolution, where they are set to 0."""
    precision: float | None = Field(default=None, gt=0)
    """Largest standard error of a value, as a share of the standard deviation of the date's forecasts. The
    engine draws until it is reached, at most 1,000 times. Null: ``permutations`` draws."""
    skill_dates: int = Field(default=24, ge=0)
    """Number of test dates whose rank IC is divided among the players, over all folds. The seeds take turns.
    0: none."""
    network_permutations: int = Field(default=16, ge=2)
    """Number of antithetic pairs of orders per date of the network."""
    faithfulness: Literal["quick", "thorough"] = "quick"
    """How many forecasts are used to measure whether attention can be believed. ``thorough`` uses more dates,
    firms, random draws and background firms: narrower intervals, but 10 to 40 s of processor time for each
    fold and seed of a model of the demo, instead of less than 1 s."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw: orders, replacements, firms, shuffled parameters and bootstraps."""


class TrackingConfig(Section):
    """The MLflow tracking store."""

    uri: StoreSetting = "sqlite:///data/mlflow.db"
    """MLflow tracking URI: a database such as SQLite, or a server."""
    artifacts: PathSetting = "data/mlartifacts"
    """Folder or URL where MLflow stores artifacts."""
    experiment: str | None = None
    """Name of the MLflow experiment. Null: the config's ``name``."""


class AuditConfig(Section):
    """The audit for look-ahead. ``peerglass run`` runs a shorter version of it before it trains."""

    enabled: bool = True
    """Whether ``peerglass run`` runs the audit."""
    on_failure: Literal["stop", "warn"] = "stop"
    """``stop`` ends the run if a check fails; ``warn`` reports the failure and continues."""
    sessions: int = Field(default=6, ge=1)
    """Number of sessions whose future is replaced by noise to detect look-ahead; ``peerglass run`` uses half
    as many."""
    seed: int = 0
    """Seed of the noise and of all draws."""
    skip: tuple[str, ...] = ()
    """Names of checks to leave out; the report lists them."""


class EngineConfig(Section):
    """Where the tasks of training, tuning and attribution are computed. No setting changes a result."""

    engine: Literal["serial", "pool", "ray"] = "pool"
    """``serial`` computes one task after the other in the command's own process; ``pool`` uses processes of
    this machine; ``ray`` uses a Ray cluster (extra ``cluster``)."""
    workers: int | None = Field(default=None, ge=1)
    """Maximum number of tasks that are computed at once, over all machines. ``serial`` computes one. Each GPU
    of this machine computes one of them. Null: one for each core that this process may use, and with
    ``address``, as many as the cluster has room for. A pool starts fewer where memory is short."""
    address: str | None = None
    """Ray: address of a running cluster, as ``HOST:PORT``, or ``auto`` on one of its machines. Null: Ray is
    started on this machine and ends with the command."""
    gpus_per_task: float = Field(default=0.0, ge=0)
    """Ray: number of GPUs that every task reserves. With a fraction, tasks share a GPU."""

    @property
    def at_once(self) -> int:
        """Maximum number of tasks that this machine computes at once."""
        return cores() if self.workers is None else self.workers

    @model_validator(mode="after")
    def _check_engine(self) -> EngineConfig:
        if self.engine != "ray" and (self.address is not None or self.gpus_per_task):
            given = "address" if self.address is not None else "gpus_per_task"
            raise ValueError(f"{given} is a setting of engine ray, and engine is {self.engine}; remove one")
        if self.address is not None and "://" in self.address:
            raise ValueError(
                f"address is {self.address!r}; Ray's client protocol is not supported: run the command on a "
                "machine of the cluster with address auto, or give HOST:PORT of its head"
            )
        if self.gpus_per_task > 1 and not self.gpus_per_task.is_integer():
            raise ValueError(f"gpus_per_task is {self.gpus_per_task}; above 1 it must be a whole number")
        return self


FoldsConfig = Annotated[
    FoldPlan | DatedPlan | CalendarPlan | CombinatorialPlan | LivePlan, Field(discriminator="scheme")
]
"""The folds of a config: sessions for training, validation and test, purged and embargoed."""


SpreadEstimator = Literal["corwin_schultz", "roll"]


if TYPE_CHECKING:
    BookConfig: TypeAlias = Book
else:
    BookConfig = Annotated[reduce(operator.or_, BOOKS.values()), *by_kind(BOOKS)]
    """The settings of a book; ``kind`` selects the class."""

DEFAULT_BOOKS: dict[str, BookConfig] = {
    "long_short": QuantileLongShort(kind="quantile_long_short"),
    "long_only": TopKLongOnly(kind="top_k_long_only"),
}
"""The books of a config that names none."""


class BenchmarkConfig(Section):
    """What books are measured against: a portfolio of the universe, a ticker, or an index from a file.

    One of the first three is given. A word alone, as in ``eq: equal_weighted``, is ``weights``.
    """

    weights: Literal["equal_weighted", "cap_weighted"] | None = None
    """The firms of the universe, in equal weights or in proportion to market equity, which needs share
    counts. It decides, trades and earns as the book does, without costs."""
    ticker: str | None = None
    """A firm or fund of the lake, with its dividends."""
    file: PathSetting | None = None
    """CSV or Parquet file with columns date and close, which has every session of the books."""
    returns: Literal["total", "price"] | None = None
    """Of a file: whether its closes include dividends. A price index leaves them out, which flatters books
    that receive them."""

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
        return {"weights": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_one(self) -> BenchmarkConfig:
        if [self.weights, self.ticker, self.file].count(None) != 2:
            raise ValueError("a benchmark is equal_weighted, cap_weighted, {ticker: ...} or {file: ...}")
        if (self.file is None) != (self.returns is None):
            raise ValueError(
                "returns says of a file, and of nothing else, whether it is a total or a price index"
            )
        return self

    @property
    def basis(self) -> str:
        """``total`` or ``price``: whether its returns include dividends."""
        return self.returns or "total"

    @property
    def words(self) -> str:
        """The benchmark in words."""
        if self.weights is not None:
            cap = self.weights == "cap_weighted"
            return f"the universe {'by market equity' if cap else 'in equal weights'}, before costs"
        if self.file is None:
            return f"{self.ticker} with its dividends"
        if self.returns == "total":
            return "a total-return index"
        return "a price index, without the dividends that books receive, which flatters books"


DEFAULT_BENCHMARKS: Final = {"eq": BenchmarkConfig(weights="equal_weighted")}
"""The benchmarks of a config that names none."""


def _files_by_name(given: Any) -> Any:  # noqa: ANN401 (YAML holds anything)
    if isinstance(given, str):
        given = {PurePath(given).stem: given}
    if not isinstance(given, Mapping):
        return given
    return {name: (one,) if isinstance(one, str) else one for name, one in given.items()}


FactorFiles = Annotated[
    dict[str, Annotated[tuple[PathSetting, ...], Field(min_length=1)]], BeforeValidator(_files_by_name)
]
"""Name -> files of factors that are used together. A file alone is named by its stem."""


class CostsConfig(Section):
    """Costs of trades and of positions. Rates are in basis points."""

    half_spread_bps: Annotated[float, Field(ge=0)] | SpreadEstimator = 5.0
    """Half-spread, per traded amount: a number, or an estimate for each firm and session from daily prices.
    ``corwin_schultz`` needs high and low prices; ``roll`` needs closes only (`backtest.costs`)."""
    spread_window: int | None = Field(default=None, ge=2)
    """Sessions that a half-spread is estimated from. Null: 21 for ``corwin_schultz``, 63 for ``roll``."""
    commission_bps: float = Field(default=0.5, ge=0)
    """Commission, per traded amount."""
    commission_min: float = Field(default=0.0, ge=0)
    """Least commission of a trade of one firm in one session, in the currency of the prices. Needs
    ``backtest.capital``."""
    impact_coefficient: float = Field(default=1.0, ge=0)
    """Market impact of a trade, per traded amount: this times daily volatility times the square root of the
    trade's share of daily dollar volume. Applies if ``backtest.capital`` is set; 0: no impact."""
    borrow_bps_per_year: float = Field(default=50.0, ge=0)
    """Fee on the market value of short positions, per year."""
    borrow_file: PathSetting | None = None
    """CSV or Parquet file with columns ticker and bps_per_year: fees of single firms. The others pay
    ``borrow_bps_per_year``."""
    financing_bps_per_year: float = Field(default=0.0, ge=0)
    """Interest on borrowed money, per year. What is borrowed is the value of long positions above the NAV."""


class ExecutionConfig(Section):
    """Price of execution, and the share of a firm's volume that a book may trade."""

    price: Literal["close", "open", "typical", "ohlc"] = "close"
    """Price at which orders are filled. ``typical`` is (high + low + close) / 3 and ``ohlc`` the mean of the
    four prices: proxies of the volume-weighted average price. All but ``close`` need a delay of 1 or more."""
    participation_cap: float | None = Field(default=0.1, gt=0)
    """Largest share of a firm's daily dollar volume that is traded in a session. The rest of an order
    continues in later sessions. Applies if ``backtest.capital`` is set. Null: no cap."""
    unfilled: Literal["carry", "drop"] | None = None
    """What happens to an order, or the rest of it, that cannot be filled: ``carry`` keeps it open until it is
    filled or a new decision replaces it, ``drop`` drops it. Null: ``carry`` under a participation cap, and
    else ``drop``."""
    price_limit: float | None = Field(default=None, gt=0)
    """Largest change of a price in a session, 0.1 for 10%. At the upper limit nothing is bought, and at the
    lower one nothing is sold. Null: no limit."""
    price_limit_file: PathSetting | None = None
    """CSV or Parquet file with columns ticker and limit, and from_date if limits change: limits of single
    firms, such as 0.05 for A-shares under special treatment and 0.2 for other boards. The others have
    ``price_limit``."""
    lot: int | None = Field(default=None, ge=1)
    """Shares of a lot. Orders are rounded towards zero to whole lots; a position can be closed whole. Needs
    ``backtest.capital``. Null: any number of shares."""
    window: int = Field(default=21, ge=2)
    """Sessions over which the daily dollar volume (mean) and the daily volatility of market impact are
    measured. They end before the session of the trade."""


class BacktestConfig(Section):
    """Books, costs and benchmarks of the backtest."""

    books: dict[str, BookConfig] = Field(default=DEFAULT_BOOKS)
    """Name -> book."""
    costs: CostsConfig = CostsConfig()
    """Costs of trades and of positions."""
    execution: ExecutionConfig = ExecutionConfig()
    """Price of execution and participation cap."""
    capital: float | None = Field(default=None, gt=0)
    """Capital of each book at its start, in the currency of the prices. Null: trades are small, without
    market impact and without a participation cap."""
    delay: int | None = Field(default=None, ge=0)
    """Sessions from the decision to the trade. Null: ``label.delay``."""
    risk_free: float | PathSetting = 0.0
    """Risk-free rate that Sharpe ratios are measured over: an annual rate as a fraction (0.03 is 3% a year),
    or a CSV or Parquet file with columns date and rate (`pipelines.dataset.backtest_files`)."""
    benchmarks: dict[str, BenchmarkConfig] = Field(default=DEFAULT_BENCHMARKS)
    """Name -> what books are measured against. The first one is that of ``information_ratio``."""
    factors: FactorFiles = Field(default={})
    """Name -> file of published factor returns that the returns of books are regressed on, or several files
    that are used together (`pipelines.dataset.backtest_files`). A file alone has its own name."""

    @property
    def own_benchmarks(self) -> bool:
        """Whether other benchmarks than the default are named."""
        return self.benchmarks != DEFAULT_BENCHMARKS

    @property
    def trading(self) -> str:
        """Costs, capital, delay and price of execution in one line."""
        costs, execution = self.costs, self.execution
        spread = costs.half_spread_bps
        least = f", at least {costs.commission_min:g}" if costs.commission_min else ""
        parts = [
            f"half-spread {f'{spread:g} bps' if isinstance(spread, float) else f'estimated ({spread})'}",
            f"commission {costs.commission_bps:g} bps{least}",
        ]
        if self.capital is not None:
            parts.append(f"impact {costs.impact_coefficient:g} x volatility x root of participation")
        by_firm = "" if costs.borrow_file is None else " or by firm"
        parts.append(f"borrow {costs.borrow_bps_per_year:g} bps per year{by_firm}")
        if costs.financing_bps_per_year:
            parts.append(f"financing {costs.financing_bps_per_year:g} bps per year")
        if self.capital is not None:
            cap = execution.participation_cap
            limit = "no cap" if cap is None else f"at most {cap:.0%} of daily volume"
            parts.append(f"capital {self.capital:,.0f} ({limit})")
        if execution.price_limit is not None:
            parts.append(f"no trade at a price limit of {execution.price_limit:.0%}")
        elif execution.price_limit_file is not None:
            parts.append("no trade at the price limits of single firms")
        if execution.lot is not None:
            parts.append(f"lots of {execution.lot:,} shares")
        if execution.unfilled is not None:
            parts.append(f"unfilled orders {'stay open' if execution.unfilled == 'carry' else 'are dropped'}")
        delay = "the label's delay" if self.delay is None else f"delay {self.delay}"
        price = "" if execution.price == "close" else f" and the {execution.price} price"
        return ", ".join([*parts, f"executed at {delay}{price}"])

    @model_validator(mode="after")
    def _check_capital(self) -> BacktestConfig:
        amounts = {"costs.commission_min": self.costs.commission_min, "execution.lot": self.execution.lot}
        for name, value in amounts.items():
            if value and self.capital is None:
                raise ValueError(f"{name} is {value:g}, an amount that needs a capital; set backtest.capital")
        return self

    @model_validator(mode="after")
    def _check_risk_free(self) -> BacktestConfig:
        if not isinstance(self.risk_free, str) and not abs(self.risk_free) < 1:
            raise ValueError(f"risk_free is {self.risk_free:g}; it must be an annual fraction, 0.05 for 5%")
        return self
