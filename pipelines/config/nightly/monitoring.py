"""Limits of the figures that a night watches."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings import Section


class MonitoringConfig(Section):
    """Limits of realised skill, drift, dispersion, turnover and agreement. A breach is a warning."""

    sessions: int = Field(default=63, ge=5)
    """Number of newest sessions that are compared with the training. A quarter: shorter stretches differ from
    years of training by their market regime alone."""
    cusum_slack: float | None = Field(default=None, gt=0)
    """Slack of the CUSUM of realised rank IC, in standard deviations of the daily rank IC. Null: half of the
    reference mean, which detects a complete loss of skill fastest (Page 1954)."""
    cusum_limit: float | None = Field(default=None, gt=0)
    """Sum at which the CUSUM raises an alarm, in the same unit. Null: the limit that an undisturbed model
    reaches with probability ``cusum_false_alarms``."""
    cusum_false_alarms: float = Field(default=0.05, gt=0, lt=0.5)
    """Probability of an alarm within 250 sessions although nothing has changed. One false alarm in twenty
    years costs less than the sessions by which a smaller probability delays every true alarm."""
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
