"""Named sets of features, and the registries of a config: the library, Alpha158, Alpha360, and expressions.

Alpha158 is the feature set of qlib (Yang et al. 2020, "Qlib: an AI-oriented quantitative investment
platform"), written from its published formulas as expressions. Its values are qlib's to 1e-5, with these
differences:

- Prices have no vwap, so that ``VWAP0`` is absent.
- A value needs half of its window, where qlib takes one known session.
- A comparison with an unknown value is unknown, where qlib counts it as false, and so is a ratio to a volume
  of 0, where qlib's is infinite.
- The place of an extreme is that among the known values, where qlib's is that of an unknown one.
- qlib computes with float32 prices, and its deviations of a constant volume hold the rounding of running
  sums.
- ``CORR`` takes ``log(volume)`` where qlib takes ``log(volume + 1)``, whose value depends on the unit of
  volume, which adjustment changes with the first session of the data.

Alpha360, of the same source, are the channels ``CLOSE``, ``OPEN``, ``HIGH``, ``LOW`` and ``VOLUME`` of a
window of 60 sessions. In a window that ends at t, a price is ``price[t - d] / close[t]``, and volume
``volume[t - d] / volume[t]``, so that the adjustment of prices cancels. Values are qlib's to 1e-5, with these
differences:

- Prices have no vwap, so that there are 300 numbers. A typical price would add nothing to the other prices.
- A volume of 0 is unknown, where qlib divides by ``volume + 1e-12``.
- Each number is standardised by the mean and deviation of the training sessions and clipped at 5 deviations,
  where qlib's benchmark takes the median and the median distance from it, and clips at 3. What is unknown is
  then 0, as there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from features.arrays import IntArray
from features.library.channels import CHANNELS
from features.library.characteristics import CHARACTERISTICS
from features.library.expressions import register
from features.library.registry import Registry

RELATIVE = {"CLOSE": "CLOSE", "OPEN": "CLOSE", "HIGH": "CLOSE", "LOW": "CLOSE", "VOLUME": "VOLUME"}
"""Channel of Alpha360 -> the channel whose value on the last session of a window divides it. The value of
such a channel alone is a level, which depends on the first session of the data."""

_NAME = re.compile(r"(?!input_)[A-Za-z][A-Za-z0-9_]{0,59}(?<!_missing)")
WINDOWS = (5, 10, 20, 30, 60)
_SOURCE = "Yang et al. 2020 (qlib, Alpha158)"

_BARS = {
    "KMID": "(close - open) / open",
    "KLEN": "(high - low) / open",
    "KMID2": "(close - open) / (high - low + 1e-12)",
    "KUP": "(high - maximum(open, close)) / open",
    "KUP2": "(high - maximum(open, close)) / (high - low + 1e-12)",
    "KLOW": "(minimum(open, close) - low) / open",
    "KLOW2": "(minimum(open, close) - low) / (high - low + 1e-12)",
    "KSFT": "(2 * close - high - low) / open",
    "KSFT2": "(2 * close - high - low) / (high - low + 1e-12)",
    "OPEN0": "open / close",
    "HIGH0": "high / close",
    "LOW0": "low / close",
}
_RISE, _FALL = "maximum(close - delay(close, 1), 0)", "maximum(delay(close, 1) - close, 0)"
_MOVE = "sum(abs(close - delay(close, 1)), N) + 1e-12"
_CROWD = "abs(close / delay(close, 1) - 1) * volume"
_UP, _DOWN = "mean(close > delay(close, 1), N)", "mean(close < delay(close, 1), N)"

_ROLLING = {
    "ROC": ("momentum", "delay(close, N) / close"),
    "MA": ("momentum", "mean(close, N) / close"),
    "STD": ("volatility", "std(close, N) / close"),
    "BETA": ("momentum", "slope(close, N) / close"),
    "RSQR": ("momentum", "rsquare(close, N)"),
    "RESI": ("reversal", "residual(close, N) / close"),
    "MAX": ("momentum", "max(high, N) / close"),
    "MIN": ("momentum", "min(low, N) / close"),
    "QTLU": ("momentum", "quantile(close, N, 0.8) / close"),
    "QTLD": ("momentum", "quantile(close, N, 0.2) / close"),
    "RANK": ("reversal", "ts_rank(close, N)"),
    "RSV": ("reversal", "(close - min(low, N)) / (max(high, N) - min(low, N) + 1e-12)"),
    "IMAX": ("momentum", "argmax(high, N) / N"),
    "IMIN": ("momentum", "argmin(low, N) / N"),
    "IMXD": ("momentum", "(argmax(high, N) - argmin(low, N)) / N"),
    "CORR": ("liquidity", "corr(close, log(volume), N)"),
    "CORD": ("liquidity", "corr(close / delay(close, 1), log(volume / delay(volume, 1) + 1), N)"),
    "CNTP": ("momentum", _UP),
    "CNTN": ("momentum", _DOWN),
    "CNTD": ("momentum", f"{_UP} - {_DOWN}"),
    "SUMP": ("momentum", f"sum({_RISE}, N) / ({_MOVE})"),
    "SUMN": ("momentum", f"sum({_FALL}, N) / ({_MOVE})"),
    "SUMD": ("momentum", f"(sum({_RISE}, N) - sum({_FALL}, N)) / ({_MOVE})"),
    "VMA": ("liquidity", "mean(volume, N) / (volume + 1e-12)"),
    "VSTD": ("liquidity", "std(volume, N) / (volume + 1e-12)"),
    "WVMA": ("liquidity", f"std({_CROWD}, N) / (mean({_CROWD}, N) + 1e-12)"),
    **{
        f"V{name}": ("liquidity", text.replace("close", "volume"))
        for name, text in {
            "SUMP": f"sum({_RISE}, N) / ({_MOVE})",
            "SUMN": f"sum({_FALL}, N) / ({_MOVE})",
            "SUMD": f"(sum({_RISE}, N) - sum({_FALL}, N)) / ({_MOVE})",
        }.items()
    },
}
"""Name without the window -> family and formula, ``N`` the window."""


@lru_cache(maxsize=1)
def alpha158() -> Registry:
    """Return the registry of Alpha158: 157 characteristics of prices and volume.

    Examples
    --------
    >>> alpha158()["MA20"].formula
    'mean(close, 20) / close'
    """
    registry = Registry(CHARACTERISTICS.kind, CHARACTERISTICS.families)
    for name, text in _BARS.items():
        register(registry, name, text, family="reversal", source=_SOURCE)
    for window in WINDOWS:  # together, because their formulas share windows
        for name, (family, text) in _ROLLING.items():
            formula = (
                text.replace("N)", f"{window})").replace("N,", f"{window},").replace("/ N", f"/ {window}")
            )
            register(registry, f"{name}{window}", formula, family=family, source=_SOURCE)
    return registry


@lru_cache(maxsize=1)
def alpha360() -> Registry:
    """Return the registry of Alpha360: five channels, which a window gives relative to its last session.

    Examples
    --------
    >>> list(alpha360())
    ['CLOSE', 'OPEN', 'HIGH', 'LOW', 'VOLUME']
    """
    registry = Registry(CHANNELS.kind, CHANNELS.families)
    for name in RELATIVE:
        register(registry, name, name.lower(), family="channel", source="Yang et al. 2020 (qlib, Alpha360)")
    return registry


def bases_of(channels: Sequence[str]) -> IntArray:
    """Place of the channel that divides each channel in a window (`RELATIVE`); -1 where there is none.

    Raises
    ------
    ValueError
        If that channel is not among them.

    Examples
    --------
    >>> bases_of(["return", "CLOSE", "OPEN"])
    array([-1,  1,  1])
    """
    for name in channels:
        if name in RELATIVE and RELATIVE[name] not in channels:
            raise ValueError(
                f"{name} is relative to {RELATIVE[name]}: name {RELATIVE[name]} among the channels too"
            )
    return np.array([channels.index(RELATIVE[name]) if name in RELATIVE else -1 for name in channels])


def characteristics_of(expressions: Mapping[str, str] | None = None) -> Registry:
    """Return all characteristics that a config can name: the library, Alpha158, and the config's expressions.

    Raises
    ------
    ValueError
        If an expression is wrong, or has the name of another feature. The message begins with its name.
    """
    more = [alpha158(), *(parts[0] for parts in ADDED.values())]
    return _with(CHARACTERISTICS, more, expressions or {}, "expression")


def channels_of(expressions: Mapping[str, str] | None = None) -> Registry:
    """Return all channels that a config can name: the library, Alpha360, and the config's expressions."""
    more = [alpha360(), *(parts[1] for parts in ADDED.values())]
    return _with(CHANNELS, more, expressions or {}, "channel")


def default_channels(chosen: str, plugins: Collection[str] = ()) -> list[str]:
    """Names of the channels of a set, then of plugins."""
    own = [] if chosen == "alpha360" else list(CHANNELS)
    return [*own, *(alpha360() if chosen in ("alpha360", "all") else ()), *_names_of(1, plugins)]


def default_characteristics(
    chosen: str, expressions: Mapping[str, str], plugins: Collection[str] = ()
) -> list[str]:
    """Names of the characteristics of a set, then of plugins, then of a config's expressions.

    Of ``alpha360`` this is ``return_1`` alone, which its windows hold as well: models need at least one.
    """
    more = [*_names_of(0, plugins), *expressions]
    if chosen == "alpha360":
        return ["return_1", *more]
    own = [] if chosen == "alpha158" else list(CHARACTERISTICS)
    return [*own, *(alpha158() if chosen != "peerglass" else ()), *more]


ADDED: dict[str, tuple[Registry, Registry]] = {}
"""Plugin -> its characteristics and its channels. Configs without the plugin do not have them."""


@contextmanager
def added_by(plugin: str) -> Iterator[None]:
    """Keep apart what is registered inside the ``with`` block, as features of a plugin.

    Raises
    ------
    ValueError
        If a feature has the name of another one.
    """
    registries = (CHARACTERISTICS, CHANNELS)
    before = [set(registry) for registry in registries]
    added = tuple(Registry(registry.kind, registry.families) for registry in registries)
    taken = [set(alpha158()), set(alpha360())]
    for place, names in enumerate(taken):
        names.update(*(parts[place] for parts in ADDED.values()))
    try:
        yield
    finally:
        for registry, known, own in zip(registries, before, added, strict=True):
            for name in [name for name in registry if name not in known]:
                own[name] = registry.pop(name)
    for own, names in zip(added, taken, strict=True):
        if twice := [name for name in own if name in names]:
            raise ValueError(f"{twice[0]} is the name of another {own.kind}; choose another")
    ADDED[plugin] = (added[0], added[1])


def hidden(plugins: Collection[str]) -> set[str]:
    """Names of the features of other plugins than these."""
    others = (parts for plugin, parts in ADDED.items() if plugin not in plugins)
    return {name for parts in others for registry in parts for name in registry}


def _names_of(place: int, plugins: Collection[str]) -> list[str]:
    return [name for plugin in plugins if plugin in ADDED for name in ADDED[plugin][place]]


def _with(
    library: Registry, more: Sequence[Registry], expressions: Mapping[str, str], family: str
) -> Registry:
    registry = Registry(library.kind, dict.fromkeys((*library.families, family)), library.renamed)
    for one in (library, *more):
        registry.update(one)
    for name, text in expressions.items():
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name; use up to 60 letters, digits and _, without input_ before or _missing "
                "after it"
            )
        if name in registry:
            raise ValueError(f"{name} is the name of a {library.kind} of the library; choose another")
        try:
            register(registry, name, text, family=family, source="the config")
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return registry
