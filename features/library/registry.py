"""The registry of features: definition, look-back window, required inputs and computation.

There are two registries: characteristics (one number per firm and session, compared within the date) and
channels (the series that form a model's window over sessions).

The value of a feature at t depends only on the panel's rows ``t-window+1..t`` and on the statements known at
t. A panel whose history starts on another session gives the same value to a relative 1e-9, not to the bit:
forward adjustment (`features.panel.panel.forward_factor`) multiplies from the panel's first session on.
That factor cancels in every ratio, except for rounding.

Shape suffixes: T sessions, N firms, K features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from features.arithmetic.parallel import firm_blocks, for_each
from features.arrays import Float32Array, FloatArray, frozen
from features.panel.derived import MAX_HALT, sessions_since_trade, take_firms
from features.panel.panel import Panel

Compute = Callable[[Panel], FloatArray]

NAN_RULE = (
    "NaN where the firm did not trade at t, where an input is unknown, where the formula has no finite "
    f"value, and where the firm had no price on any of the sessions t-warmup-{MAX_HALT}..t-warmup."
)
"""The NaN rule of every feature; `Feature.nan_rule` lists additional cases."""


_MOST_NAMED = 8  # features or inputs that a message names


def _listed(names: list[str], last: str, rest: str = "") -> str:
    """Join names as in "a, b and c"; of too many, the first ones and how many others there are."""
    if len(names) > _MOST_NAMED and rest:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} {rest}"]
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: one number per firm and session, known at the close of t.

    Attributes
    ----------
    name : str
        Unique name.
    family : str
        The group of related features that attribution treats as one player.
    needs : frozenset of str
        Panel fields that it reads (`features.panel.panel.Panel.fields`).
    warmup : int
        Sessions between a firm's first price and the first value.
    window : int
        Sessions, t included, that the value can depend on. Halts and market-wide series are included.
    formula : str
        The definition, in terms of the panel's columns.
    unit : str
        Unit of the raw value.
    nan_rule : str
        Cases in which it is NaN in addition to `NAN_RULE`; empty if there are none.
    source : str
        The paper that introduced or documents it.
    compute : callable
        Panel -> float64 array of shape (T, N), NaN by both rules.
    """

    name: str
    family: str
    needs: frozenset[str]
    warmup: int
    window: int
    formula: str
    unit: str
    nan_rule: str
    source: str
    compute: Compute

    @property
    def needs_statements(self) -> bool:
        """Whether it reads financial statements."""
        return any(need.startswith("statements:") for need in self.needs)


class Registry(dict[str, Feature]):
    """Features by name, in the order in which they were registered.

    Parameters
    ----------
    kind : str
        Name of an entry in messages.
    families : iterable of str
        Allowed families.
    renamed : mapping of str to str, optional
        Old name -> new name, for messages.

    Examples
    --------
    >>> from features.library.channels import CHANNELS
    >>> "return" in CHANNELS
    True
    """

    def __init__(self, kind: str, families: Iterable[str], renamed: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.renamed = dict(renamed or {})
        self.kind = kind
        self.families = tuple(families)

    def register(
        self,
        name: str,
        family: str,
        *,
        formula: str,
        unit: str,
        source: str,
        warmup: int = 0,
        window: int | None = None,
        nan_rule: str = "",
        needs: Iterable[str] = ("close",),
    ) -> Callable[[Compute], Compute]:
        """Register a function as a feature. `NAN_RULE` is applied to its result.

        Parameters
        ----------
        name, family, formula, unit, source, warmup, nan_rule, needs
            As in `Feature`.
        window : int, optional
            As in `Feature`. Default: 1 without a warm-up, else ``warmup + 1 + MAX_HALT``, which covers the
            warm-up and a halt before it.

        Returns
        -------
        callable
            Decorator that registers the function and returns it unchanged.
        """
        span = window if window is not None else (warmup + 1 + MAX_HALT if warmup else 1)
        assert name not in self, f"the {self.kind} {name} is registered twice"
        assert family in self.families, f"unknown {self.kind} family {family}"
        assert warmup == 0 or span > warmup + MAX_HALT, f"{name}: window {span} is below its warm-up"

        def register(raw: Compute) -> Compute:
            def compute(panel: Panel) -> FloatArray:
                from features.arithmetic.kernels import keep_traded

                # no finite value: NaN below
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    value_TN = frozen(np.ascontiguousarray(raw(panel)))
                out_TN = np.empty(value_TN.shape)
                keep_traded(value_TN, frozen(sessions_since_trade(panel)), warmup, float(MAX_HALT), out_TN)
                return out_TN

            self[name] = Feature(
                name, family, frozenset(needs), warmup, span, formula, unit, nan_rule, source, compute
            )
            return raw

        return register

    def available(self, panel: Panel, names: Iterable[str] | None = None) -> tuple[list[str], list[str]]:
        """List the features that a panel's columns allow.

        Parameters
        ----------
        panel : Panel
            The data.
        names : iterable of str, optional
            Features to check, in this order; all by default.

        Returns
        -------
        usable : list of str
            Features whose inputs the panel has.
        messages : list of str
            Empty if all are usable; otherwise one sentence, such as ``"These data have no high or low: the
            characteristics x and y are left out."`` Of many inputs or features it names the first ones.

        Raises
        ------
        ValueError
            If a name is not registered.
        """
        requested = list(self) if names is None else list(names)
        if former := [name for name in requested if name in self.renamed]:
            now = ", ".join(f"{name} is now called {self.renamed[name]}" for name in former)
            msg = f"Renamed {self.kind}: {now}; use the new name."
            raise ValueError(msg)
        unknown = [name for name in requested if name not in self]
        if unknown:
            msg = f"Unknown {self.kind} {', '.join(unknown)}: choose among {', '.join(sorted(self))}."
            raise ValueError(msg)
        lacking = {name: sorted(self[name].needs - panel.fields) for name in requested}
        usable = [name for name, fields in lacking.items() if not fields]
        left_out = [name for name, fields in lacking.items() if fields]
        fields = dict.fromkeys(field for name in left_out for field in lacking[name])
        return usable, [self._missing_message(list(fields), left_out)] if left_out else []

    def _missing_message(self, fields: list[str], names: list[str]) -> str:
        inputs = _listed([field.removeprefix("statements:") for field in fields], "or", "others")
        if len(names) <= _MOST_NAMED:
            verb = "is" if len(names) == 1 else "are"
            kind = self.kind if len(names) == 1 else f"{self.kind}s"
            return f"These data have no {inputs}: the {kind} {_listed(names, 'and')} {verb} left out."
        return (
            f"These data have no {inputs}: {len(names)} {self.kind}s are left out, such as "
            f"{_listed(names[:3], 'and')} ('peerglass features' says what each needs)."
        )

    def compute(self, panel: Panel, names: Iterable[str] | None = None) -> Float32Array:
        """Compute raw features (neither ranked nor scaled) and stack them along the last axis.

        Parameters
        ----------
        panel : Panel
            The data.
        names : iterable of str, optional
            Features to compute, in this order; by default all that the panel allows.

        Returns
        -------
        ndarray of float32, shape (T, N, K)
            NaN where unknown or outside the range of float32. Each feature is contiguous in memory.

        Raises
        ------
        ValueError
            If a name is not registered or its inputs are missing; `available` lists which.
        """
        usable = self._usable(panel, names)
        out_KTN = np.empty((len(usable), panel.n_sessions, panel.n_firms), dtype=np.float32)

        def place(firms: slice, tile_KTn: Float32Array) -> None:
            out_KTN[:, :, firms] = tile_KTn

        self.for_each_tile(panel, usable, place)
        return np.moveaxis(out_KTN, 0, 2)

    def for_each_tile(
        self, panel: Panel, names: Iterable[str], receive: Callable[[slice, Float32Array], None]
    ) -> None:
        """Compute raw features by tiles of firms, without holding those of all firms.

        Parameters
        ----------
        panel, names
            As in `compute`.
        receive : callable
            Takes the firms of a tile and their values [K, T, n], as `compute` gives them. It is called from
            several threads, in any order.

        Raises
        ------
        ValueError
            As `compute`.
        """
        from features.arithmetic.kernels import store_float32

        usable = self._usable(panel, names)
        parts = firm_blocks(panel.n_sessions, panel.n_firms)
        needs = frozenset[str]().union(*(self[name].needs for name in usable))

        def compute(firms: slice) -> None:
            tile = panel if len(parts) == 1 else take_firms(panel, firms, needs)
            out_KTn = np.empty((len(usable), tile.n_sessions, tile.n_firms), dtype=np.float32)
            for name, out_Tn in zip(usable, out_KTn, strict=True):
                store_float32(frozen(self[name].compute(tile)), out_Tn)
            receive(firms, out_KTn)

        for_each(compute, parts)

    def _usable(self, panel: Panel, names: Iterable[str] | None) -> list[str]:
        requested = None if names is None else list(names)
        usable, messages = self.available(panel, requested)
        if requested is not None and messages:
            raise ValueError(messages[0])
        return usable
