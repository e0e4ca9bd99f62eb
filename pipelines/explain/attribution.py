"""Attribution of a run: explain a sample of its test forecasts, and measure how far to trust the result.

The tables are those of players, an example, skill, recovery of planted edges, the peer network and attention.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from features.arrays import BoolArray, IntArray
from features.panel.derived import market_return
from models.explain import network as networks
from models.explain.design import columns_of, mean_over_sample
from models.explain.faithful.study import Faithfulness
from models.explain.groups import GroupAttribution, SkillAttribution
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.explain.fitted import value_table
from pipelines.explain.games import ModelExplanation, explain_models, explained_models, explained_on
from pipelines.explain.network_tables import NetworkStudy
from pipelines.explain.shown import START
from pipelines.lake.lake import Lake
from pipelines.progress import Progress
from pipelines.run.completeness import require_test
from pipelines.run.identity import folders_digest
from pipelines.run.provenance import ExplanationMade, TaskDone, environment, read_provenance, record
from pipelines.run.record import RecordedRun

ALL = "all"  # the row of all groups together
NOISE = math.sqrt(2.0 / math.pi)  # mean absolute value of a standard normal variable

_ROC_POINTS = 200
_VOLATILITY_DAYS = 21
_NULLS = ("null", "null_low", "null_high")
_RECOVERY_SCHEMA = {
    **dict.fromkeys(("method", "kind"), pl.String),
    **dict.fromkeys(("auc", "error", "lift", "lift_error"), pl.Float64),
    **dict.fromkeys(("n_edges", "n_pairs"), pl.Int64),
}


def explain(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain the models of a run, store the tables in its folder, and return one line per model."""
    require_test(run.config, run.run_id)
    names = explained_models(run.config)
    folds = plan_folds(dataset, run.config)
    truth = None  # of a simulated market: its planted edges
    if "truth_edges" in run.versions:
        truth = lake.read("truth_edges", version=run.versions["truth_edges"])
    tests = np.unique(np.concatenate([fold.test for fold in folds]))
    started = time.monotonic()
    tables: dict[str, list[pl.DataFrame]] = {}
    summary: list[str] = []
    with progress.stage("explain", total=len(names) * len(folds) * len(run.config.seeds)):
        for explanation in explain_models(run, dataset, folds, names, progress):
            own = _tables_of(explanation, run, dataset, truth, tests)
            for table, frame in own.items():
                tables.setdefault(table, []).append(frame)
            summary.append(summary_line(explanation.model, own))
    for table, frames in tables.items():
        run.write_table(f"explain_{table}", pl.concat(frames, how="diagonal"))
    if tables:
        event = ExplanationMade(
            environment=environment(),
            device=explained_on(run.config, dataset),
            settings=run.config.explain.model_dump(mode="json"),
            seconds=round(time.monotonic() - started, 1),
            explainer=_code(),
            tables=tuple(f"explain_{table}" for table in tables),
            summary=tuple(summary),
        )
        record(run, event)
    return "\n".join(summary) or (
        "Nothing to explain: the config has only baselines, or explain.models is empty."
    )


def _tables_of(
    explanation: ModelExplanation,
    run: RecordedRun,
    dataset: Dataset,
    truth: pl.DataFrame | None,
    tests: IntArray,
) -> dict[str, pl.DataFrame]:
    """All tables of a model, which begin with its name; its network is written as GraphML too."""
    seed, planted_NN = run.config.explain.seed, None
    tables: dict[str, pl.DataFrame] = {}
    if explanation.peers:
        study = NetworkStudy(explanation, dataset, seed)
        if truth is not None:
            sessions = np.array([part.session for part in explanation.peers])
            planted_NN = planted_edges(truth, dataset, sessions)
            tables["recovery"] = recovery_table(explanation, truth, dataset)
        tables |= study.tables(tests, planted_NN)
        run.write_text(f"networks/{explanation.model}.graphml", study.graphml())
    return tables | explanation_tables(explanation, dataset, planted_NN, seed)


def explain_if_new(run: RecordedRun, dataset: Dataset, lake: Lake, progress: Progress) -> str:
    """Explain the models of a run, or return the stored lines if `explain` would compute the same again."""
    kept = _current(run, explained_on(run.config, dataset))
    if kept is None:
        return explain(run, dataset, lake, progress)
    progress.note(
        f"The models were explained on {kept.at:%Y-%m-%d} with the same settings and code. "
        f"'peerglass explain {run.run_id}' explains them again."
    )
    return "\n".join(kept.summary)


def explanation_tasks(run: RecordedRun, dataset: Dataset) -> dict[str, int]:
    """Number of tasks that :func:`explain_if_new` would compute, by device."""
    device = explained_on(run.config, dataset)
    if _current(run, device) is not None:
        return {device: 0}
    return {device: len(explained_models(run.config)) * len(plan_folds(dataset, run.config))}


def _current(run: RecordedRun, device: str) -> ExplanationMade | None:
    """The run's explanation if no task has finished since, and all that it depends on is the same."""
    last = next(
        (one for one in reversed(read_provenance(run)) if isinstance(one, ExplanationMade | TaskDone)), None
    )
    if not isinstance(last, ExplanationMade) or not last.tables:
        return None
    now = environment()
    is_same = (
        last.settings == run.config.explain.model_dump(mode="json")
        and last.device == device
        and last.explainer == _code()
        and last.environment.model_copy(update={"commit": now.commit}) == now
        and all((run.folder / "tables" / f"{table}.parquet").is_file() for table in last.tables)
    )
    return last if is_same else None


def _code() -> str:
    """Digest of the code that explains; that of models and features is in the environment."""
    return folders_digest("models/explain", "pipelines/explain")


def explanation_tables(
    explanation: ModelExplanation, dataset: Dataset, planted_NN: BoolArray | None, seed: int = 0
) -> dict[str, pl.DataFrame]:
    """Build the tables of one model's attribution; a model without attention has none about it."""
    tables = {
        "players": _players(explanation.groups),
        "period": period_table(_values(explanation.groups, dataset)),
        "example": _example(explanation.groups, dataset),
    }
    if explanation.skill:
        tables["skill"] = skill_table(explanation.skill)
    facts = _facts(explanation.groups)
    if planted_NN is not None:
        recovered, tables["roc"] = _recovery(explanation, planted_NN, seed)
        facts |= recovered
    folds, n_firms = [fold for fold, _ in explanation.fits], dataset.panel.n_firms
    found = Faithfulness(explanation.faithfulness, explanation.peers, folds, n_firms, seed)
    tables |= _about_attention(found, dataset)
    facts["verdicts"] = [one.sentence for one in found.judged.values()]
    tables["facts"] = pl.DataFrame({"facts": json.dumps(facts)})
    model = pl.lit(explanation.model).alias("model")
    return {name: frame.select(model, pl.all()) for name, frame in tables.items()}


def summary_line(model: str, tables: Mapping[str, pl.DataFrame]) -> str:
    """Summarise the attribution of one model in one line."""
    facts = json.loads(tables["facts"]["facts"][0])
    head = f"{model}: {facts['n_forecasts']} forecasts explained"
    return "; ".join([head, f"additivity error {facts['additivity_max_abs']:.1e}", *facts["verdicts"]])


def period_table(values: pl.DataFrame) -> pl.DataFrame:
    """Average values over a sample, for all firms and by group; ``noise``: ``mean_abs`` of zero values."""
    everyone = values.with_columns(pl.lit(ALL).alias("group"))
    of_groups = values.filter(pl.col("group").is_not_null()).sort("group", maintain_order=True)
    key, rows = ("group", "kind", "player"), []
    for names, part in pl.concat([everyone, of_groups]).group_by(*key, maintain_order=True):
        value_E, date_E = part["value"].to_numpy(), part["date"].to_numpy()
        mean_abs, error = mean_over_sample(np.abs(value_E), date_E)
        noise = NOISE * float(part["error"].to_numpy().mean())
        sizes = {"mean_abs": mean_abs, "error": None if math.isnan(error) else error, "noise": noise}
        counts = {"forecasts": len(value_E), "dates": len(np.unique(date_E))}
        rows.append({**dict(zip(key, names, strict=True)), **sizes, "mean": float(value_E.mean()), **counts})
    return pl.DataFrame(rows, schema_overrides={"error": pl.Float64})


def skill_table(parts: Sequence[SkillAttribution]) -> pl.DataFrame:
    """Average the values of the rank IC over the dates of all folds and seeds; no row without known labels.

    The kinds ``base`` and ``total`` are the rank IC without any player and of the complete model; the other
    values and the base add up to the total. Dates are taken as independent: labels must not overlap. The
    error, which contains the Monte Carlo error, is null with a single date.
    """
    players, sessions_D = parts[0].players, np.concatenate([part.sessions_D for part in parts])
    named: list[tuple[str, str]] = [(player.kind, player.name) for player in players]
    named += [("base", "without any player"), ("total", "rank IC")]
    value_DX = np.vstack([np.column_stack([part.values_DP, part.base_D, part.skill_D]) for part in parts])
    rows = []
    for (kind, player), value_D in zip(named, value_DX.T, strict=True):
        if len(value_D):
            mean, error = mean_over_sample(value_D, np.arange(len(sessions_D)))
            rows.append((kind, player, mean, None if math.isnan(error) else error, len(value_D)))
    numbers = {"value": pl.Float64, "error": pl.Float64, "dates": pl.Int64}
    frame = pl.DataFrame(rows, {"kind": pl.String, "player": pl.String, **numbers}, orient="row")
    return frame.with_columns(t=pl.when(pl.col("error") > 0).then(pl.col("value") / pl.col("error")))


def recovery_table(explanation: ModelExplanation, truth: pl.DataFrame, dataset: Dataset) -> pl.DataFrame:
    """How well SHAP, attention and untrained attention find each kind (``rule``) of planted edge."""
    sessions = np.array([part.session for part in explanation.peers])
    truth = truth.with_columns(pl.col("rule").fill_null("edge"))
    planted = {
        str(kind): planted_edges(truth.filter(pl.col("rule") == kind), dataset, sessions)
        for kind in truth["rule"].unique().sort()
    }
    methods = {
        "shap": [(part.firms_N, part.square_NN) for part in explanation.peers],
        "attention": [(part.firms_N, part.attention_NN) for part in explanation.peers],
        START: list(explanation.untrained),
    }
    found = networks.edge_recovery(methods, planted, start=START) if planted else []
    frame = pl.DataFrame([columns_of(one) for one in found], schema=_RECOVERY_SCHEMA)
    return frame.select(pl.lit(explanation.model).alias("model"), pl.all())


def planted_edges(truth: pl.DataFrame, dataset: Dataset, sessions: IntArray) -> BoolArray:
    """Bool [target, source]: planted edges that are valid on at least half of the sessions."""
    column = {ticker: n for n, ticker in enumerate(dataset.panel.tickers_N)}
    dates = dataset.panel.dates_T[sessions]
    valid_NN = np.zeros((dataset.panel.n_firms, dataset.panel.n_firms), dtype=np.int64)
    spells = truth.select("leader", "follower", "valid_from", "valid_to").unique()
    for leader, follower, start, end in spells.iter_rows():
        if leader in column and follower in column:
            ended = np.zeros(len(dates), dtype=np.bool_) if end is None else dates >= np.datetime64(end)
            valid = (dates >= np.datetime64(start)) & ~ended
            valid_NN[column[follower], column[leader]] += int(valid.sum())
    return 2 * valid_NN >= len(sessions)


def _facts(parts: Sequence[GroupAttribution]) -> dict[str, Any]:
    """How the values were computed, additivity error and Monte Carlo error."""
    sizes = np.array([len(part.firms_E) for part in parts], dtype=np.float64)
    moved = np.concatenate([np.abs(part.forecast_E - part.base_E) for part in parts]).mean()
    additivity = max(part.additivity_error for part in parts)
    return {
        **{name: getattr(parts[0], name) for name in ("engine", "removal", "absent_days")},
        "n_forecasts": int(sizes.sum()),
        "additivity_max_abs": additivity,
        "additivity_relative": float(additivity / moved) if moved > 0 else 0.0,
        "monte_carlo_error": float(np.average([part.monte_carlo_error for part in parts], weights=sizes)),
    }


def _players(parts: Sequence[GroupAttribution]) -> pl.DataFrame:
    players = parts[0].players
    # forecasts of a date share their coalitions, so their errors do not average out: the mean is the bound
    error_P = np.concatenate([part.error_EP for part in parts]).mean(axis=0)
    kinds = ["features" if player.kind == "family" else player.kind for player in players]
    size_P = np.abs(np.concatenate([part.values_EP for part in parts])).mean(axis=0)
    columns = {"kind": kinds, "player": [player.name for player in players]}
    return pl.DataFrame({**columns, "mean_abs_shap": size_P, "error": error_P})


def _values(parts: Sequence[GroupAttribution], dataset: Dataset) -> pl.DataFrame:
    """Values of the sampled forecasts with their date and group, which is null if unknown."""
    panel, frames = dataset.panel, []
    groups = np.array([*panel.groups_S, None], dtype=object)
    for part in parts:
        dates_E = panel.dates_T[part.sessions_E]
        group_E, players = groups[panel.group_TN[part.sessions_E, part.firms_E]], len(part.players)
        frame = value_table(part, panel.tickers_N).with_columns(
            pl.Series("date", np.repeat(dates_E, players)),
            pl.Series("group", np.repeat(group_E, players), dtype=pl.String),
        )
        frames.append(frame)
    return pl.concat(frames)


def _example(parts: Sequence[GroupAttribution], dataset: Dataset) -> pl.DataFrame:
    """The explained forecast that its players moved most, with the value of each player."""
    part = max(parts, key=lambda one: float(np.abs(one.forecast_E - one.base_E).max()))
    e = int(np.argmax(np.abs(part.forecast_E - part.base_E)))
    players = [one.name for one in part.players]
    values = pl.DataFrame({"player": players, "value": part.values_EP[e], "error": part.error_EP[e]})
    date = str(dataset.panel.dates_T[part.sessions_E[e]])
    ends = {"base_value": float(part.base_E[e]), "forecast": float(part.forecast_E[e])}
    of_forecast = {"date": date, "ticker": dataset.panel.tickers_N[part.firms_E[e]], **ends}
    return values.select(*(pl.lit(value).alias(name) for name, value in of_forecast.items()), pl.all())


def _recovery(
    explanation: ModelExplanation, planted_NN: BoolArray, seed: int
) -> tuple[Mapping[str, float | int], pl.DataFrame]:
    """Areas under the ROC curves of the planted edges, and the curves, of pairs that both have observed."""
    n_firms = len(planted_NN)
    network = networks.sum_dates(explanation.peers, n_firms).network()
    attention = networks.attention_network(explanation.peers, n_firms)
    initial = networks.mean_network(explanation.untrained, n_firms)
    valid_NN = network.observed & attention.observed
    shap, by_attention, untrained = (
        networks.edge_auc(one.weight_NN, planted_NN, valid_NN) for one in (network, attention, initial)
    )
    curves = []
    for method, roc in (("shap", shap), ("attention", by_attention)):
        points = len(roc.false_positive_rate_K)
        keep = np.unique(np.append(np.arange(0, points, max(1, points // _ROC_POINTS)), points - 1))
        rates = {"fpr": roc.false_positive_rate_K[keep], "tpr": roc.true_positive_rate_K[keep]}
        curves.append(pl.DataFrame(rates).select(pl.lit(method).alias("method"), pl.all()))
    facts = {
        "auc_shap": shap.auc,
        "auc_attention": by_attention.auc,
        "auc_untrained": untrained.auc,
        "auc_random": networks.random_auc(shap.n_edges, shap.n_pairs, seed),
        "n_planted": shap.n_edges,
        "n_pairs": shap.n_pairs,
    }
    return facts, pl.concat(curves)


def _about_attention(found: Faithfulness, dataset: Dataset) -> dict[str, pl.DataFrame]:
    """Tables of the measures of faithfulness, of the verdict, and of what attention looks at."""
    panel = dataset.panel
    market = pl.Series(market_return(panel)[:, 0]).fill_nan(None)
    volatility_T = market.rolling_std(_VOLATILITY_DAYS).fill_null(np.nan).to_numpy()
    tables = found.rows() | found.attention_rows(volatility_T)
    shown = next((part.firms for part in reversed(found.parts) if part.firms is not None), None)
    if shown is not None:
        date = str(panel.dates_T[shown.session])
        tickers = [panel.tickers_N[firm] for firm in shown.firms_n]
        tables["firm_map"] = [
            {"date": date, "method": method, "target": tickers[i], "source": tickers[j], "value": value}
            for method, value_nn in shown.values.items()
            for (i, j), value in np.ndenumerate(value_nn)
            if i != j and np.isfinite(value)
        ]
    tables["agreement"] = [row | {name: row.get(name) for name in _NULLS} for row in tables["agreement"]]
    kinds = {"near": pl.String, **dict.fromkeys(_NULLS, pl.Float64)}
    frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in tables.items() if rows}
    return {
        name: frame.cast({column: kind for column, kind in kinds.items() if column in frame.columns})
        for name, frame in frames.items()
    }
