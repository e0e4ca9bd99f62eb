"""What a report shows: the tables of an evaluation, of the training and of the explanations, and a header."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from models.spec import BENCHMARKS
from pipelines.columns import TABLES
from pipelines.config.load import registry_name, to_yaml
from pipelines.config.schema import Config
from pipelines.config.sections import ExplainConfig
from pipelines.dataset.backtest_files import describe_rate
from pipelines.dataset.folds import fold_table, plan_folds
from pipelines.dataset.market import Market
from pipelines.explain.shown import NET, Unit, unit_of_run
from pipelines.lake.lake import Lake
from pipelines.pages.describe import describe_flagged
from pipelines.results.comparisons import deciding_rows
from pipelines.results.evaluate_signals import failed
from pipelines.results.signal_file import MeasuredSignals
from pipelines.run import provenance
from pipelines.run.evaluations import (
    Evaluated,
    EvaluationRecord,
    StoredEvaluation,
    list_evaluations,
    tradable_delay,
)
from pipelines.run.provenance import sessions
from pipelines.run.record import RecordedRun, read_curves
from pipelines.run.registration import registration_of

_OF_BOOK = ("sharpe_gross", "sharpe_net", "turnover", "annual_return_net", "max_drawdown_net")
_TESTED = ("ic_lower", "ic_upper", "sharpe_lower", "sharpe_upper", "deflated_sharpe")
_EXPLAINED = (
    *("players", "example", "skill", "edges", "network", "evidence", "roc", "recovery", "verdict", "curves"),
    *("agreement", "inference", "heads", "day_weights", "day_map", "firm_map"),
)
_SCALED = {  # columns in the unit of the forecast, by table
    "players": ("mean_abs_shap", "error"),
    "example": ("base_value", "forecast", "value", "error"),
    "edges": ("weight", "error"),
}


@dataclass(frozen=True, slots=True)
class Header:
    """What makes the numbers of a report traceable: run, code, data, settings and warnings."""

    run_id: str
    name: str
    record: EvaluationRecord
    created_at: str
    git_commit: str | None
    config_yaml: str
    config_hash: str
    device: str
    libraries: Mapping[str, str]
    data_versions: pl.DataFrame
    trial_count: int
    seeds: tuple[int, ...]
    label_delay: int
    label_horizon: int
    label_transform: str
    verdict_delay: int  # the first delay that can be traded, of which the verdict speaks
    execution_delay: int  # after which the books of that delay are traded
    universe: str
    mean_firms_per_date: float
    main_book: str
    sharpe_rate: str
    evaluations: pl.DataFrame
    tables: str  # folder relative to the report
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    audit: pl.DataFrame | None = None
    behind: Mapping[str, pl.DataFrame] = field(default_factory=dict)  # check -> evidence of what it found
    sessions: pl.DataFrame | None = None
    trained: bool = True  # False: a file of signals
    trial_reach: str = ""
    registered: str = ""  # whether the run was registered before its test was opened; empty for signals
    group: str = "sector"  # what firms are grouped by: sector or industry
    simulated: bool = False  # the market

    @property
    def measured_on(self) -> str:
        """The dates that were measured, in words."""
        return f"{self.record.dates:,} dates from {self.record.first} to {self.record.last}"


@dataclass(frozen=True, slots=True)
class ExplainedModel:
    """The explanation of one model: its facts and its tables, with values and errors in the unit."""

    model: str
    unit: Unit
    facts: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame]

    def table(self, name: str) -> pl.DataFrame:
        """A table; without rows if there is none."""
        return self.tables.get(name, pl.DataFrame())


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a report shows; a part without a table has no section."""

    header: Header
    tables: Mapping[str, pl.DataFrame]  # of the evaluation (its `report_ladder`), training and assumptions
    explained: tuple[ExplainedModel, ...] = ()
    explorer: str | None = None  # a file beside the report
    file: str | None = None  # that of the signals

    def table(self, name: str, model: str | None = None, *, every_book: bool = False) -> pl.DataFrame:
        """Rows at the verdict's delay, of the main book and of one model, if a table tells them apart."""
        frame = self.tables.get(name, pl.DataFrame())
        book = None if every_book else self.header.main_book
        for column, value in {"delay": self.header.verdict_delay, "book": book, "model": model}.items():
            if column in frame.columns and value is not None:
                frame = frame.filter(pl.col(column) == value)
        return frame

    def whole(self, name: str) -> pl.DataFrame:
        """All rows of a table; none if there is no such table."""
        return self.tables.get(name, pl.DataFrame())

    def ladder(self, delay: int) -> pl.DataFrame:
        """The rows of the ladder at a delay."""
        return self.tables["ladder"].filter(pl.col("delay") == delay)

    @property
    def verdict_ladder(self) -> pl.DataFrame:
        """The rows of the ladder at the delay of the verdict."""
        return self.ladder(self.header.verdict_delay)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in the order of the ladder."""
        return tuple(self.tables["ladder"]["model"].unique(maintain_order=True))

    @property
    def failed_signals(self) -> dict[str, list[str]]:
        """Signal of the file -> checks of the look-ahead guard that it failed."""
        return failed(self.tables["guard"]) if "guard" in self.tables else {}

    @property
    def ceiling(self) -> pl.DataFrame:
        """Delay, ic and rank_ic of a simulated market's true mean; empty on real data."""
        known = (
            self.tables["ladder"].drop_nulls("truth_ic").unique("delay", keep="first", maintain_order=True)
        )
        return known.select("delay", ic="truth_ic", rank_ic="truth_rank_ic")

    @property
    def planted(self) -> ExplainedModel | None:
        """The model whose network is compared with planted edges: the best on validation that has one."""
        score = dict(self.verdict_ladder.select("model", "valid_rank_ic").drop_nulls().iter_rows())
        known = [one for one in self.explained if "auc_shap" in one.facts]
        return max(known, key=lambda one: score.get(one.model, float("-inf")), default=None)


def run_report(run: RecordedRun, evaluation: StoredEvaluation, dataset: Market, lake: Lake) -> RunReport:
    """Collect a run's results and one of its evaluations, from records made when each stage ran."""
    from models.registry import MODELS

    events, measured = provenance.read_provenance(run), evaluation.record
    config = measured.apply_to(run.config)
    settings = [event.settings for event in events if isinstance(event, provenance.ExplanationMade)]
    if settings:
        config = config.model_copy(update={"explain": ExplainConfig.model_validate(settings[-1])})
    trained = [started for started, _ in sessions(events)]
    folds = plan_folds(dataset, config)
    tested = np.concatenate([fold.test for fold in folds])
    versions = [
        {"table": table, "version": version, "rows": lake.read(table, version=version).height}
        for table, version in run.versions.items()
    ]
    names = list(dict.fromkeys(name for one in trained for name in one.environment.libraries))
    audit = run.read_table("audit")
    poor = [] if audit is None else audit.filter(pl.col("verdict").is_in(["fail", "warn"]))["check"].to_list()
    behind = {check: run.read_table(f"audit_{check}") for check in poor}
    header = _header(
        config,
        run,
        evaluation,
        name=config.name,
        created_at=_minute(max([measured.made_at, *(event.at for event in events)])),
        git_commit=_listed(one.environment.commit for one in trained),
        device=_listed(one.device for one in trained) or "not recorded",
        libraries={
            name: _listed(one.environment.libraries.get(name) for one in trained) or "" for name in names
        },
        data_versions=pl.DataFrame(versions),
        seeds=config.seeds,
        label_transform=config.label.transform,
        mean_firms_per_date=float(dataset.universe_TN[tested].sum(axis=1).mean()),
        stage_seconds=_seconds(events),
        hazards=tuple(dict.fromkeys(h for one in trained for h in one.hazards) if trained else [_UNRECORDED]),
        notes=tuple(dict.fromkeys(note for one in trained for note in one.notes)),
        audit=audit,
        behind={check: rows for check, rows in behind.items() if rows is not None},
        sessions=_sessions(events),
        registered=registration_of(replace(run, config=measured.apply_to(run.config))).sentence,
    )
    registered = {name: registry_name(config, name) for name in config.models}
    neural = [name for name, model in registered.items() if MODELS[model].kind == "neural"]
    curves = read_curves(run)  # those of other models have no epochs but penalties or trees
    net = run.read_table(NET)
    extra = {
        "net": pl.DataFrame() if net is None else net.filter(pl.col("evaluation") == measured.evaluation),
        "folds": fold_table(dataset, folds),
        "learning": curves.filter(pl.col("model").is_in(neural)) if curves.height else curves,
    }
    of_run = {name: run.read_table(name) for name in ("revisions", "revision_shares")}
    extra |= {name: frame for name, frame in of_run.items() if frame is not None}
    tables = _tables(evaluation, config, registered) | extra
    return RunReport(header, tables, tuple(_explained(run)))


def signal_report(measured: MeasuredSignals, evaluation: StoredEvaluation) -> RunReport:
    """Collect one evaluation of measured signals from their folder."""
    record, shown = measured.record, evaluation.record
    config = shown.apply_to(measured.config)
    versions = [(table, version, rows) for table, (version, rows) in record.tables.items()]
    header = _header(
        config,
        measured,
        evaluation,
        name=measured.run_id.rpartition("-")[0],
        created_at=_minute(shown.made_at),
        git_commit=shown.commit,
        device="",
        libraries=record.libraries,
        data_versions=pl.DataFrame(versions, schema=["table", "version", "rows"], orient="row"),
        seeds=(),
        label_transform="raw",
        mean_firms_per_date=record.firms,
        hazards=record.hazards,
        notes=record.notes,
        trained=False,
    )
    return RunReport(header, _tables(evaluation, config, {}), file=record.file)


def _header(
    config: Config,
    measured: Evaluated,
    evaluation: StoredEvaluation,
    *,
    hazards: tuple[str, ...],
    **own: Any,  # noqa: ANN401  # fields of Header
) -> Header:
    """The header of a run or of signals: what follows from the evaluation, and their ``own`` fields."""
    record, delay = evaluation.record, tradable_delay(config.label.delays)
    counted = evaluation.table("trials").row(0, named=True)
    rule = config.universe.model_dump(exclude_none=True).items()
    return Header(
        run_id=measured.run_id,
        record=record,
        config_yaml=to_yaml(config),
        config_hash=measured.run_id.rpartition("-")[2],
        trial_count=counted["trials"],
        trial_reach=counted["reach"],
        label_delay=config.label.delay,
        label_horizon=config.label.horizon,
        verdict_delay=delay,
        execution_delay=delay if config.backtest.delay is None else config.backtest.delay,
        universe=", ".join(
            f"{key.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
            for key, value in rule
        ),
        main_book=next(iter(config.backtest.books)),
        sharpe_rate=describe_rate(config.backtest.risk_free),
        hazards=(*hazards, *describe_flagged(evaluation.read_table("flagged_rows"))),
        evaluations=_evaluations(measured, record.evaluation),
        tables=str(evaluation.folder.relative_to(measured.folder)),
        group=config.features.group_by,
        simulated=config.source.kind == "simulated",
        **own,
    )


def _tables(
    evaluation: StoredEvaluation, config: Config, registered: Mapping[str, str]
) -> dict[str, pl.DataFrame]:
    found = {name: evaluation.read_table(name) for name in TABLES}
    tables = {name: frame for name, frame in found.items() if frame is not None}
    book = next(iter(config.backtest.books))
    ladder = report_ladder(evaluation.table("ladder"), book, registered, tables)
    return tables | {"ladder": ladder, "assumptions": assumptions(config)}


def report_ladder(
    ladder: pl.DataFrame, book: str, registered: Mapping[str, str], tables: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Add the main book's columns, intervals and answers; a model must beat all variants of a baseline."""
    baselines = {name: model for name, model in registered.items() if model in BENCHMARKS}
    frame = ladder.with_columns(
        *(pl.col(f"{book}.{name}").fill_nan(None).alias(name) for name in _OF_BOOK),
        share_of_truth=(pl.col("rank_ic") / pl.col("truth_rank_ic")).cast(pl.Float64),
        baseline=pl.col("model").replace_strict(baselines, default=None, return_dtype=pl.String),
    )
    keys = {"model": pl.String(), "delay": ladder.schema["delay"]}
    answers = list(deciding_rows(tables["comparisons"])) if "comparisons" in tables else []
    nothing = pl.DataFrame(schema={**keys, "book": pl.String(), **dict.fromkeys(_TESTED, pl.Float64())})
    own = tables.get("significance", nothing).filter(pl.col("book") == book).select(*keys, *_TESTED)
    for baseline in BENCHMARKS:
        rows = [(row["model"], row["delay"], row["beats"]) for row in answers if row["baseline"] == baseline]
        beats = pl.DataFrame(rows, schema={**keys, f"beats_{baseline}": pl.String()}, orient="row")
        own = own.join(beats, on=list(keys), how="left")
    return frame.join(own, on=list(keys), how="left", maintain_order="left")


def _explained(run: RecordedRun) -> Iterator[ExplainedModel]:
    """Read the tables of every explained model."""
    facts = run.read_table("explain_facts")
    found = {name: run.read_table(f"explain_{name}") for name in _EXPLAINED}
    for model, text in [] if facts is None else facts.select("model", "facts").iter_rows():
        unit, tables = unit_of_run(run, model), {}
        for name, frame in found.items():
            own = None if frame is None else frame.filter(pl.col("model") == model).drop("model")
            if own is not None and not own.is_empty():
                tables[name] = (
                    own.with_columns(pl.col(*_SCALED[name]) * unit.factor) if name in _SCALED else own
                )
        yield ExplainedModel(model, unit, json.loads(text), tables)


def assumptions(config: Config) -> pl.DataFrame:
    """What an evaluation assumes: assumption, value (null where it is not a number) and unit."""
    settings, delay = config.backtest, config.backtest.delay
    costs, price, rate = settings.costs, settings.execution.price, settings.risk_free
    if delay is None:
        delay = tradable_delay(config.label.delays)  # the delay of the verdict and of the key figures
    estimated = isinstance(costs.half_spread_bps, str)
    by_firm = f", estimated by firm and session ({costs.half_spread_bps})" if estimated else ""
    own_fees = "" if costs.borrow_file is None else "; some firms have fees of their own"
    capital: list[tuple[str, float | None, str]] = []
    if settings.capital is not None:
        impact = "times daily volatility times the root of the trade's share of daily dollar volume"
        capital = [
            ("capital", settings.capital, "currency of the prices"),
            ("impact", costs.impact_coefficient, impact),
        ]
        if (cap := settings.execution.participation_cap) is not None:
            capital.append(("participation cap", 100 * cap, "% of daily dollar volume"))
    rows = [
        ("half-spread", None if estimated else costs.half_spread_bps, f"bps of traded notional{by_firm}"),
        ("commission", costs.commission_bps, "bps of traded notional"),
        *capital,
        ("borrow on shorts", costs.borrow_bps_per_year, f"bps of short value per year{own_fees}"),
        ("financing", costs.financing_bps_per_year, "bps of borrowed money per year"),
        (
            "execution delay",
            float(delay),
            f"sessions after the decision, at the {price}{'' if price == 'close' else ' price'}",
        ),
        ("risk-free rate", None, f"per year: {describe_rate(rate)}")
        if isinstance(rate, str)
        else ("risk-free rate", 100 * rate, "% per year, on net exposure"),
    ]
    return pl.DataFrame(rows, schema=["assumption", "value", "unit"], orient="row")


_UNRECORDED = (
    "The training of this run was not recorded, so commit, libraries, device and hazards are unknown; train "
    "its config again."
)


def _listed(values: Iterable[str | None]) -> str | None:
    """Join distinct values in order of appearance; None if there are none."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def _seconds(events: Sequence[provenance.Event]) -> dict[str, float]:
    """Sum the recorded seconds by stage."""
    spent: dict[str, float] = {}
    for event in events:
        if not isinstance(event, provenance.TrainingStarted | provenance.TaskDone):
            stage = "training" if isinstance(event, provenance.TrainingEnded) else event.event
            spent[stage] = spent.get(stage, 0.0) + event.seconds
    return spent


def _sessions(events: Sequence[provenance.Event]) -> pl.DataFrame:
    rows = []
    for one, tasks in sessions(events):
        used = one.environment
        code = {"commit": used.commit, "code": used.code}
        where = {"device": one.device, "torch": used.libraries.get("torch"), "trials": one.trials}
        rows.append({"started": _minute(one.at), "tasks": tasks, **code, **where})
    return pl.DataFrame(rows, infer_schema_length=None)


def _evaluations(measured: Evaluated, shown: str) -> pl.DataFrame:
    """List the evaluations, newest first, and mark the one that is shown."""
    names = ("evaluation", "made_at", "commit", "assumptions")
    every = [{name: getattr(one.record, name) for name in names} for one in list_evaluations(measured)]
    return pl.DataFrame(
        one | {"made_at": _minute(one["made_at"]), "shown": one["evaluation"] == shown} for one in every
    )


def _minute(at: object) -> str:
    return f"{at:%Y-%m-%d %H:%M UTC}"
