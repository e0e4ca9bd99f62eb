"""Settings of the nights: data checks, retraining, promotion, account, monitoring, alerts and upkeep."""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from pipelines.secrets import register_secret
from pipelines.settings import PathSetting, Section

_HOST: Final = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::\d+)?/?")


def _check_url(url: SecretStr) -> SecretStr:
    """Require the form of an Apprise URL, and remember it as a secret: most of them hold a token."""
    text = url.get_secret_value()
    scheme, _, rest = text.partition("://")
    register_secret(text)
    if not (scheme and rest):
        raise ValueError("an Apprise URL begins with its service, such as mailto:// or slack://")
    if not _HOST.fullmatch(rest):  # the name of a host is not secret, and is part of other messages
        register_secret(rest)
    return url


class AlertsConfig(Section):
    """Channels of alerts. A night alerts on failure, on a warning that is new, and on recovery."""

    urls: tuple[Annotated[SecretStr, AfterValidator(_check_url)], ...] = ()
    """Apprise URLs, such as mailto://... or slack://...; needs the extra ``alerts``. They are never printed
    or stored. Take them from the environment: ``${SLACK_URL}``."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Command and its arguments, which gets the alert as JSON on its standard input; no shell. Null: none."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a channel may take."""
    metrics: PathSetting | None = None
    """File for metrics in Prometheus' text format, as node_exporter's textfile collector reads it; its name
    must end with .prom. Null: none."""

    @field_validator("metrics")
    @classmethod
    def _check_name(cls, path: str | None) -> str | None:
        if path is not None and not path.endswith(".prom"):
            raise ValueError("the collector reads only files whose name ends with .prom")
        return path


class ChecksConfig(Section):
    """Limits of the data checks. A check that fails is a warning of the night unless it says otherwise."""

    min_coverage: float = Field(default=0.9, ge=0, le=1)
    """Minimum share of the firms priced on the last night's session, in its data, that have a price tonight;
    with fewer, the night fails. A tenth of a market is never halted or delisted at once; a vendor's batch
    that is missing is. A single firm is never too many."""
    max_stale: float = Field(default=0.05, ge=0, le=1)
    """Maximum share of firms whose close and volume equal those of the session before. Small firms that do
    not trade repeat their close without volume, which does not count."""
    max_missing: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of the universe for which a characteristic is missing, if it was known for more firms in
    training. The transform replaces missing values, so that a model does not notice them."""
    max_corrections: float = Field(default=0.01, ge=0, le=1)
    """Maximum share of the price rows of the last year that may have been corrected since the last night. A
    vendor corrects single rows every day; a hundredth of a year is another history."""
    max_withdrawn: float = Field(default=0.1, ge=0, le=1)
    """Maximum share of the last night's price rows that may have been withdrawn since; with more, the night
    fails. A vendor takes back single firms; a tenth of all rows is a truncated delivery."""
    retry_minutes: float = Field(default=60.0, ge=0)
    """How long a source that is gone, throttled or late is asked again before the night fails."""


class HousekeepingConfig(Section):
    """Schedule of the lake's upkeep, in nights."""

    compact_every: int = Field(default=5, ge=0)
    """Nights between two compactions of the lake's tables; 0 for never."""
    vacuum_every: int = Field(default=20, ge=0)
    """Nights between two vacuums, which delete files that no run and no night needs; 0 for never."""
    keep_days: int = Field(default=30, ge=1)
    """A vacuum keeps every version that was the newest one at some time in this number of days."""


class MonitoringConfig(Section):
    """Limits of realised skill, drift, dispersion, turnover and agreement. A breach is a warning."""

    sessions: int = Field(default=63, ge=5)
    """Number of newest sessions that are compared with the training. A quarter: shorter stretches differ from
    years of training by their market regime alone."""
    cusum_false_alarms: float = Field(default=0.05, gt=0, lt=0.5)
    """Largest probability of an alarm within 250 sessions although nothing has changed. One false alarm in
    twenty years costs less than the sessions by which a smaller probability delays every true alarm."""
    psi: float = Field(default=0.25, gt=0)
    """Population stability index from which a feature has drifted, if at most one stretch of the training in
    twenty differed as much. 0.25 is the usual limit of a large shift (Siddiqi 2006)."""
    ks: float = Field(default=0.15, gt=0, lt=1)
    """Kolmogorov-Smirnov distance from which a feature has drifted, if at most one stretch of the training in
    twenty differed as much. A normal distribution that moves by 0.38 standard deviations has this distance to
    itself."""
    drifted: float = Field(default=0.2, ge=0, lt=1)
    """Maximum share of the features that may drift at the same time. Single features drift with the regime;
    an alarm needs more of them."""
    dispersion: float = Field(default=1.5, gt=1)
    """Maximum ratio of the mean seed dispersion to its median over the last ``sessions``: seeds that disagree
    see inputs that they were not trained on."""
    turnover: float = Field(default=2.0, gt=1)
    """Maximum ratio of the turnover of the signal to its median over the last ``sessions``. Costs rise in
    proportion to it."""
    agreement: float = Field(default=0.5, ge=-1, le=1)
    """Minimum rank correlation of the signals of champion and challenger. With less, one of them has learned
    something else, and a promotion changes most of the book."""


class PromotionConfig(Section):
    """Guard of a promotion."""

    automatic: bool = False
    """Whether a night promotes its challenger if the guard passes. Without ``proof``, the first
    ``min_sessions`` shadow sessions decide, so that looking every night is one look."""
    min_sessions: int = Field(default=20, ge=3)  # `backtest.inference.means.MIN_VALUES`
    """Minimum number of shadow sessions with a known label: sessions that both versions forecast at night,
    before the label was known. The next training replaces the challenger and ends them. Fewer than 3 have no
    test."""
    margin: float = Field(default=0.0, ge=0)
    """Mean rank IC by which the challenger may be worse than the champion on the shadow sessions."""
    level: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of the one-sided test that the challenger is worse than the margin allows, or of its proof."""
    proof: bool = False
    """Whether a challenger must be proved not to be worse than the margin allows, by a confidence sequence,
    which holds although it is read every night. It needs at least 40 sessions times the label's horizon, in
    practice a margin, and trainings as far apart."""


class RetrainConfig(Section):
    """Schedule of retraining. The first night trains in any case, because there is no model yet."""

    when: Literal["never", "sessions", "monthly"] = "monthly"
    """``sessions`` retrains every ``every`` sessions; ``monthly`` on the first session of a month."""
    every: int = Field(default=21, ge=1)
    """Sessions between two trainings with ``when: sessions``."""
    on_drift: bool = False
    """Whether an alarm of the monitoring also retrains."""


class AccountConfig(Section):
    """The account of the nights: what was traded, what is held, and what it earned."""

    capital: float | None = Field(default=None, gt=0)
    """Cash before the first night, in the currency of the prices. Null: ``backtest.capital``, and 1,000,000
    if that is null as well. An account that has begun keeps its capital."""
    fills: PathSetting | None = None
    """CSV file of real fills, with columns session, ticker, shares (negative for sales), price and perhaps
    fee. The account then books these fills and nothing else. Null: the orders are filled by the rule of
    ``backtest.execution``, with the costs of ``backtest.costs``."""
    positions: PathSetting | None = None
    """CSV file of real positions instead of fills, with columns session, ticker and shares: each session that
    it has lists all positions at its close. Their changes are priced by the rule."""
    min_trade: float = Field(default=0.0, ge=0, lt=1)
    """Smallest trade of an order, as a fraction of NAV. Smaller ones are not made; the backtest beside the
    account makes them."""

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if self.fills and self.positions:
            raise ValueError("fills and positions are both set; leave one of them out.")
        return self


class NightlyConfig(Section):
    """The nightly pipeline. None of these settings changes a backtest."""

    model: str | None = None
    """Entry of ``models`` that is trained for use and scored every night. Null: the first one."""
    book: str | None = None
    """Entry of ``backtest.books`` that is traded. Null: the first one."""
    train: int | None = Field(default=None, ge=1)
    """Sessions of the training segment of a live fold. Null: as in ``folds`` if these are rolling, otherwise
    all sessions."""
    valid: int | None = Field(default=None, ge=1)
    """Sessions of the validation segment of a live fold. Null: as in ``folds``, which must then give lengths
    in sessions."""
    attributed: int = Field(default=3, ge=0)
    """Number of the highest and of the lowest signals whose causes the page shows (Shapley values); 0 for
    none. The time that it takes does not depend on the number."""
    account: AccountConfig = AccountConfig()
    """The account: its capital, real fills, and the smallest trade."""
    record: PathSetting | None = None
    """Folder of a git repository to which every night commits the sealed record of the nights, and pushes it
    if the repository has a remote. Null: the record is kept in ``output`` alone."""
    retrain: RetrainConfig = RetrainConfig()
    """When a new model version is trained."""
    promotion: PromotionConfig = PromotionConfig()
    """When a challenger may become the champion."""
    checks: ChecksConfig = ChecksConfig()
    """Checks of the data that arrived."""
    monitoring: MonitoringConfig = MonitoringConfig()
    """Limits of the figures that are watched."""
    alerts: AlertsConfig = AlertsConfig()
    """Who is told, and when."""
    housekeeping: HousekeepingConfig = HousekeepingConfig()
    """Upkeep of the lake."""
