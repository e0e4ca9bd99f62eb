"""Explain single forecasts of a run, or its skill: ``peerglass explain RUN --date D`` and ``--skill``.

Every seed of the fold that tests a date is explained by itself, and forecasts, values and base values are
averaged over seeds. An asked precision ``p`` of the mean of K seeds is reached by drawing each seed until its
error is ``sqrt(K) p``. Draws are kept in the run's folder, so that a higher precision continues them.

Legend: P players, E explained firms, N firms of a date.
"""

import datetime as dt
import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import models.explain
from features.arrays import FloatArray, IntArray
from models.batch import Batch
from models.explain.design import evenly_spaced, stratified_sample
from models.explain.groups import (
    GroupAttribution,
    GroupGameConfig,
    explain_date,
    explain_skill,
    mean_over_seeds,
)
from models.explain.players import PEER_KINDS, PlayerConfig, absent_days, find_players, forecast, unwrap
from models.explain.removal import REMOVALS, training_cells
from models.explain.shapley import MAX_DRAWS, Draws, Precision
from pipelines.dataset.folds import plan_folds
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError
from pipelines.explain import text
from pipelines.explain.attribution import period_table, skill_table
from pipelines.explain.fitted import FoldFits, families_of, restore_fits, value_table
from pipelines.explain.question import Place, Question, choose_model, find_place, find_places, newest_date
from pipelines.explain.shown import unit_of_run
from pipelines.files import replacing, write_table
from pipelines.progress import Progress
from pipelines.run.checkpoints import read_checkpoint
from pipelines.run.completeness import require_test
from pipelines.run.open import load_run_data
from pipelines.run.record import open_run
from pipelines.train.task import collect_arrays

DRAWS = 16
FIRMS_PER_DATE = 8  # forecasts explained on each sampled date of a span


class RunModel:
    """A model of a run with its data; the fits of the last fold are kept for the next date."""

    def __init__(self, name: str, output: Path, question: Question) -> None:
        question.check()
        self.question, self.progress, self.run = question, Progress(), open_run(name, output)
        require_test(self.run.config, self.run.run_id)
        self.model = choose_model(self.run, question.model)
        self.dataset, self.lake = load_run_data(self.run, self.progress)
        self.folds = plan_folds(self.dataset, self.run.config)
        self.arrays = collect_arrays(self.dataset, self.run.config.features.window)
        self.families = families_of(self.dataset.characteristic_names)
        self.seed = self.run.config.explain.seed
        self._fits: dict[int, FoldFits] = {}

    def fits(self, fold: int) -> FoldFits:
        """The fitted models of a fold; DataError if one is missing or of other features."""
        if fold not in self._fits:
            folders = {seed: self.run.checkpoint(self.model, fold, seed) for seed in self.run.config.seeds}
            checkpoints = {seed: read_checkpoint(folder) for seed, folder in folders.items()}
            device = resolve_device(self.run.config.device)
            self._fits = {fold: restore_fits(checkpoints, self.arrays, device, f"{self.model}, fold {fold}")}
        return self._fits[fold]


@dataclass(frozen=True, slots=True, eq=False)
class _Explained:
    """The values of a date, as means over seeds."""

    place: Place
    table: pl.DataFrame
    spread: float  # standard deviation of the forecasts over all firms of the date
    draws: int  # the most of a seed; 0 for engines that do not draw
    absent_days: str


def explain_forecasts(name: str, output: Path, question: Question) -> str:
    """Explain forecasts of the fold that tests a date: one, two, a firm over time, a date or a period."""
    models = RunModel(name, output, question)
    dataset, folds, span = models.dataset, models.folds, question.to is not None
    date = newest_date(dataset, folds) if question.date is None else question.date
    if question.to is not None:
        places = find_places(dataset, folds, date, question.to, question.ticker)
        if question.ticker is None:
            places = [places[k] for k in evenly_spaced(np.arange(len(places)), question.dates)]
    else:
        dates = [date] if question.versus is None else [date, question.versus]
        places = [find_place(dataset, folds, one, question.ticker) for one in dates]
    seeds = len(models.run.config.seeds)
    with models.progress.stage("explain", total=len(places) * seeds), one_thread():
        found = [_explain_place(models, place) for place in places]
    tables = [one.table for one in found]
    frame = pl.concat(tables) if question.versus is None else difference_table(*tables)
    # the standard deviation of the forecasts is shown with four significant digits
    spread = found[0].spread
    decimals = max(3, 3 - math.floor(math.log10(spread))) if spread > 0 else 6
    if span and question.ticker is None:
        body = text.describe_period(period_table(frame), decimals)
    elif question.ticker is None:
        body = (text.describe_section if question.top is None else text.describe_ends)(frame, decimals)
    else:
        body = (text.describe_history if span else text.describe_forecast)(frame, decimals)
    return "\n".join([*_head(models, found), body, *written(frame, question.out)])


def explain_skill_of_run(name: str, output: Path, question: Question) -> str:
    """Divide the rank IC of a model among its players, on test dates in even steps; seeds take turns."""
    models = RunModel(name, output, question)
    days_T = models.dataset.panel.dates_T
    places = find_places(models.dataset, models.folds, days_T[0].item(), days_T[-1].item(), None)
    places = [places[k] for k in evenly_spaced(np.arange(len(places)), question.dates)]
    config, parts = GroupGameConfig(permutations=1, removal=question.removal, seed=models.seed), []
    with models.progress.stage("explain", total=len(places)), one_thread():
        for at, place in enumerate(places):
            fits, session = models.fits(place.fold.index), np.array([place.session])
            seed, fitted = list(fits.seeds.items())[at % len(fits.seeds)]
            try:
                part = explain_skill(
                    fitted, fits.data, session, models.families, config, train=place.fold.train
                )
            except ValueError as error:  # the removal does not suit the players
                raise ConfigError(f"--removal {question.removal}: {error}") from None
            parts.append(part)
            models.progress.step(f"{place.date} seed {seed}")
    run_id, table = models.run.run_id, skill_table(parts)
    table = table.select(pl.lit(models.model).alias("model"), pl.all())
    if table.is_empty() or table["dates"][0] < 2:
        raise ConfigError(
            f"Fewer than two test dates of {run_id} have known labels, so {models.model} has no measured "
            "skill; ask for more --dates."
        )
    lines = [
        f"{run_id}, {models.model}: rank IC on {table['dates'][0]} test dates, divided among the players",
        "error: standard error over dates, which contains the Monte Carlo error",
        describe_absent(question, absent_days(unwrap(fitted))),
        "",
        text.describe_skill(table),
    ]
    return "\n".join([*lines, *written(table, question.out)])


def _explain_place(models: RunModel, place: Place) -> _Explained:
    """Explain the forecasts of a date, seed by seed."""
    question, run, panel = models.question, models.run, models.dataset.panel
    fits = models.fits(place.fold.index)
    batch = fits.data.batch(torch.tensor([place.session]))
    forecasts = {seed: forecast(unwrap(fitted), batch, None)[0] for seed, fitted in fits.seeds.items()}
    inner = unwrap(next(iter(fits.seeds.values())))
    single = question.ticker is not None and question.to is None
    peers, every = question.peers or ("firms" if single else "sectors"), tuple(map(str, panel.tickers_N))
    config = PlayerConfig(peers=peers, groups=fits.groups, firms=every)
    players = find_players(inner, batch, models.families, config)
    if question.peers is not None and not any(player.kind in PEER_KINDS for player in players):
        raise ConfigError(f"--peers is {question.peers}, but {models.model} has no peers; leave --peers out.")
    mean_N = np.mean(list(forecasts.values()), axis=0)
    spread = float(np.std(mean_N))
    tickers_N = [every[firm] for firm in batch.firms_N.tolist()]
    chosen_E = _chosen(place, question, batch, tickers_N, mean_N, seed=models.seed)
    precision = _precision(question, spread, len(forecasts), place.date)
    cells = None
    if question.removal != "date":
        cells = training_cells(fits.data, place.fold.train, seed=models.seed)
    parts, counts = [], []
    for seed, fitted in fits.seeds.items():
        own_seed = int(np.random.default_rng((models.seed, place.session, seed)).integers(2**32))
        method = GroupGameConfig(
            engine=question.engine, removal=question.removal, precision=precision, seed=own_seed
        )
        named = [(player.kind, player.name, player.members) for player in players]
        what = {"run": run.run_id, "date": place.date, "firms": chosen_E.tolist(), "players": named}
        asked = {**what, "engine": method.engine, "removal": method.removal, "seed": own_seed}
        stored = draws_file(run.folder, run.checkpoint(models.model, place.fold.index, seed), asked)
        drawn, subject = _read_draws(stored), f"{place.date} seed {seed}"
        try:
            part = explain_date(
                fitted,
                batch,
                place.session,
                players,
                chosen_E,
                method,
                cells=cells,
                forecast_N=forecasts[seed],
                drawn=drawn,
                on_round=_reporter(models.progress, subject, precision),
            )
        except ValueError as error:  # the engine does not suit the model or its players
            raise ConfigError(f"--engine {question.engine}, --removal {question.removal}: {error}") from None
        if part.drawn is not None:
            counts.append(part.drawn.count)
            if drawn is None or part.drawn.count > drawn.count:
                with replacing(stored) as partial, partial.open("wb") as file:
                    np.savez(file, **asdict(part.drawn))
        parts.append(part)
        models.progress.step(subject)
    values = mean_over_seeds(parts)
    _require_precision(question, values, spread, counts)
    groups = [fits.groups[code - 1] if code else None for code in batch.s_BN[0, chosen_E].tolist()]
    table = value_table(values, every).select(
        pl.lit(place.date).alias("date"),
        "ticker",
        pl.Series("group", np.repeat(np.array(groups, dtype=object), len(players)), dtype=pl.String),
        pl.lit(models.model).alias("model"),
        pl.lit(place.fold.index, pl.Int64).alias("fold"),
        pl.lit(values.engine).alias("engine"),
        pl.lit(values.removal).alias("removal"),
        pl.exclude("ticker"),
    )
    return _Explained(place, table, spread, max(counts, default=0), absent_days(inner))


def _chosen(
    place: Place, question: Question, batch: Batch, tickers_N: list[str], mean_N: FloatArray, *, seed: int
) -> IntArray:
    """Positions of the explained firms: one, both ends of the ranking, a sample by group, or all."""
    n_firms = len(tickers_N)
    if place.ticker is not None:
        return np.array([tickers_N.index(place.ticker)])
    if question.top is not None and 2 * question.top < n_firms:
        order_N = np.argsort(-mean_N, kind="stable")
        return np.concatenate([order_N[: question.top], order_N[-question.top :]])
    if question.to is not None:
        rng = np.random.default_rng((seed, place.session))
        return stratified_sample(batch.s_BN[0].cpu().numpy(), FIRMS_PER_DATE, rng)
    return np.arange(n_firms)


def _precision(question: Question, spread: float, seeds: int, date: dt.date) -> Precision:
    if question.precision is None:
        return Precision(question.draws or DRAWS)
    if not spread > 0.0:
        raise ConfigError(
            f"All forecasts of {date} are equal, so no --precision can be relative to their standard "
            "deviation; leave --precision out."
        )
    limit = question.draws or MAX_DRAWS
    return Precision(min(DRAWS, limit), question.precision * spread * math.sqrt(seeds), limit)


def _reporter(progress: Progress, subject: str, precision: Precision) -> Callable[[int, float], None]:
    """Report the error each time that the number of draws has doubled."""
    reported, asked = 0, precision.standard_error

    def report(draws: int, error: float) -> None:
        nonlocal reported
        if asked is not None and draws >= 2 * reported:
            reported = draws
            progress.note(f"{subject}: {draws} draws, standard error {error:.2g}, asked for {asked:.2g}")

    return report


def _require_precision(
    question: Question, values: GroupAttribution, spread: float, counts: list[int]
) -> None:
    if question.precision is None or values.reached:
        return
    share = float(values.error_EP.max()) / spread
    needed = math.ceil(max(counts) * (share / question.precision) ** 2) if math.isfinite(share) else None
    raise ConfigError(
        f"--precision {question.precision:g} is not reached: after {max(counts)} draws the error is "
        f"{share:.2g} of the forecasts' standard deviation"
        + (f", and it needs about {needed:,} draws" if needed else "")
        + "; ask for less precision, or allow more with --draws, which continues these draws."
    )


def _head(models: RunModel, found: list[_Explained]) -> list[str]:
    question, run = models.question, models.run
    seeds, first = len(run.config.seeds), found[0]
    who = question.ticker or f"{pl.concat([one.table for one in found])['ticker'].n_unique()} firms"
    if question.to is None:
        closes = " minus ".join(f"{one.place.date} (fold {one.place.fold.index})" for one in found)
        when = f"at the close of {closes}"
    else:
        when = f"on {len(found)} dates from {first.place.date} to {found[-1].place.date}"
    drawn = f", {max(one.draws for one in found)} draws per seed" if first.draws else ""
    lines = [
        f"{run.run_id}, {models.model}: {who} {when}, out of sample, mean of {seeds} "
        f"seed{'' if seeds == 1 else 's'}",
        f"unit: {unit_of_run(run, models.model).sentence}; standard deviation over the firms of "
        f"{first.place.date}: {first.spread:.3g}",
        f"engine {question.engine}{drawn}; error: Monte Carlo standard error",
        describe_absent(question, first.absent_days),
    ]
    if question.versus is not None and len({one.place.fold.index for one in found}) > 1:
        lines.append(
            "The dates are tested by different folds, so the difference is also one between two models."
        )
    return lines


def describe_absent(question: Question, days: str) -> str:
    """What becomes of absent players, in words."""
    return (
        f"absent characteristics get {REMOVALS[question.removal]}; absent days are {days}; "
        "absent peers are masked"
    )


def difference_table(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Subtract another date's values (0 of a peer that is absent then); draws are independent."""
    key = ["kind", "player"]
    both = (one.select(*key, "value", "error") for one in (new, old))
    joined = next(both).join(
        next(both), on=key, how="full", coalesce=True, suffix="_versus", maintain_order="left_right"
    )
    first, second = new.row(0, named=True), old.row(0, named=True)
    value, value_versus, error, error_versus = (
        pl.col(name).fill_null(0.0) for name in ("value", "value_versus", "error", "error_versus")
    )
    same = {name: first[name] for name in ("ticker", "model", "date")} | {"versus": second["date"]}
    same |= {name: first[name] for name in ("engine", "removal")}
    ends = {"base": first["base"], "base_versus": second["base"]}
    ends |= {"forecast": first["forecast"], "forecast_versus": second["forecast"]}
    return joined.select(
        *(pl.lit(one).alias(name) for name, one in same.items()),
        *key,
        (value - value_versus).alias("value"),
        (error**2 + error_versus**2).sqrt().alias("error"),
        pl.col("value").alias("value_date"),
        "value_versus",
        *(pl.lit(one).alias(name) for name, one in ends.items()),
    )


def written(frame: pl.DataFrame, path: Path | None) -> list[str]:
    """Write a table if a file was asked for, and say where it is."""
    return [] if path is None else ["", f"The values are in {write_table(path, frame).resolve()}."]


def draws_file(run_folder: Path, checkpoint: Path, asked: Mapping[str, object]) -> Path:
    """File of draws, named by fitted model, question and code; the run's folder stands for the data."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode())
    code = sorted(Path(str(models.explain.__file__)).parent.rglob("*.py"))
    for file in (*sorted(checkpoint.iterdir()), *code):
        digest.update(file.name.encode() + file.read_bytes())
    return run_folder / "explanations" / f"{digest.hexdigest()[:24]}.npz"


def _read_draws(path: Path) -> Draws | None:
    """Read draws; None if there are none, or the file is damaged, which is drawn again."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            kept: dict[str, Any] = {name: stored[name] for name in stored.files}
        return Draws(**kept | {name: int(kept[name]) for name in ("n_players", "seed", "count")})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
