"""``peerglass replicate``: published results, rung by rung from the published figure to what can be earned.

A replication is a file: the published figures, and steps that are configs. Each step is a run like any other,
which is resumed, audited and counted in the trial ledger. A step that changes nothing is the same run.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import polars as pl
from pydantic import Field, ValidationError, model_validator
from rich import box
from rich.console import Console
from rich.table import Table

from pipelines.columns import TABLES, of_book
from pipelines.config.load import load_config, merge_settings, read_mapping
from pipelines.config.schema import Config
from pipelines.errors import ConfigError
from pipelines.progress import Progress
from pipelines.run.evaluations import newest_evaluation
from pipelines.run.record import RecordedRun, open_run
from pipelines.settings import Section, Settings, describe
from pipelines.stages import run_config
from pipelines.terminal import text_table

# configs/ is next to the packages, both in a checkout and in an installed wheel.
FOLDER: Final = Path(__file__).parents[2] / "configs" / "replications"
Figure = Literal["ic", "icir", "rank_ic", "sharpe_gross", "sharpe_net", "information_ratio"]
_FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
_WIDTH_WITHOUT_TERMINAL: Final = 160


class Step(Section):
    """A step of a replication: a run, and what is different from the step before."""

    changes: str
    """One sentence: what the step changes."""
    config: str | None = None
    """File of the config, relative to this one. Null: the config of the step before, with its settings."""
    settings: Settings = Field(default={})
    """Settings that the step changes, as in a config that extends another."""


class Replication(Section):
    """A published result and the steps from it to what can be earned."""

    title: str
    source: str
    """Where the figures are published, and what is not the same here."""
    data: str
    """The data that it needs, and the environment variables with their paths."""
    published: dict[Figure, float]
    model: str
    """Entry of ``models`` that is trained; the other entries of a config are left out."""
    book: str
    """Book whose Sharpe ratios are shown."""
    settings: Settings = Field(default={})
    """Settings of every step; those of a step go before them."""
    steps: dict[str, Step] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_first(self) -> Self:
        if next(iter(self.steps.values())).config is None:
            raise ValueError("the first step has no config; name the file that it starts from")
        return self


def list_replications() -> str:
    """Describe the replications that come with Peerglass.

    >>> [line.split()[0] for line in list_replications().splitlines()]
    ['NAME', 'master', 'qlib_lightgbm', 'stock_mixer']
    """
    rows = [
        (path.stem, one.title, one.data)
        for path in sorted(FOLDER.glob("*.yaml"))
        for one in [read_replication(path)]
    ]
    return "\n".join(text_table(rows, ("NAME", "published in", "needs"), left=3, indent=""))


def replicate(name: str, overrides: Sequence[str], *, wait: bool = False) -> str:
    """Run all steps, store the table in the folder of the last run, and return it as text."""
    own = Path(name).suffix in (".yaml", ".yml")
    path = Path(name) if own else FOLDER / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(one.stem for one in FOLDER.glob("*.yaml")))
        raise ConfigError(
            f"There is no replication {name!r}; choose among {names}, or give a file of your own."
        )
    replication, progress = read_replication(path), Progress()
    configs = dict(configs_of(replication, path, overrides, root=None if own else Path.cwd()))
    rows: list[dict[str, Any]] = [
        {"step": "published", "note": replication.source}
        | {name: replication.published.get(name) for name in _FIGURES}
    ]
    for step, config in configs.items():
        progress.note(f"{replication.title}: {step}")
        run = open_run(str(run_config(config, progress.note, wait=wait, progress=progress).parent))
        rows.append({"step": step, **_figures(run, replication), "note": replication.steps[step].changes})
    frame = TABLES["replication"].of({"ic_t": None, "audit": None, "run": None, **row} for row in rows)
    run.write_table("replication", frame)
    written = run.write_text("replication.md", f"{_text(frame, box.MARKDOWN, width=1000)}\n")
    return f"{_text(frame, box.HEAVY_HEAD)}\n{written.resolve()}"


def configs_of(
    replication: Replication, path: Path, overrides: Sequence[str] = (), *, root: Path | None = None
) -> Iterator[tuple[str, Config]]:
    """Yield the config of each step; ConfigError if one is wrong."""
    base, given = path, Settings()
    for name, step in replication.steps.items():
        if step.config is not None:
            base, given = path.parent / step.config, dict(replication.settings)
        given = merge_settings(given, step.settings)
        settings = [f"{key}={json.dumps(value, default=str)}" for key, value in given.items()]
        own = [f"name={path.stem}", "audit.on_failure=warn"]  # what looks ahead is trained, and shown as such
        config = load_config(base, [*own, *settings, *overrides], root=root)
        for what, named, known in (
            ("model", replication.model, config.models),
            ("book", replication.book, config.backtest.books),
        ):
            if named not in known:
                raise ConfigError(
                    f"{path}: the {what} {named!r} is not in the config of the step {name!r}; choose one of "
                    f"{', '.join(known)}."
                )
        yield (
            name,
            config.model_copy(update={"models": {replication.model: config.models[replication.model]}}),
        )


def read_replication(path: Path) -> Replication:
    """Read the file of a replication; ConfigError if it is wrong."""
    raw = read_mapping(path)
    try:
        return Replication.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe(error, str(path), raw)) from None


def _figures(run: RecordedRun, replication: Replication) -> dict[str, Any]:
    """Figures of the run's newest evaluation at the delay of the label, and the verdict of its audit."""
    evaluation, audit = newest_evaluation(run), run.read_table("audit")
    assert evaluation is not None, "the stages evaluate the run"
    ladder = evaluation.table("ladder").filter(model=replication.model, delay=run.config.label.delay)
    (row,) = ladder.to_dicts()
    books: Settings = {name: row[of_book(replication.book, name)] for name in _FIGURES if name not in row}
    poor = [] if audit is None else audit.filter(pl.col("verdict").is_in(["fail", "warn"])).to_dicts()
    worst = min((one["verdict"] for one in poor), default="pass")  # fail comes before warn
    names = ", ".join(one["check"] for one in poor if one["verdict"] == worst)
    verdict = None if audit is None else f"{worst}: {names}" if names else worst
    return {**row, **books, "audit": verdict, "run": run.run_id}


def _text(frame: pl.DataFrame, lines: box.Box, width: int | None = None) -> str:
    """Format the table, without the runs."""
    shown = {name: column for name, column in TABLES["replication"].columns.items() if name != "run"}
    table = Table(box=lines, show_lines=lines is not box.MARKDOWN)
    for column in shown.values():
        numeric = column.kind.numeric
        table.add_column(column.heading, justify="right" if numeric else "left", no_wrap=numeric)
    for row in frame.iter_rows(named=True):
        table.add_row(*(column.text(row[name]) for name, column in shown.items()))
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    if width is None and not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    with console.capture() as captured:
        console.print(table)
    return captured.get().strip()
