"""Expressions: features that a config writes as text, such as ``rank(delta(close, 5) / std(close, 20))``.

The text is parsed by Python's `ast` into a tree of series, numbers and `features.library.operators`. It is
never evaluated as code. All operators read the past and the firms of the same date alone. NaN means
unknown: an operation on an unknown value is unknown, and so is what has no finite value.

Shape suffixes: T sessions, R some of the sessions, N firms, n firms of a tile.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from features.arithmetic.parallel import firm_blocks, for_each, map_in_order
from features.arrays import FloatArray, frozen
from features.library.operators import OPERATORS, SERIES, SYMBOLS, Operator, Values
from features.library.registry import Registry
from features.panel.derived import cached, full_panel, take_firms
from features.panel.panel import Panel

LONGEST = 2000
"""Largest window, in sessions."""
DEEPEST = 80
"""Largest number of operators inside each other; a sum of k terms has k - 1."""
GROUP = "group"
"""Second argument of an operator across firms that compares a firm with its group."""
_ROWS = 64  # sessions that are compared at once


@dataclass(frozen=True, slots=True)
class Call:
    """An operator by its symbol or name, with its arguments: trees, names of series, and numbers."""

    name: str
    arguments: tuple[Tree, ...]
    by_group: bool = False

    @property
    def operator(self) -> Operator:
        """What it computes."""
        return _NAMED[self.name]


Tree = Call | str | float
_NAMED = {
    one.form.partition("(")[0] + "/1" * (key is ast.USub): one for key, one in SYMBOLS.items()
} | OPERATORS


def parse(text: str) -> Call | str:
    """Parse the text of an expression.

    Raises
    ------
    ValueError
        If it is no expression over series that reads the past alone. The message quotes it and the place.

    Examples
    --------
    >>> parse("mean(close, 5)")
    Call(name='mean', arguments=('close', 5.0), by_group=False)
    """
    text = " ".join(text.split())
    if "#" in text:  # lines are joined, so that a comment would end the whole formula
        raise ValueError(f"{text!r} at '#' (column {text.index('#') + 1}): a formula has no comments")
    try:
        tree = _Parser(text).tree(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(
            f"{text!r} at column {error.offset or len(text)}: {error.msg}; check the symbols and brackets"
        ) from None
    except (RecursionError, MemoryError):
        raise ValueError(
            f"{text[:40]!r}... is nested too deeply; split it into simpler expressions"
        ) from None
    if isinstance(tree, float):
        raise ValueError(f"{text!r} names no series; use one of {', '.join(SERIES)}")
    if _depth(tree) > DEEPEST:
        raise ValueError(
            f"{text[:40]!r}... is nested more than {DEEPEST} levels deep; split it into simpler ones"
        )
    return tree


def _depth(tree: Tree) -> int:
    return 1 + max(map(_depth, tree.arguments)) if isinstance(tree, Call) else 0


class _Parser:
    """Makes trees of the nodes of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def refuse(self, node: ast.expr, why: str) -> NoReturn:
        """Raise the error of a node, with the text and the place."""
        place = ast.get_source_segment(self.text, node)
        raise ValueError(f"{self.text!r} at {place!r} (column {node.col_offset + 1}): {why}")

    def unknown(self, node: ast.expr, name: str, kind: str, known: Iterable[str]) -> NoReturn:
        """Refuse a name, and say which one was probably meant."""
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        self.refuse(node, f"there is no {kind} {name!r}; {hint}")

    def tree(self, node: ast.expr) -> Tree:  # noqa: PLR0911  # one for each kind of node
        """Make the tree of a node, with numbers computed."""
        if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
            return self.finite(node, lambda: float(ast.literal_eval(node)))
        if isinstance(node, ast.Name):
            if node.id == "vwap":
                self.refuse(node, "prices have no vwap; (high + low + close) / 3 stands in for it")
            if node.id not in SERIES:
                self.unknown(node, node.id, "series", SERIES)
            return node.id
        if isinstance(node, ast.BinOp) and type(node.op) in SYMBOLS:
            return self.symbol(node, node.op, node.left, node.right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in SYMBOLS:
            return self.symbol(node, node.op, node.operand)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SYMBOLS:
            if len(node.ops) > 1:
                self.refuse(node, "compare two values at a time, and join comparisons by 'and'")
            return self.symbol(node, node.ops[0], node.left, node.comparators[0])
        if isinstance(node, ast.BoolOp):
            first, *others = (self.tree(value) for value in node.values)
            for other in others:
                first = self.joined(node, _name_of(SYMBOLS[type(node.op)]), (first, other))
            return first
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.call(node, node.func.id)
        return self.refuse(
            node,
            "this is not part of the language; use series, numbers, + - * / **, comparisons and functions",
        )

    def symbol(self, node: ast.expr, symbol: ast.AST, *parts: ast.expr) -> Tree:
        arguments = tuple(self.tree(part) for part in parts)
        return self.joined(
            node, _name_of(SYMBOLS[type(symbol)]) + "/1" * isinstance(symbol, ast.USub), arguments
        )

    def joined(self, node: ast.expr, name: str, arguments: tuple[Tree, ...]) -> Tree:
        numbers = [np.float64(one) for one in arguments if isinstance(one, float)]
        if len(numbers) < len(arguments):
            return Call(name, arguments)
        return self.finite(node, lambda: float(_NAMED[name].compute(*numbers)))

    def finite(self, node: ast.expr, compute: Callable[[], float]) -> float:
        try:
            with np.errstate(all="ignore"):
                value = compute()
        except OverflowError:
            value = np.inf
        if not np.isfinite(value):
            self.refuse(node, "this number is not finite; check it")
        return value

    def call(self, node: ast.Call, name: str) -> Call:
        if name not in OPERATORS:
            self.unknown(node.func, name, "function", OPERATORS)
        operator = OPERATORS[name]
        names, given = operator.arguments, node.args
        if node.keywords or not len(names) - operator.across <= len(given) <= len(names):
            self.refuse(node, f"{name} is written {operator.form}")
        arguments = tuple(
            self.argument(kind, part, operator)
            for kind, part in zip(names, given, strict=False)
            if kind != GROUP
        )
        by_group = operator.across and len(given) == len(names)
        if by_group and not (isinstance(given[1], ast.Name) and given[1].id == GROUP):
            self.refuse(given[1], f"the second argument of {name} can only be the word group")
        if all(isinstance(one, float) for one in arguments):
            self.refuse(node, f"{name} needs a series; use one of {', '.join(SERIES)}")
        return Call(name, arguments, by_group)

    def argument(self, kind: str, node: ast.expr, operator: Operator) -> Tree:
        if kind not in ("n", "q"):
            tree = self.tree(node)
            if isinstance(tree, float) and (operator.reach or operator.across):
                self.refuse(node, f"{operator.form} needs a series here, not a number")
            return tree
        try:
            value = self.tree(node)
        except ValueError:
            value = ""
        if kind == "q" and not (isinstance(value, float) and 0 <= value <= 1):
            self.refuse(node, f"q of {operator.form} must be a number in [0, 1]")
        if kind == "n" and not (isinstance(value, float) and value.is_integer() and 1 <= value <= LONGEST):
            other = operator.form.partition("(")[0] + "imum"
            also = f"; of two series, {other}(x, y) is the {other[:3]}imum" if other in OPERATORS else ""
            self.refuse(
                node,
                f"n must be a whole number of sessions from 1 to {LONGEST}, because an expression reads a "
                f"fixed number of past sessions and none of the future{also}",
            )
        return value


def _name_of(operator: Operator) -> str:
    return operator.form.partition("(")[0]


def _parts(tree: Tree) -> Iterator[Tree]:
    """Yield a tree and all trees inside it."""
    yield tree
    if isinstance(tree, Call):
        for argument in tree.arguments:
            yield from _parts(argument)


def needs(tree: Tree) -> frozenset[str]:
    """Fields of the panel that a tree reads."""
    parts = list(_parts(tree))
    fields = {field for part in parts if isinstance(part, str) for field in SERIES[part].needs}
    return frozenset(fields | {GROUP for part in parts if isinstance(part, Call) and part.by_group})


def lookback(tree: Tree) -> int:
    """Sessions before t that a tree reads, apart from those over which a close is carried through a halt."""
    if isinstance(tree, str):
        return SERIES[tree].warmup
    if not isinstance(tree, Call):
        return 0
    own = 0
    if tree.operator.reach is not None:
        own = tree.operator.reach(int(_window(tree)))
    return own + max(lookback(argument) for argument in tree.arguments)


def _window(tree: Call) -> float:
    value = tree.arguments[tree.operator.arguments.index("n")]
    assert isinstance(value, float), "windows are numbers"
    return value


def evaluate(tree: Tree, panel: Panel) -> Values:
    """Compute a tree on a panel or a tile of it, as float64 [T, N]; a number stays one.

    What reads a window or compares firms is kept while the panel lives, because expressions share it.
    """
    if isinstance(tree, float):
        return tree
    if isinstance(tree, str):
        return cached(panel, tree, lambda: frozen(SERIES[tree].compute(panel)))
    if tree.operator.across:
        full = full_panel(panel)
        every_TN = cached(full, tree, lambda: _compare(tree, full))
        if panel is not full:
            every_TN = every_TN[:, np.searchsorted(full.tickers_N, panel.tickers_N)]
        return every_TN

    def compute() -> Values:
        kinds = tree.operator.arguments
        arguments = (
            int(one) if kind == "n" and isinstance(one, float) else evaluate(one, panel)
            for kind, one in zip(kinds, tree.arguments, strict=True)
        )
        return tree.operator.compute(*arguments)

    return compute() if tree.operator.reach is None else cached(panel, tree, lambda: frozen(compute()))


def _compare(tree: Call, panel: Panel) -> FloatArray:
    """Compute an operator across the firms of a panel's universe."""
    x_TN, argument = np.empty(panel.close_TN.shape), tree.arguments[0]
    fields, parts = needs(argument), firm_blocks(panel.n_sessions, panel.n_firms)

    def values(firms: slice) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            tile_Tn: FloatArray = evaluate(argument, take_firms(panel, firms, fields))
        return tile_Tn

    for firms, value_Tn in zip(parts, map_in_order(values, parts), strict=True):
        x_TN[:, firms] = value_Tn
    inside_TN = panel.traded_TN if panel.universe_TN is None else panel.universe_TN
    x_TN[~(inside_TN & np.isfinite(x_TN))] = np.nan
    group_TN = panel.group_TN if tree.by_group else np.zeros(x_TN.shape, dtype=np.int16)
    n_groups = max(len(panel.groups_S), 1) if tree.by_group else 1
    out_TN = np.empty(x_TN.shape)

    def compare(rows: slice) -> None:
        group_RN = frozen(np.ascontiguousarray(group_TN[rows]))
        out_TN[rows] = tree.operator.compute(x_TN[rows], group_RN, n_groups)

    for_each(compare, [slice(start, start + _ROWS) for start in range(0, len(x_TN), _ROWS)])
    out_TN.setflags(write=False)
    return out_TN


def register(registry: Registry, name: str, text: str, *, family: str, source: str) -> None:
    """Add an expression to a registry as a feature.

    Raises
    ------
    ValueError
        As `parse`.
    """
    tree = parse(text)
    describe = registry.register(
        name,
        family,
        formula=" ".join(text.split()),
        unit="that of the formula",
        source=source,
        warmup=lookback(tree),
        nan_rule="fewer than half of a window known" if lookback(tree) else "",
        needs=sorted(needs(tree) | {"close"}),
    )
    describe(lambda panel: evaluate(tree, panel))
