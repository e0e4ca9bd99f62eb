"""How many small defects do the tests find? Draws mutations of the product and runs the tests on each.

Four kinds: a sign (``+`` for ``-``, ``<`` for ``>``), off by one (an integer), a dropped mask (one side of
``&``, the condition of `where`), and swapped columns (two names or strings of one call). Each changes one
expression. The tests of the mutated file's own folder run first, then those of its package, then all; the
first failure ends the search.

    python benchmarks/mutations.py draw --count 30 --seed 1 --common ../older > mutations.json
    python benchmarks/mutations.py run mutations.json --stages 2

``--common`` draws only from lines that stand in another checkout as well, each there and here exactly once,
so that the same mutations can be run in both. Run it in a checkout of its own: files change while it runs,
and are restored.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

PACKAGES = ("features", "models", "backtest", "pipelines", "peerglass")
KINDS = ("sign", "off by one", "dropped mask", "swapped columns")
SIGNS: dict[type[ast.AST], str] = {ast.Add: "-", ast.Sub: "+", ast.Lt: ">", ast.Gt: "<"}
SIGNS |= {ast.LtE: ">", ast.GtE: "<"}
TEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of the product, and what it becomes."""

    kind: str
    file: str
    line: str
    mutant: str


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Every mutation of one line of a file that the four kinds allow."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    source = partial(ast.get_source_segment, text)
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if not isinstance(node, ast.expr) or node.end_lineno != node.lineno:
                continue
            line = lines[node.lineno - 1]
            for kind, became in mutants(node, source):
                if line.isascii() and became != source(node):
                    mutant = line[: node.col_offset] + became + line[node.end_col_offset :]
                    yield Mutation(kind, str(path), line.strip(), mutant.strip())


def mutants(node: ast.expr, source: Callable[[ast.AST], str | None]) -> Iterator[tuple[str, str]]:
    """What an expression may become, and of which kind that is."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            if not isinstance(left, ast.Constant | ast.JoinedStr):
                yield "sign", f"{source(left)} {SIGNS[type(op)]} {source(right)}"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SIGNS:
            yield "sign", f"{source(left)} {SIGNS[type(op)]} {source(right)}"
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield "off by one", str(value + 1)
        case ast.BinOp(op=ast.BitAnd(), left=left, right=right):
            yield "dropped mask", f"({source(left)})"
            yield "dropped mask", f"({source(right)})"
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, kept, _]):
            yield "dropped mask", f"{source(kept)}"
        case ast.Call(args=[ast.Name() | ast.Constant(value=str()) as one, two, *_]) if type(one) is type(
            two
        ):
            pair = f"{source(one)}, {source(two)}"
            if pair in (whole := source(node) or ""):
                yield "swapped columns", whole.replace(pair, f"{source(two)}, {source(one)}", 1)
        case _:
            pass


def files(root: Path) -> list[Path]:
    """Files of the product."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def once(root: Path) -> set[str]:
    """Lines that stand in a checkout exactly once."""
    count: dict[str, int] = defaultdict(int)
    for path in files(root):
        for line in path.read_text("utf-8").splitlines():
            count[line.strip()] += 1
    return {line for line, times in count.items() if times == 1}


def draw(count: int, seed: int, other: Path | None) -> list[Mutation]:
    """As many mutations of each kind, of lines that stand here once, and once in the other checkout."""
    allowed = once(Path()) if other is None else once(Path()) & once(other)
    by_kind: dict[str, list[Mutation]] = defaultdict(list)
    for path in files(Path()):
        for one in mutations_of(path):
            if one.line in allowed:
                by_kind[one.kind].append(one)
    chance = random.Random(seed)  # noqa: S311 (no secret is drawn)
    return [chance.choice(by_kind[KINDS[i % len(KINDS)]]) for i in range(count)]


def stages(file: Path) -> Iterator[list[str]]:
    """Arguments of pytest: the tests of the file's folder, those of its package, and all."""
    folder = Path("tests") / file.parent
    while not folder.is_dir():
        folder = folder.parent
    yield [str(folder)]
    yield [f"tests/{file.parts[0]}"]
    yield ["tests"]


def find(one: Mutation, limit: int) -> dict[str, object]:
    """Apply a mutation, run the tests, and restore the file."""
    places = [
        (path, number)
        for path in files(Path())
        for number, line in enumerate(path.read_text("utf-8").splitlines())
        if line.strip() == one.line
    ]
    if len(places) != 1:
        return {"found": None, "why": f"the line stands here {len(places)} times"}
    (path, number), before = places[0], places[0][0].read_text("utf-8")
    lines = before.splitlines(keepends=True)
    lines[number] = lines[number].replace(one.line, one.mutant)
    start = time.monotonic()
    try:
        path.write_text("".join(lines), "utf-8")
        for stage, chosen in enumerate(list(stages(path))[:limit], 1):
            done = subprocess.run(
                [sys.executable, *TEST, *chosen],
                env=os.environ | {"PYTHONPATH": str(Path.cwd())},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                failed = [row for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
                seconds = round(time.monotonic() - start)
                return {"found": True, "stage": stage, "by": (failed or [""])[0][:160], "seconds": seconds}
    finally:
        path.write_text(before, "utf-8")
    return {"found": False, "seconds": round(time.monotonic() - start)}


def main() -> None:
    """Draw mutations, or run the tests on drawn ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("--count", type=int, default=30)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--common", type=Path)
    running = verbs.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("--stages", type=int, default=3, help="how far to look: 3 is the whole suite")
    given = parser.parse_args()
    if given.verb == "draw":
        print(json.dumps([asdict(one) for one in draw(given.count, given.seed, given.common)], indent=1))
        return
    all_ = [Mutation(**one) for one in json.loads(given.file.read_text("utf-8"))]
    results = []
    for one in all_:
        results.append(find(one, given.stages))
        print(json.dumps(asdict(one) | results[-1]), flush=True)
    ran = [one for one in results if one["found"] is not None]
    print(f"found {sum(one['found'] is True for one in ran)} of {len(ran)}")


if __name__ == "__main__":
    main()
