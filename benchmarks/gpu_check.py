"""Checks a GPU in a few minutes: the tests that need one, then what training does with it, and the targets.

Needs only torch (2.11 or newer), numpy and scipy. Without pydantic or pytest, stand-ins take their place
(`benchmarks/stand_ins.py`). Rows are measured in the order of their importance, in a process that is replaced
if a row breaks it or takes too long, and are written to ``data/gpu_check`` as they come: ``table.csv``,
and ``table.md`` with the ceilings of the card and the targets that hold.
``tests.txt`` has the errors of the tests.

    python benchmarks/gpu_check.py --minutes 4
    python benchmarks/gpu_check.py --device cpu --minutes 0.3          tiny sizes, to try the script

Targets are those for an H100 or H200 (docs/training_on_a_gpu.md). That of the demo is measured by the whole
pipeline: ``peerglass run configs/demo.yaml --set execution.workers=8``.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a GPU machine may have only the repository

import torch
from gpu_measure import NEURAL, Cell, can_measure, ceilings, first_losses, measure, share_of_epoch
from stand_ins import MISSING, run_functions

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
TESTS = (ROOT / "tests/models/test_cuda.py",)
TEST_SHARE = 0.25  # of the time, at most
ROW_SECONDS = 75.0  # at most; compilation is the slowest
MAIN = ("temporal_peer", "temporal_transformer")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the table; the first of each are those of the targets."""

    firms: tuple[int, ...] = (3000, 8000, 1000)
    dates: tuple[int, ...] = (8, 32)
    seeds: tuple[int, ...] = (1, 3, 8)
    sessions: int = 100
    agreement: tuple[int, int] = (300, 4)
    """Firms and dates of the comparison with the CPU."""


SMALL = Sizes((20, 40), (2, 4), (1, 2), 60, (12, 2))


def cells_in_order(sizes: Sizes, models: tuple[str, ...]) -> Iterator[Cell]:
    """Yield every cell once: the targets first, then by model; compiled ones, which take longest, later."""
    firms, dates = sizes.firms[0], sizes.dates[0]
    main = [name for name in MAIN if name in models]
    most, several = sizes.seeds[-1], sizes.seeds[1]
    wanted = [
        *(Cell(name, firms, dates, 1, "graph") for name in main),
        *(Cell(name, firms, dates, several, "graph") for name in main),
        *(Cell(name, sizes.firms[1], sizes.dates[-1], several, "graph") for name in main),
        *(Cell(name, firms, dates, 1, "eager") for name in main),
        *(Cell(name, firms, dates, most, "graph") for name in main),
        *(Cell(name, firms, dates, 1, "graph", "float32") for name in main),
        *(Cell(name, firms, dates, k, "compiled") for k in sizes.seeds for name in main),
        *(Cell(name, firms, dates, 1, how) for name in models for how in ("graph", "eager")),
        *(Cell(name, n, b, 1, "graph") for n in sizes.firms for b in sizes.dates for name in main),
        *(
            Cell(name, n, b, k, "graph")
            for k in sizes.seeds
            for n in sizes.firms
            for b in sizes.dates
            for name in models
        ),
        *(Cell(name, firms, dates, 1, "compiled") for name in models),
        *(Cell(name, n, b, 1, "eager") for n in sizes.firms for b in sizes.dates for name in models),
        *(Cell(name, n, b, 1, "compiled") for n in sizes.firms for b in sizes.dates for name in models),
    ]
    yield from dict.fromkeys(cell for cell in wanted if can_measure(cell))


@dataclass(slots=True)
class Report:
    """What was found, in the files of a folder."""

    folder: Path
    head: list[str] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)
    """Rates of the card by name: ``float32``, ``bf16`` and ``copies``."""
    rows: list[tuple[Cell, Mapping[str, float] | str]] = field(default_factory=list)
    """Results of cells, or what went wrong."""
    agreement: dict[str, float] = field(default_factory=dict)
    """Largest difference from the losses of the CPU, relative to them, by model, way and precision."""

    epochs: dict[str, float] = field(default_factory=dict)
    """Share of an epoch in which kernels run, by model."""

    def say(self, line: str) -> None:
        """Print a line, and keep it for the page."""
        print(line, flush=True)
        self.head.append(line)

    def add(self, cell: Cell, found: Mapping[str, float] | str) -> None:
        """Add a row to both files, and print it."""
        self.rows.append((cell, found))
        print(self._line(cell, found), flush=True)
        path = self.folder / "table.csv"
        numbers = dict(found) if not isinstance(found, str) else {"error": found}
        values = {**asdict(cell), **numbers}
        measured = ["milliseconds", "kernels", "samples", "products", "bytes", "gib", "estimate"]
        names = [*asdict(cell), *measured, "error"]
        with path.open("a", newline="") as table:
            writer = csv.DictWriter(table, names)
            if not table.tell():
                writer.writeheader()
            writer.writerow(values)
        self.write()

    def write(self) -> None:
        """Write the page anew."""
        lines = [
            *self.head,
            "",
            "| model | firms | dates | K | way | precision | ms a step | kernels | firm-days/s "
            "| of products | of copies | GiB | estimated |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(self._line(cell, found) for cell, found in self.rows),
            "",
            *(f"- {line}" for line in self.targets()),
        ]
        (self.folder / "table.md").write_text("\n".join(lines) + "\n")

    def _line(self, cell: Cell, found: Mapping[str, float] | str) -> str:
        what = (
            f"| {cell.model} | {cell.firms:,} | {cell.dates} | {cell.seeds} | {cell.how} | {cell.precision} |"
        )
        if isinstance(found, str):
            return f"{what} {found} |"
        of_products = found["products"] / self.ceilings.get(cell.precision, math.nan)
        of_copies = found["bytes"] / self.ceilings.get("copies", math.nan)
        numbers = (
            f"{what} {found['milliseconds']:.3g} | {found['kernels']:.0%} | {found['samples']:,.0f} | "
            f"{of_products:.1%} | {of_copies:.0%} | {found['gib']:.2f} | {found['estimate']:.2f} |"
        )
        return numbers.replace("nan%", "").replace("nan", "")

    def targets(self) -> list[str]:
        """Say which targets hold, with the figures; a target without its figures is not measured."""
        best, large = self._best, (8000, 32, 3)
        lines = []
        for model, most in zip(MAIN, (3.0, 5.0), strict=True):
            one = best(model, 3000, 8, 1)
            three = [
                best(model, 3000, 8, 3, how) / best(model, 3000, 8, 1, how) for how in ("compiled", "graph")
            ]
            times = three[1] if math.isnan(three[0]) else three[0]
            lines.append(_verdict(f"{model}, 3,000 firms x 8 dates: ms a step", one, most))
            lines.append(_verdict(f"{model}: K = 3 in multiples of K = 1, the same way", times, 2.2))
            idle = 1.0 - self.epochs.get(model, math.nan)
            lines.append(_verdict(f"{model}: share of an epoch without kernels", idle, 0.1))
            lines.append(
                _verdict(f"{model}, 8,000 x 32 x 3 seeds trains: ms a step", best(model, *large), math.inf)
            )
        for name, difference in self.agreement.items():
            most = 1e-4 if name.endswith("float32") else 0.01
            lines.append(_verdict(f"{name}: losses of ten steps, difference from the CPU", difference, most))
        return lines

    def _best(self, model: str, firms: int, dates: int, seeds: int, how: str = "") -> float:
        sizes = (model, firms, dates, seeds, "bf16")
        times = [
            found["milliseconds"]
            for cell, found in self.rows
            if (cell.model, cell.firms, cell.dates, cell.seeds, cell.precision) == sizes
            and cell.how.startswith(how)
            and not isinstance(found, str)
        ]
        return min(times, default=math.nan)


def _verdict(what: str, found: float, most: float) -> str:
    if math.isnan(found):
        return f"not measured: {what} (at most {most:g})"
    return f"{'holds' if found <= most else 'MISSED'}: {what} {found:.3g} (at most {most:g})"


class Worker:
    """A process that measures cells from a place in the order, and can be replaced."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, str(HERE), *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101  (it is a pipe)
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if the process has ended. TimeoutError if it takes too long."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if line is None:
                return None
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                return message
            print(line, end="", flush=True)

    def end(self) -> int:
        """Kill the process and those that it has started; return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


def run_tests(report: Report, device: str, seconds: float) -> None:
    """Run the tests that need a GPU for at most some seconds."""
    if device == "cpu":
        report.say("tests: left out, because they need a GPU")
        return
    worker, found = Worker(["--device", device, "--part", "tests"]), dict[str, str]()
    end = time.monotonic() + seconds
    stopped = ""
    try:
        while (message := worker.next(end - time.monotonic())) is not None:
            found[message["test"]] = message["outcome"]
    except TimeoutError:
        stopped = f", stopped after {seconds:.0f} s"
    worker.end()
    failed = {name: outcome for name, outcome in found.items() if outcome not in ("passed", "skipped")}
    passed = sum(outcome == "passed" for outcome in found.values())
    report.say(f"tests: {passed} passed, {len(failed)} failed or left out of {len(found)}{stopped}")
    (report.folder / "tests.txt").write_text("\n\n".join(f"{k}: {v}" for k, v in found.items()) + "\n")
    for name, outcome in failed.items():
        report.say(f"- {name}: {outcome.strip().splitlines()[-1][:300]}")


def run_rows(report: Report, arguments: list[str], cells: list[Cell], end: float) -> None:
    """Measure cells until the time is over."""
    place = 0
    while place < len(cells) and time.monotonic() < end - 1:
        worker = Worker([*arguments, "--part", "rows", "--skip", str(place)])
        problem = ""
        try:
            while (message := worker.next(min(ROW_SECONDS, end - time.monotonic()))) is not None:
                if "ceilings" in message:
                    report.ceilings |= message["ceilings"]
                    report.write()
                elif "agreement" in message or "epochs" in message:
                    report.agreement |= message.get("agreement", {})
                    report.epochs |= message.get("epochs", {})
                    report.write()
                else:
                    report.add(cells[place], message.get("row") or message["error"])
                    place += 1
        except TimeoutError:
            if time.monotonic() >= end - 1:
                worker.end()
                return
            problem = f"took more than {ROW_SECONDS:.0f} s"
        code = worker.end()
        if place < len(cells) and (problem or code != RESTART):
            report.add(cells[place], problem or f"the process ended with code {code}")
            place += 1


RESTART = 75  # exit code of a worker that asks for another one


def work_on_rows(device: str, sizes: Sizes, cells: list[Cell], skip: int) -> int:
    """Print a message for each cell; end when an error may have broken the device."""
    if not skip:
        found = ceilings(device, small=device == "cpu")
        _tell(ceilings={**found.products, "copies": found.copies})
    first_compiled = next((place for place, cell in enumerate(cells) if cell.how == "compiled"), len(cells))
    for place, cell in enumerate(cells[skip:], start=skip):
        if place == len(MAIN):  # also in a process that follows a row that failed
            _look_at_epochs(device, sizes)
            _agree(device, sizes, "graph")
        elif place == first_compiled + len(MAIN) and device != "cpu":
            _agree(device, sizes, "compiled")
        try:
            row = measure(cell, device, sizes.sessions, profiled=True)
        except Exception as error:
            traceback.print_exc()
            _tell(error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            return RESTART
        _tell(row=asdict(row))
    return 0


def _look_at_epochs(device: str, sizes: Sizes) -> None:
    """Measure for what share of an epoch kernels run, on a GPU in epochs of 50 steps."""
    sessions = sizes.sessions if device == "cpu" else 5 * sizes.sessions
    for model in MAIN:
        try:
            found = share_of_epoch(Cell(model, sizes.firms[0], sizes.dates[0], 1, "graph"), device, sessions)
        except Exception as error:
            print(f"an epoch of {model}: {type(error).__name__}: {error}", flush=True)
        else:
            _tell(epochs={model: found})


def _agree(device: str, sizes: Sizes, how: str) -> None:
    """Compare the losses of ten steps with those of the CPU in float32."""
    firms, dates = sizes.agreement
    for model in MAIN:
        expected = first_losses(Cell(model, firms, dates, 1, "graph", "float32"), "cpu", sizes.sessions)
        for precision in ("float32", "bf16"):
            name = f"{model}, {how}, {precision}"
            try:
                ours = first_losses(Cell(model, firms, dates, 1, how, precision), device, sizes.sessions)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            _tell(agreement={name: max(abs(a / b - 1.0) for a, b in zip(ours, expected, strict=True))})


def _tell(**message: Any) -> None:  # noqa: ANN401 (JSON)
    print(json.dumps(message), flush=True)


def work_on_tests() -> int:
    """Run the tests and print a message for each, by pytest where it is installed."""
    sys.path.insert(0, str(ROOT / "tests"))
    if "pytest" in MISSING:
        for path in TESTS:
            for name, outcome in run_functions(path):
                _tell(test=name, outcome=outcome)
        return 0
    import pytest

    class Outcomes:
        """Prints the outcome of every test."""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            """Print what a test ended with."""
            if report.when == "call" or not report.passed:
                error = report.longreprtext if report.failed else report.outcome
                _tell(test=report.nodeid.rpartition("::")[2], outcome="passed" if report.passed else error)

    options = ["--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-o", "addopts="]
    return int(pytest.main([*options, "--import-mode=importlib", *map(str, TESTS)], plugins=[Outcomes()]))


def main() -> int:
    """Run the tests, measure the rows, and say which targets hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu with tiny sizes")
    parser.add_argument("--minutes", type=float, default=4.0, help="time for everything")
    parser.add_argument("--models", nargs="+", choices=NEURAL, default=list(NEURAL))
    parser.add_argument("--rows", type=int, help="how many rows at most; all if left out")
    parser.add_argument("--output", type=Path, default=ROOT / "data/gpu_check", help="folder of the table")
    parser.add_argument("--part", choices=("tests", "rows"), help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error("this machine has no GPU that CUDA can use: try --device cpu --minutes 0.3")
    sizes = SMALL if args.device == "cpu" else Sizes()
    cells = list(cells_in_order(sizes, tuple(args.models)))[: args.rows]
    if args.part == "tests":
        return work_on_tests()
    if args.part == "rows":
        return work_on_rows(args.device, sizes, cells, args.skip)
    end = time.monotonic() + 60 * args.minutes
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("table.csv", "table.md"):
        (args.output / name).unlink(missing_ok=True)
    report = Report(args.output)
    card = "CPU" if args.device == "cpu" else torch.cuda.get_device_name()
    stand_ins = f"; stand-ins for {', '.join(MISSING)}" if MISSING else ""
    report.say(f"torch {torch.__version__} on {card}, {os.cpu_count()} cores{stand_ins}")
    run_tests(report, args.device, TEST_SHARE * 60 * args.minutes)
    shared = ["--device", args.device, "--rows", str(len(cells)), "--models", *args.models]
    run_rows(report, shared, cells, end)
    report.write()
    rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in report.ceilings.items())
    print(f"\nceilings, in trillions a second: {rates}; {len(report.rows)} of {len(cells)} rows")
    print("\n".join(report.targets()))
    print(f"{args.output / 'table.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
