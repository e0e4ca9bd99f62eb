"""Features: no value may depend on later data, on sessions before its window, or on firms of other dates."""

import calendar
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any, Final

import numpy as np
import polars as pl

from backtest.look_ahead.finding import Result, answer, skipped
from backtest.look_ahead.noise import drop_later_joiners, replace_future
from features.arrays import BoolArray, DateArray, Float32Array, FloatArray, IntArray
from features.library.sets import RELATIVE, channels_of
from features.library.standardise import transform_characteristics
from features.panel.derived import take_sessions
from features.panel.panel import Panel
from pipelines.audit.refit import Difference, differences_until
from pipelines.audit.subject import AFTER, FeatureKind, Subject
from pipelines.dataset import build as datasets
from pipelines.dataset import characteristics
from pipelines.dataset.build import Dataset
from pipelines.dataset.characteristics import INPUT_PREFIX
from pipelines.errors import DataError

FIRMS: Final = 400  # sampled at two of three sessions of a full audit; at every third, all are replaced
QUICK_FIRMS: Final = 200  # firms that are sampled in a quick audit
FEW_FIRMS: Final = 12
HISTORY: Final = 320  # sessions before t in most small datasets, where longer features are unknown
LONG_EVERY: Final = 10  # every tenth small dataset holds the history that all features need
_AFTER_FEW: Final = 6
_NAMED: Final = 3
# beginnings of the names of arrays, by the stage that computes them
_STAGES: Final = (("the list", "the panel", "the names"), ("statement",), ("the universe",), ("",))
_NEAR_END: Final = 3
_PARTS: Final = 8
_NO_SESSIONS: Final = "There are too few sessions with a universe."


def future(subject: Subject) -> Result:
    """Compare arrays up to t, to the bit, with those on later data that are noise, for all firms at once."""
    times, data = subject.times(subject.budget.sessions), subject.dataset
    if not times:
        return skipped(_NO_SESSIONS)
    rows: list[dict[str, Any]] = []
    for k, t in enumerate(times):
        firms = QUICK_FIRMS if subject.budget.quick else FIRMS if k % 3 else None
        tables = subject.window(t - subject.lookback, t + AFTER)
        if firms is not None:
            tables = subject.sample_firms(tables, firms)
        whole = tables["prices"].height == subject.tables["prices"].height
        true = data if whole else datasets.build_dataset(tables, subject.config)
        first = int(np.searchsorted(data.panel.dates_T, true.panel.dates_T[0]))
        for one in _differences(subject, t, tables, true):
            on = subject.day(one.session + first) if one.session >= 0 else None
            ticker = true.panel.tickers_N[one.column] if one.column >= 0 else "-"
            rows.append({"after": subject.day(t), "what": one.what, "first_on": on, "ticker": ticker})

    if rows:
        named = _furthest_upstream(row["what"] for row in rows)
        worst = next(row for row in rows if row["what"] == named[0])
        where = f", first at {worst['first_on']} for {worst['ticker']}" if worst["first_on"] else ""
        sentence = f"replacing all data after {worst['after']} changed earlier values{where}."
        return answer("fail", f"{listed(named)} used future data: {sentence}", rows)
    return answer(
        "pass",
        f"{len(data.channel_names) + len(data.characteristic_names)} features, the universe and ended labels "
        f"are bitwise identical when all data after {', '.join(str(subject.day(t)) for t in times)} are "
        "replaced by noise.",
    )


def dates(subject: Subject) -> Result:
    """Compare datasets of a few firms up to t, at sessions of every kind, when all later data are noise."""
    times = draw_of_every_kind(subject, subject.budget.cuts)
    if not times:
        return skipped(_NO_SESSIONS)
    few = subject.sample_firms(subject.tables, FEW_FIRMS)
    # the whole of a short history is built once, a window of a long one for each session
    short = subject.dataset.panel.n_sessions <= 2 * HISTORY
    whole: Dataset | None = None
    found: dict[int, list[Difference]] = {}
    for k, t in enumerate(times):
        history = subject.lookback if k % LONG_EVERY == 0 else min(subject.lookback, HISTORY)
        tables = few if short else subject.window(t - history, t + _AFTER_FEW, few)
        try:
            true = whole or datasets.build_dataset(tables, subject.config)
            found[t] = _differences(subject, t, tables, true)
        except DataError:  # the universe of a few firms is empty
            continue
        whole = true if short else None
    if not found:
        return skipped(f"{FEW_FIRMS} firms are too few for a universe.")
    rows = [{"after": subject.day(t), "what": one.what} for t, diffs in found.items() for one in diffs]
    if not rows:
        return answer(
            "pass",
            f"Features, the universe and ended labels of {FEW_FIRMS} firms are bitwise identical when all "
            f"data after each of {len(found)} sessions of every kind are replaced by noise.",
        )
    hits = [t for t, diffs in found.items() if diffs]
    others = [t for t, diffs in found.items() if not diffs]
    named = _furthest_upstream(str(row["what"]) for row in rows)
    first = next(row["after"] for row in rows if row["what"] == named[0])
    shared = (  # a kind of dates that all hits are of, and no other session
        kind
        for kind, flags_T in kinds_of_dates(subject).items()
        if others and flags_T[hits].all() and not flags_T[others].any()
    )
    always = "".join(f", always on {kind}" for kind in islice(shared, 1))
    sentence = (
        f"{listed(named)} used future data on {len(hits)} of {len(found)} sessions{always}, first after "
        f"{first}: replacing all later data changed earlier values."
    )
    return answer("fail", sentence, rows)


def listed(names: list[str]) -> str:
    """Name up to three things, as the beginning of a sentence."""
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{shown[0].upper()}{shown[1:]}{more}"


def _differences(
    subject: Subject, t: int, tables: dict[str, pl.DataFrame], true: Dataset
) -> list[Difference]:
    """Differences up to t of a dataset whose later data are noise."""
    day, label = subject.day(t), subject.config.label
    if subject.config.universe.membership is not None:
        tables = drop_later_joiners(tables, day, subject.config.universe.membership)
    noisy = datasets.build_dataset(replace_future(tables, day, seed=subject.seed + t), subject.config)
    at = int(np.searchsorted(true.panel.dates_T, np.datetime64(day)))
    return differences_until(at, true, noisy, label.horizon, label.delay)


def _furthest_upstream(names: Iterable[str]) -> list[str]:
    """Return the differences of the earliest stage; later stages differ as a consequence."""
    distinct = list(dict.fromkeys(names))
    staged = ([name for name in distinct if name.startswith(starts)] for starts in _STAGES)
    return next(stage for stage in staged if stage)


def kinds_of_dates(subject: Subject) -> dict[str, BoolArray]:
    """Flag the sessions of each kind: calendar, segments of folds, parts of the sample, eves of events."""
    dates_T = subject.dataset.panel.dates_T
    T, every_T = len(dates_T), np.arange(len(dates_T))
    kinds = _calendar(dates_T)
    for fold in subject.folds:
        for name, sessions in (("train", fold.train), ("validation", fold.valid), ("test", fold.test)):
            if name == "test" or fold is subject.folds[-1]:
                kinds[f"the {name} sessions of fold {fold.index}"] = np.isin(every_T, sessions)
    for part in range(_PARTS):
        first, last = T * part // _PARTS, T * (part + 1) // _PARTS - 1
        kinds[f"sessions from {dates_T[first]} to {dates_T[last]}"] = (every_T >= first) & (every_T <= last)
    kinds["eves of listings, halts, splits, statements and membership changes"] = np.isin(
        every_T, subject.eves
    )
    return kinds


def _calendar(dates_T: DateArray) -> dict[str, BoolArray]:
    weekday_T = (dates_T.astype(np.int64) + 3) % 7
    kinds = {f"{name}s": weekday_T == day for day, name in enumerate(calendar.day_name)}
    for unit, name in (("M", "month"), ("Y", "year")):
        period_T = dates_T.astype(f"datetime64[{unit}]")
        starts_T = np.concatenate([[True], period_T[1:] != period_T[:-1]])
        kinds[f"first sessions of a {name}"] = starts_T
        kinds[f"last sessions of a {name}"] = np.concatenate([starts_T[1:], [False]])
    month_T = dates_T.astype("datetime64[M]").astype(np.int64) % 12
    starts_T = kinds["first sessions of a month"]
    kinds["first sessions of a quarter"] = starts_T & (month_T % 3 == 0)
    kinds["last sessions of a quarter"] = kinds["last sessions of a month"] & (month_T % 3 == 2)
    near = [np.roll(starts_T, off) for off in range(-_NEAR_END, _NEAR_END + 1)]
    kinds["sessions near the turn of a month"] = np.any(near, axis=0)
    kinds |= {f"month {k + 1:02}": month_T == k for k in range(12)}
    gap_T = np.append(np.diff(dates_T).astype(np.int64), 1)
    kinds["eves of a holiday"] = (gap_T > 1) & ~((gap_T == 3) & (weekday_T == 4))
    kinds["sessions after a holiday"] = np.roll(kinds["eves of a holiday"], 1)
    day_T = (dates_T - dates_T.astype("datetime64[M]")).astype(np.int64)
    kinds["third Fridays of a month"] = (weekday_T == 4) & (day_T >= 14) & (day_T <= 20)
    return kinds


def draw_of_every_kind(subject: Subject, count: int) -> list[int]:
    """Draw decision sessions such that every kind is there before any kind is there again."""
    usable = subject.decisions[subject.decisions < subject.dataset.panel.n_sessions - 3]
    if not len(usable):
        return []
    rng = np.random.default_rng((subject.seed, 12))
    present = [flags_T[usable] for flags_T in kinds_of_dates(subject).values() if flags_T[usable].any()]
    of_kind = np.stack(present, axis=1).astype(np.float64)
    rare = 1.0 / of_kind.sum(axis=0)  # a kind with few sessions decides, one with many comes by itself
    drawn = np.zeros(of_kind.shape[1])
    left = np.ones(len(usable), dtype=np.bool_)
    chosen: list[int] = []
    for _ in range(min(count, len(usable))):
        worth = of_kind @ (rare / 4.0**drawn) + of_kind @ (1.0 / 4.0**drawn)
        pick = int(rng.choice(np.flatnonzero(left & (worth >= worth[left].max() - 1e-12))))
        left[pick] = False
        drawn += of_kind[pick]
        chosen.append(int(usable[pick]))
    return sorted(chosen)


# relative to the value or to the median size in the cross-section: forward adjustment factors that start on
# another session round differently, and features are stored in float32
TOLERANCE: Final = 1e-6
# relative to the largest value of the longer history, for a feature that is 0 for most firms, such as the
# place of a close in its range where most bars have none: it subtracts numbers near 1
ROUNDING: Final = 1e-9
_ZERO: Final = 1e-12  # largest value up to which a feature is 0 and rounding everywhere
EARLIER: Final = 120  # number of sessions by which the longer history starts earlier
_AROUND: Final = 15
_AT_ONCE: Final = 10
_QUICK: Final = 24  # characteristics of a quick audit whose transform is checked; all have the same one


def warm_up(subject: Subject) -> Result:
    """Compute every feature at t from its declared window and from a longer history, and compare.

    Firms with a split before the window are left out: their share counts are adjusted for splits that the
    shorter history does not contain. So are levels of which models read ratios alone.
    """
    firms = QUICK_FIRMS if subject.budget.quick else FIRMS
    subject = replace(subject, tables=subject.sample_firms(subject.tables, firms))
    decisions = subject.decisions
    late = decisions[decisions > subject.lookback]  # with enough history for every declared window
    pool = late if len(late) else decisions[len(decisions) // 2 :]
    count = min(max(subject.budget.sessions // 2, 1), len(pool))
    times = np.sort(np.random.default_rng((subject.seed, 5)).choice(pool, count, replace=False)).tolist()
    channels, every = subject.kinds
    daily = tuple(name for name in channels.names if name not in RELATIVE)
    found = [
        row
        for t, kind in product(times, (channels._replace(names=daily), every))
        for window in sorted({kind.registry[name].window for name in kind.names})
        if t - window - 1 > 0
        for row in _moved(subject, kind, t, window)
    ]
    rows = [row for row in found if "ticker" in row]
    if not found:
        return skipped("The history is too short for the window of any feature.")

    if not rows:
        count = len({row["feature"] for row in found})
        same = f"the same values from their declared windows as from a longer history (to {TOLERANCE:g})"
        return answer("pass", f"{count} features have {same}.")
    one, more = rows[0], len({row["feature"] for row in rows}) - 1
    name = one["feature"]
    sentence = (
        f"{name[0].upper()}{name[1:]}{f' and {more} more' if more else ''} depends on sessions before "
        f"its declared window of {one['window']}: on {one['date']} the value of {one['ticker']} is "
        f"{one['short']:.6g} from the window and {one['long']:.6g} from a longer history."
    )
    return answer("fail", sentence, rows)


def _moved(subject: Subject, kind: FeatureKind, t: int, window: int) -> Iterator[dict[str, Any]]:
    """Yield the name of each feature of a window that can be compared, and the firms whose values differ."""
    start, names = t - window + 1, [name for name in kind.names if kind.registry[name].window == window]
    statements = any(kind.registry[name].needs_statements for name in names)
    long, short = (_panel(subject, first, t, statements=statements) for first in (start - EARLIER, start))
    place = {ticker: n for n, ticker in enumerate(long.tickers_N)}
    own = np.array([place[ticker] for ticker in short.tickers_N])
    split = subject.tables["prices"].filter(
        (pl.col("date") < subject.day(start)) & (pl.col("split_ratio") != 1.0)
    )
    usable_N = np.isfinite(short.close_TN[-1]) & ~np.isin(short.tickers_N, split["ticker"].unique().to_list())
    for name in names:
        if not kind.registry[name].needs <= (short.fields & long.fields):
            continue
        left_N = kind.registry.compute(short, [name])[-1, :, 0].astype(np.float64)
        long_TN = kind.registry.compute(long, [name])[:, own, 0].astype(np.float64)
        comparable_N = usable_N & (np.isfinite(left_N) | np.isfinite(long_TN[-1]))
        if comparable_N.any():
            row = {"feature": f"{kind.word} {name}", "window": window, "date": subject.day(t)}
            yield row
            for n in np.flatnonzero(comparable_N & ~same_up_to_rounding(left_N, long_TN, comparable_N))[:5]:
                both = {"short": float(left_N[n]), "long": float(long_TN[-1, n])}
                yield {**row, "ticker": short.tickers_N[n], **both}


def _panel(subject: Subject, first: int, last: int, *, statements: bool) -> Panel:
    """Build the panel of some sessions, with statements only on request: they take most of the time."""
    start, end = subject.day(max(first, 0)), subject.day(last)
    tables, within = dict(subject.tables), pl.col("date").is_between(start, end)
    tables["prices"] = tables["prices"].filter(within)
    fundamentals = tables.pop("fundamentals", None)
    if statements and fundamentals is not None:
        tables["fundamentals"] = fundamentals.filter(pl.col("known_at") <= end)
    return subject.panel(tables)


def same_up_to_rounding(left_N: FloatArray, long_TN: FloatArray, among_N: BoolArray) -> BoolArray:
    """Whether the last values are equal up to rounding; False where one is unknown."""
    right_N, known_TN = long_TN[-1], np.isfinite(long_TN)
    known_N = np.where(np.isfinite(right_N), right_N, left_N)
    usual = float(np.nanmedian(np.abs(np.where(among_N, known_N, np.nan))))
    largest = min(float(np.abs(long_TN[known_TN]).max(initial=0.0)), 1.0)
    least = ROUNDING * largest if largest > _ZERO else _ZERO
    floor = TOLERANCE * usual if usual > least else least
    largest_N = np.maximum(np.abs(left_N), np.abs(right_N))
    return np.asarray(np.abs(left_N - right_N) <= np.maximum(TOLERANCE * largest_N, floor))


STORED: Final = 250  # last sessions on which the features that models read are computed again
QUICK_STORED: Final = 40
_SHIFTS: Final = (1, 2, 3, 5, -1, -2, -3, -5)
_SHIFTED: Final = 0.9


def stored_features(subject: Subject) -> Result:
    """Compute the features of the last sessions from the lake again, and compare them with those in use.

    Models read features from a store of mapped files. They must be what the code makes of the lake, to the
    bit.
    """
    data, config = subject.dataset, subject.config
    T, count = data.panel.n_sessions, QUICK_STORED if subject.budget.quick else STORED
    part = take_sessions(data.panel, max(T - count - subject.lookback, 0))
    last = slice(-min(count, T), None)
    every, rule = data.characteristic_names, config.features.transform
    names = every[: len(every) // (2 if rule.add_indicator else 1)]
    channels_DNC = channels_of(config.features.expressions).compute(part, data.channel_names)[last]
    pairs = [
        (f"channel {name}", data.channels_TNC[last, :, c], channels_DNC[:, :, c])
        for c, name in enumerate(data.channel_names)
    ]
    for start in range(0, len(names), _AT_ONCE):
        chosen = names[start : start + _AT_ONCE]
        raw_DNF = _raw_of(subject, part, chosen)[last]
        again_DNF = transform_characteristics(
            raw_DNF, data.universe_TN[last], data.panel.group_TN[last], rule
        )
        for f, name in enumerate(rule.names(chosen)):
            own_DN = data.characteristics_TNF[last, :, every.index(name)]
            pairs.append((f"characteristic {name}", own_DN, again_DNF[:, :, f]))
    rows = [row for what, own_DN, again_DN in pairs for row in _differs(subject, what, own_DN, again_DN)]
    if rows:
        one = rows[0]
        sentence = (
            f"{listed([row['what'] for row in rows])} that models read are not what the code computes from "
            f"the lake, first for {one['ticker']} on {one['first_on']}: "
            f"{one['stored']:.6g} instead of {one['computed']:.6g}.{one['cause']} Delete the feature store "
            "(feature_store.folder) and train again."
        )
        return answer("fail", sentence, rows)
    same = f"bitwise those that the code computes from the lake for the last {min(count, T)} sessions"
    return answer("pass", f"{len(pairs)} features that models read are {same}.")


def _differs(
    subject: Subject, what: str, own_DN: Float32Array, again_DN: Float32Array
) -> Iterator[dict[str, Any]]:
    """Yield the first value that differs, and the shift of sessions that explains it, if there is one."""
    off_DN = ~((own_DN == again_DN) | (np.isnan(own_DN) & np.isnan(again_DN)))
    if not off_DN.any():
        return
    d, n = (int(i) for i in np.argwhere(off_DN)[0])
    cause = ""
    for shift in _SHIFTS:
        ahead_DN = np.roll(again_DN, -shift, axis=0)
        inner = slice(max(-shift, 0), len(again_DN) - max(shift, 0))
        if np.isclose(own_DN[inner], ahead_DN[inner], equal_nan=True).mean() > _SHIFTED:
            size = f"{abs(shift)} session{'s' if abs(shift) > 1 else ''}"
            cause = f" They are those of {size} {'later' if shift > 0 else 'earlier'}."
            break
    day = subject.day(subject.dataset.panel.n_sessions - len(own_DN) + d)
    place = {"what": what, "first_on": day, "ticker": subject.dataset.panel.tickers_N[n]}
    values = {"stored": float(own_DN[d, n]), "computed": float(again_DN[d, n])}
    yield {**place, **values, "cells": int(off_DN.sum()), "cause": cause}


def cross_section(subject: Subject) -> Result:
    """Replace raw characteristics and labels on all other dates, and require identical results at t.

    The check ``future`` cannot find a rank over all past dates, because such a rank does not look ahead. It
    still makes a firm's value depend on the firms and the market level of other dates.
    """
    times = subject.times(subject.budget.sessions)
    if not times:
        return skipped(_NO_SESSIONS)
    rule = subject.config.features.transform
    every = subject.dataset.characteristic_names
    names = every[: len(every) // (2 if rule.add_indicator else 1)]
    if subject.budget.quick and len(names) > _QUICK:
        names = names[:: -(-len(names) // _QUICK)]
    raw, transformed = _raw(subject, names, times), rule.names(names)
    rows = [
        {"on": subject.day(t), "what": what}
        for t in times
        for what in (*_other_characteristics(subject, t, transformed, raw[t]), *_other_targets(subject, t))
    ]

    if rows:
        named = f"{listed(list(dict.fromkeys(str(row['what']) for row in rows)))} on {rows[0]['on']}"
        cure = "rank and scale each firm among the firms of its own date"
        return answer("fail", f"{named} depend on other dates: {cure}.", rows)
    days = ", ".join(str(subject.day(t)) for t in times)
    same = "are bitwise identical when the raw values of all other dates are replaced"
    return answer("pass", f"Ranks, scales and targets of {days} {same}.")


def _around(subject: Subject, t: int) -> IntArray:
    """Sessions around t, which stand for all others: a date that depends on others depends on these."""
    return np.arange(max(t - _AROUND, 0), min(t + _AROUND + 1, subject.dataset.panel.n_sessions))


def _raw(subject: Subject, names: tuple[str, ...], times: list[int]) -> dict[int, Float32Array]:
    """Raw characteristics on the sessions around each t, computed a few at a time to save memory."""
    parts: dict[int, list[Float32Array]] = {t: [] for t in times}
    for start in range(0, len(names), _AT_ONCE):
        raw_TNF = _raw_of(subject, subject.dataset.panel, names[start : start + _AT_ONCE])
        for t in times:
            parts[t].append(raw_TNF[_around(subject, t)])
    return {t: np.concatenate(blocks, axis=2) for t, blocks in parts.items()}


def _raw_of(subject: Subject, panel: Panel, names: tuple[str, ...]) -> Float32Array:
    """Raw values of some characteristics and inputs on the sessions of a panel."""
    own = tuple(name.removeprefix(INPUT_PREFIX) for name in names if name.startswith(INPUT_PREFIX))
    features = subject.config.features.model_copy(update={"inputs": own})
    some = subject.config.model_copy(update={"features": features})
    return characteristics.raw_characteristics(panel, names, subject.tables, some)


def _other_characteristics(
    subject: Subject, t: int, transformed: tuple[str, ...], raw_RNF: Float32Array
) -> Iterator[str]:
    """Yield the characteristics that differ at t when other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t))
    data, rows_R, raw_RNF = subject.dataset, _around(subject, t), raw_RNF.copy()
    others_R = rows_R != t
    universe_RN, group_RN = data.universe_TN[rows_R], data.panel.group_TN[rows_R]
    shape = (int(others_R.sum()), data.panel.n_firms)
    universe_RN[others_R] = rng.random(shape) < 0.7
    group_RN[others_R] = rng.integers(-1, len(data.panel.groups_S) + 1, shape)
    raw_RNF[others_R] = 5.0 * rng.standard_normal((*shape, raw_RNF.shape[2]), dtype=np.float32)
    rule = subject.config.features.transform
    again_RNF = transform_characteristics(raw_RNF, universe_RN, group_RN, rule)
    again_NF = again_RNF[int(np.argmin(others_R))]
    for f, name in enumerate(transformed):
        own_N = data.characteristics_TNF[t, :, data.characteristic_names.index(name)]
        if not np.array_equal(own_N, again_NF[:, f], equal_nan=True):
            yield f"characteristic {name}"


def _other_targets(subject: Subject, t: int) -> Iterator[str]:
    """Yield the targets that differ at t when labels and universe of other dates are replaced."""
    rng = np.random.default_rng((subject.seed, 4, t, 1))
    data, label = subject.dataset, subject.config.label
    others_T = np.arange(data.panel.n_sessions) != t
    shape = (int(others_T.sum()), data.panel.n_firms)
    universe_TN = data.universe_TN.copy()
    universe_TN[others_T] = rng.random(shape) < 0.7
    targets = [(label.horizon, data.labels[label.delay], data.target_TN)]
    if data.path_TNK is not None:
        shorter = enumerate(data.shorter_labels.items())
        targets += [(horizon, label_TN, data.path_TNK[:, :, k]) for k, (horizon, label_TN) in shorter]
    for horizon, label_TN, target_TN in targets:
        noisy_TN = label_TN.copy()
        noisy_TN[others_T] = 0.1 * rng.standard_normal(shape)
        made_TN, _ = datasets.make_target(noisy_TN, universe_TN, data.panel, label, horizon)
        if not np.array_equal(target_TN[t], made_TN[t], equal_nan=True):
            yield f"the target of horizon {horizon}"
