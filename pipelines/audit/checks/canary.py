"""Canary: features on replaced data, and on the same data under other names and dates.

A feature is a function of its panel. What reads something else, such as a cache of another panel, a file
beside the lake, or tickers and dates in the code, gives itself away where the panel changes and it does not,
or where only names change and it does.

Shape suffixes: T sessions, N firms, M cells.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Finding, Result, conclude
from backtest.look_ahead.news import is_common
from backtest.look_ahead.noise import replace_future
from features.arithmetic.transforms import rank_normal
from features.arrays import AnyFloatArray, BoolArray
from features.library.sets import RELATIVE
from features.panel.derived import take_sessions
from features.panel.panel import Panel
from pipelines.audit.subject import FeatureKind, Subject

EQUAL: Final = 0.02  # share of its values beyond chance that a feature may keep when all data are replaced
LINKED: Final = 0.3  # the same for the rank correlation with the values before
_AGAIN: Final = 4  # more draws of noise on which it must keep them; slow features of few firms do on one
FOLLOWS: Final = 0.9  # share, or correlation, to which a feature follows its data to other names and sessions
FIRMS: Final = 24  # firms whose whole history is looked at
HISTORY: Final = 320  # last sessions of all firms that are looked at
QUICK_HISTORY: Final = 120
_DAYS: Final = np.timedelta64(10_227, "D")  # 28 years, after which weekdays and months repeat
_TOLERANCE: Final = 1e-6
_FEWEST: Final = 50  # cells that are compared, at least
_NAMED: Final = 3
_BESIDE: Final = (
    "It reads something beside its data: a cache of another panel, a file outside the lake, or a list in the "
    "code."
)
_Values = dict[str, AnyFloatArray | None]


def _compute(kind: FeatureKind, panel: Panel, names: Iterable[str]) -> _Values:
    """Values [T, N] of features; None for one that cannot be computed."""
    names = list(names)
    try:
        value_TNK = kind.registry.compute(panel, names)
    except Exception:  # of a feature that misses a name: it is found by itself
        if len(names) == 1:
            return {names[0]: None}
        return {name: value for name in names for value in _compute(kind, panel, [name]).values()}
    return {
        name: _ratio(x_TN) if name in RELATIVE else x_TN
        for name, x_TN in zip(names, np.moveaxis(value_TNK, 2, 0), strict=True)
    }


class _Kept(NamedTuple):
    words: str
    sign: float = 0.0  # of a correlation


def _ratio(level_TN: AnyFloatArray) -> AnyFloatArray:
    """Ratio to the value before, of a level whose unit depends on the first session."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.concatenate([np.full_like(level_TN[:1], np.nan), level_TN[1:] / level_TN[:-1]])


def canary(subject: Subject) -> Result:
    """Compute features on noise, and on the same data under other tickers and dates.

    - Other tickers in the same order must change no feature, nor dates 28 years earlier, which have the same
      weekdays and months. A feature with one value for all firms of a date may depend on more than these, as
      holidays do: that is a warning.
    - A feature that keeps its values where all data are replaced by noise must have the same values again
      where the noise stands under other names, in another order and without its first third. A flag of month
      ends, a constant and the age of a firm do; a cache does not, and keeps its values on any noise.
    """
    data, few = subject.dataset.panel, subject.sample_firms(subject.tables, FIRMS)
    last = QUICK_HISTORY if subject.budget.quick else HISTORY
    wide, narrow = take_sessions(data, max(data.n_sessions - last, 0)), subject.panel(few)
    replaced = _noise(few, subject.seed)
    noise, moved = subject.panel(replaced), subject.panel(_elsewhere(replaced))
    findings: list[Finding] = []

    @cache
    def more() -> list[Panel]:
        return [subject.panel(_noise(few, subject.seed + 100 * k)) for k in range(1, _AGAIN + 1)]

    for kind in subject.kinds:
        usable = [n for n in kind.names if kind.registry[n].needs <= (narrow.fields & noise.fields)]
        found: dict[str, Finding] = {}
        for panel in (wide, narrow):
            own, other = (_compute(kind, one, usable) for one in (panel, _renamed(panel)))
            for name in usable:
                if name not in found and (said := _named(kind, name, panel, own[name], other[name])):
                    found[name] = said
        on_noise = _compute(kind, noise, usable)
        kept = {
            n: how for n in usable if n not in found and (how := _kept(narrow, own[n], noise, on_noise[n]))
        }
        again = _compute(kind, moved, kept)
        lost = [n for n in kept if not _follows(noise, on_noise[n], moved, again[n])]
        for panel in more() if lost else ():
            on_more = _compute(kind, panel, lost)
            still = {n: _kept(narrow, own[n], panel, on_more[n]) for n in lost}
            lost = [n for n in lost if (one := still[n]) and one.sign * kept[n].sign >= 0]
        for name in lost:
            words = f"{kept[name].words} when all data are replaced by noise. {_BESIDE}"
            found[name] = Finding("canary", "fail", f"{kind.word.capitalize()} {name} {words}")
        passed = Finding("canary", "pass")
        findings += (replace(found.get(n, passed), subject=f"{kind.word} {n}") for n in usable)
    return conclude(
        findings,
        "{n} features depend on their data alone: under other tickers, on dates 28 years earlier and on "
        "noise none keeps or changes a value that it should not.",
    )


def _noise(tables: Mapping[str, pl.DataFrame], seed: int) -> dict[str, pl.DataFrame]:
    """Noise in place of all data, of which some is left: a firm may never trade again, and so may a few."""
    draws = (replace_future(tables, dt.date.min, draw) for draw in count(seed))
    return next(noise for noise in draws if not noise["prices"].is_empty())


def _renamed(panel: Panel, *, dates: bool = True) -> Panel:
    """Return the same panel under other tickers in the same order, and 28 years earlier."""
    tickers_N = tuple(f"~{n:06}" for n in range(panel.n_firms))
    return replace(panel, tickers_N=tickers_N, dates_T=panel.dates_T - _DAYS if dates else panel.dates_T)


def _elsewhere(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Rename the firms in reversed order, move all dates by 28 years and leave out a third of the prices."""
    tickers = tables["prices"]["ticker"].unique().sort()
    names = {ticker: f"~{len(tickers) - n:06}" for n, ticker in enumerate(tickers)}
    days = tables["prices"]["date"].unique().sort()
    kept = tables["prices"].filter(pl.col("date") >= days[len(days) // 3])
    return {
        name: frame.filter(pl.col("ticker").is_in(list(names))).with_columns(
            pl.col("ticker").replace_strict(names), pl.col(pl.Date) - pl.duration(days=10_227)
        )
        for name, frame in {**tables, "prices": kept}.items()
        if "ticker" in frame.columns
    }


def _named(
    kind: FeatureKind, name: str, panel: Panel, own_TN: AnyFloatArray | None, other_TN: AnyFloatArray | None
) -> Finding | None:
    """Say how a feature depends on the names of firms or on dates; None if it does not."""
    if own_TN is None:
        return None
    off_TN = np.ones(own_TN.shape, np.bool_) if other_TN is None else ~_same(own_TN, other_TN)
    if not off_TN.any():
        return None
    tickers_TN = _compute(kind, _renamed(panel, dates=False), [name])[name]
    by_ticker = tickers_TN is None or not _same(own_TN, tickers_TN).all()
    firms, sessions = np.flatnonzero(off_TN.any(axis=0)), np.flatnonzero(off_TN.any(axis=1))
    first, end = (panel.dates_T[t] for t in sessions[[0, -1]])
    where = f"{', '.join(panel.tickers_N[n] for n in firms[:_NAMED])}{', ...' if len(firms) > _NAMED else ''}"
    title, how = f"{kind.word.capitalize()} {name}", "other values" if other_TN is not None else "none"
    if by_ticker:
        words = (
            f"{title} knows firms by their names: under other tickers in the same order it has {how} for "
            f"{len(firms)} of {panel.n_firms} firms ({where}). {_BESIDE}"
        )
        return Finding("tickers", "fail", words, float(len(firms)))
    words = (
        f"{title} knows dates: 28 years earlier, with the same weekdays and months, it has {how} on "
        f"{len(sessions)} of {panel.n_sessions} sessions, from {first} to {end}."
    )
    if is_common(own_TN.astype(np.float64)):
        hint = "A calendar of holidays or of announced events is honest; dates of crises in the code are not."
        return Finding("dates", "warn", f"{words} {hint}", float(len(sessions)))
    return Finding("dates", "fail", f"{words} {_BESIDE}", float(len(sessions)))


def _same(left_TN: AnyFloatArray, right_TN: AnyFloatArray) -> BoolArray:
    size = _TOLERANCE * float(np.nanmedian(np.abs(left_TN))) if np.isfinite(left_TN).any() else 0.0
    return np.asarray(np.isclose(left_TN, right_TN, rtol=_TOLERANCE, atol=size, equal_nan=True))


def _kept(
    true: Panel, own_TN: AnyFloatArray | None, noise: Panel, noise_TN: AnyFloatArray | None
) -> _Kept | None:
    """Say how much of a feature is left on noise; None if it is no more than chance."""
    if own_TN is None:
        return None
    if noise_TN is None:
        return _Kept("cannot be computed")
    equal, link, chance = _agreement(true, own_TN, noise, noise_TN)
    if equal - chance > EQUAL * (1.0 - chance):
        return _Kept(f"keeps {equal:.0%} of its values")
    if abs(link) <= LINKED:
        return None
    return _Kept(f"keeps a rank correlation of {link:+.2f} with its values", float(np.sign(link)))


def _follows(
    noise: Panel, noise_TN: AnyFloatArray | None, moved: Panel, moved_TN: AnyFloatArray | None
) -> bool:
    """Whether a feature has the same values where its data stand under other names and on fewer sessions."""
    if noise_TN is None or moved_TN is None:
        return False
    own = tuple(noise.tickers_N[noise.n_firms - int(ticker[1:])] for ticker in moved.tickers_N)
    back = replace(moved, tickers_N=own, dates_T=moved.dates_T + _DAYS)
    equal, link, _ = _agreement(noise, noise_TN, back, moved_TN, unknown=1.0)
    return max(equal, link) >= FOLLOWS


def _agreement(
    left: Panel, left_TN: AnyFloatArray, right: Panel, right_TN: AnyFloatArray, unknown: float = 0.0
) -> tuple[float, float, float]:
    """Share of equal values, rank correlation and chance share of equal values, where both are known.

    By chance, independent cells are equal with ``sum_v p(v) q(v)`` over the distinct values: a fifth of the
    values of a feature that counts 0 to 4 days.
    """
    t, n = (
        np.intersect1d(getattr(left, axis), getattr(right, axis), return_indices=True)[1:]
        for axis in ("dates_T", "tickers_N")
    )
    left_TN, right_TN = left_TN[np.ix_(t[0], n[0])], right_TN[np.ix_(t[1], n[1])]
    both_TN = np.isfinite(left_TN) & np.isfinite(right_TN)
    if both_TN.sum() < _FEWEST:
        return unknown, unknown, 0.0
    x_M, y_M = left_TN[both_TN].astype(np.float64), right_TN[both_TN].astype(np.float64)
    equal = float((np.abs(x_M - y_M) <= _TOLERANCE * np.maximum(np.abs(x_M), np.abs(y_M))).mean())
    value_S = np.concatenate([x_M, y_M])
    order_S = np.argsort(value_S)
    sorted_S = value_S[order_S]
    distinct_S = np.empty(len(value_S), np.intp)
    distinct_S[order_S[1:]] = np.cumsum(np.diff(sorted_S) > _TOLERANCE * np.abs(sorted_S[1:]))
    distinct_S[order_S[0]] = 0
    p_V, q_V = (np.bincount(one_M, minlength=distinct_S.max() + 1) for one_M in np.split(distinct_S, 2))
    chance = float(p_V @ q_V) / len(x_M) ** 2
    ranks_2M = np.stack([rank_normal(z_M[None], np.ones((1, len(z_M)), np.bool_))[0] for z_M in (x_M, y_M)])
    varied = min(float(rank_M.std()) for rank_M in ranks_2M) > 0
    return equal, float(np.corrcoef(ranks_2M)[0, 1]) if varied else 0.0, chance
