"""Shapley values of the forecasts of one date, averaged over the seeds of the fold that tests the date.

Legend: P players, E explained firms, K seeds.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

import models.explain
from features.arrays import FloatArray, IntArray
from models.batch import Batch, PanelTensors
from models.explain.design import stratified_sample
from models.explain.engines.samplers import SAMPLERS
from models.explain.groups import DateValues, Method, date_values
from models.explain.players import (
    Player,
    PlayerConfig,
    PlayerNames,
    absent_days,
    find_players,
    forecast,
    unwrap,
)
from models.explain.removal import Removal, TrainingCells, training_cells
from models.explain.shapley import MAX_DRAWS, Precision, SamplerState
from models.fitted import Fitted
from models.forecaster import Forecaster
from pipelines.dataset.build import Dataset
from pipelines.dataset.folds import plan_folds
from pipelines.device import one_thread, resolve_device
from pipelines.errors import ConfigError
from pipelines.explain.games import families_of
from pipelines.explain.question import Place, Question, choose_model
from pipelines.explain.trained import explained_panel, require_features
from pipelines.files import replacing
from pipelines.progress import Progress
from pipelines.run.checkpoints import load_checkpoint
from pipelines.run.completeness import require_test
from pipelines.run.open import load_run_data
from pipelines.run.record import Run, open_run
from pipelines.train.task import Arrays, collect_arrays

DRAWS = 16
FIRMS_PER_DATE = 8
"""Forecasts explained on each sampled date of a span."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """Shapley values of forecasts of one date.

    Attributes
    ----------
    date, fold
        The date, and the index of the fold that tests it.
    engine, removal
        How the values were computed, and what replaced absent characteristics.
    players
        Kind and name of each player: the ticker of a firm, the group of a sector.
    tickers, groups
        The explained firms, and the group of each; None if unknown.
    values_PE, error_PE
        Values and their Monte Carlo standard errors, in the unit of the forecasts; means over seeds.
    base_E, forecast_E
        Base values and forecasts; means over seeds. Values and base add up to the forecast.
    spread
        Standard deviation of the forecasts over all firms of the date.
    draws
        Number of draws per seed; None for engines that do not sample.
    absent_days
        What becomes of absent days, in words.
    """

    date: dt.date
    fold: int
    engine: str
    removal: Removal
    players: tuple[tuple[str, str], ...]
    tickers: tuple[str, ...]
    groups: tuple[str | None, ...]
    values_PE: FloatArray
    error_PE: FloatArray
    base_E: FloatArray
    forecast_E: FloatArray
    spread: float
    draws: int | None
    absent_days: str


class FoldModels:
    """The fitted models of a run, loaded fold by fold; the last fold is kept for the next date.

    Attributes
    ----------
    run, dataset, folds
        The run, its data and its folds.
    model
        Entry of ``models``.
    """

    def __init__(self, run: Run, dataset: Dataset, model: str) -> None:
        self.run, self.dataset, self.model = run, dataset, model
        self.folds = plan_folds(dataset, run.config)
        self._loaded: tuple[int, _Fold] | None = None

    @classmethod
    def open(cls, name: str, output: Path, model: str | None, progress: Progress) -> FoldModels:
        """Open a run that has an out-of-sample test, and its data.

        Parameters
        ----------
        name
            Id of the run, a unique prefix of it, ``latest``, or its folder.
        output
            Folder that holds the runs.
        model
            Entry of ``models``; None takes the run's only model.

        Raises
        ------
        ConfigError
            If there is no such run, it has no test, or the model cannot be chosen.
        """
        run = open_run(name, output)
        require_test(run.config, run.run_id)
        chosen = choose_model(run, model)
        dataset, _ = load_run_data(run, progress)
        return cls(run, dataset, chosen)

    @cached_property
    def _arrays(self) -> Arrays:
        return collect_arrays(self.dataset, self.run.config.features.window)

    def of_fold(self, fold: int) -> _Fold:
        """Load the seeds of a fold, its data and the names of its groups.

        Raises
        ------
        DataError
            If a checkpoint is missing, or was trained on other features than the run's data have.
        """
        if self._loaded is not None and self._loaded[0] == fold:
            return self._loaded[1]
        data: PanelTensors | None = None
        seeds: list[tuple[int, Fitted]] = []
        groups: tuple[str, ...] = ()
        for seed in self.run.config.seeds:
            fitted, inputs = load_checkpoint(self.run.checkpoint(self.model, fold, seed))
            groups, device = inputs.groups, resolve_device(self.run.config.device)
            data = explained_panel(self._arrays, inputs, device) if data is None else data
            require_features(fitted, data, f"{self.model}, fold {fold}, seed {seed}")
            seeds.append((seed, fitted.to(device)))
        assert data is not None, "a config has at least one seed"
        self._loaded = fold, _Fold(tuple(seeds), data, groups)
        return self._loaded[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """Seeds and fitted models of a fold, its data, and its groups."""

    seeds: tuple[tuple[int, Fitted], ...]
    data: PanelTensors
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Seed:
    """A fitted model, and the date as its input."""

    seed: int
    model: Fitted
    batch: Batch
    forecast_N: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Game:
    """What is played with a seed; cells of the training fold are None if no draw needs them."""

    one: _Seed
    players: tuple[Player, ...]
    chosen_E: IntArray
    precision: Precision
    cells: TrainingCells | None


def explain_date(models: FoldModels, place: Place, question: Question, progress: Progress) -> Explained:
    """Explain the forecasts of a date.

    Every seed is explained by itself, and forecasts, values and base values are averaged over seeds. The
    standard error of the mean is ``sqrt(sum_k e_k^2) / K``. An asked precision ``p`` of the mean is reached
    by drawing each seed until its error is ``sqrt(K) p``.

    Raises
    ------
    ConfigError
        If the engine or the peers do not suit the model, or the precision is not reached.
    DataError
        If a checkpoint is missing, or was trained on other features than the run's data have.
    """
    with one_thread():
        run, dataset, model = models.run, models.dataset, models.model
        fold = models.of_fold(place.fold.index)
        batch = fold.data.batch(torch.tensor([place.session]))
        seeds = [
            _Seed(seed, fitted, batch, forecast(unwrap(fitted), batch, None)[0])
            for seed, fitted in fold.seeds
        ]
        names = PlayerNames(dataset.channel_names, fold.groups, tuple(map(str, dataset.panel.tickers_N)))
        config = _player_config(question, seeds[0].model, model, names)
        families = families_of(dataset.characteristic_names)
        players = find_players(unwrap(seeds[0].model), batch, families, config)
        tickers_N = [names.firms[firm] for firm in batch.firms_N.tolist()]
        seed = run.config.explain.seed
        cells = None if question.removal == "date" else training_cells(fold.data, place.fold.train, seed=seed)
        mean_N = np.mean([one.forecast_N for one in seeds], axis=0)
        chosen_E = _chosen(place, question, batch, tickers_N, mean_N, seed=seed)
        spread = float(np.std(mean_N))
        precision = _precision(question, spread, len(seeds), place.date)
        found = []
        for one in seeds:
            game = _Game(one, players, chosen_E, precision, cells)
            found.append(_explain_seed(run, model, place, question, game, progress=progress))
            progress.step(f"{place.date} seed {one.seed}")
    error_PE = np.sqrt(np.sum([each.values.error_PO**2 for each in found], axis=0)) / len(seeds)
    _require_precision(question, error_PE, spread, found)
    drawn = [each.state.draws for each in found if each.state is not None]
    return Explained(
        date=place.date,
        fold=place.fold.index,
        engine=question.engine,
        removal=question.removal,
        players=tuple((player.kind, player.name) for player in players),
        tickers=tuple(tickers_N[position] for position in chosen_E),
        groups=tuple(fold.groups[code - 1] if code else None for code in batch.s_BN[0, chosen_E].tolist()),
        values_PE=np.mean([each.values.values_PO for each in found], axis=0),
        error_PE=error_PE,
        base_E=np.mean([each.values.base_O for each in found], axis=0),
        forecast_E=mean_N[chosen_E],
        spread=spread,
        draws=max(drawn) if drawn else None,
        absent_days=absent_days(unwrap(seeds[0].model)),
    )


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


def _player_config(question: Question, fitted: Fitted, model: str, names: PlayerNames) -> PlayerConfig:
    inner = unwrap(fitted)
    if question.peers is not None and not (isinstance(inner, Forecaster) and inner.uses_peers):
        raise ConfigError(f"--peers is {question.peers}, but {model} has no peers; leave --peers out.")
    single = question.ticker is not None and question.to is None
    return PlayerConfig(peers=question.peers or ("firms" if single else "sectors"), names=names)


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


def _explain_seed(
    run: Run, model: str, place: Place, question: Question, game: _Game, *, progress: Progress
) -> DateValues:
    one, players, precision = game.one, game.players, game.precision
    random = np.random.default_rng((run.config.explain.seed, place.session, one.seed))
    method = Method(question.engine, question.removal, precision, int(random.integers(2**32)))
    stored = stored_draws(
        run.folder,
        run.checkpoint(model, place.fold.index, one.seed),
        {
            "run": run.run_id,
            "date": place.date,
            "firms": game.chosen_E.tolist(),
            "players": [(player.kind, player.name, player.members) for player in players],
            "engine": question.engine,
            "removal": method.removal,
            "seed": method.seed,
        },
    )
    state = stored.read() if question.engine in SAMPLERS else None
    try:
        found = date_values(
            one.model,
            one.batch,
            players,
            game.chosen_E,
            method,
            cells=game.cells,
            state=state,
            on_round=_reporter(progress, f"{place.date} seed {one.seed}", precision),
        )
    except ValueError as error:  # the engine does not suit the model or its players
        raise ConfigError(f"--engine {question.engine}, --removal {question.removal}: {error}") from None
    if found.state is not None and (state is None or found.state.draws > state.draws):
        stored.write(found.state)
    return found


def _reporter(progress: Progress, subject: str, precision: Precision) -> Callable[[int, float], None]:
    """Report the error each time that the number of draws has doubled."""
    reported = 0

    def report(draws: int, error: float) -> None:
        nonlocal reported
        if precision.standard_error is not None and draws >= 2 * reported:
            reported = draws
            progress.note(
                f"{subject}: {draws} draws, standard error {error:.2g}, asked for "
                f"{precision.standard_error:.2g}"
            )

    return report


def _require_precision(
    question: Question, error_PE: FloatArray, spread: float, found: list[DateValues]
) -> None:
    if question.precision is None or all(each.reached for each in found):
        return
    share = float(error_PE.max()) / spread
    drawn = [each.state.draws for each in found if each.state is not None]
    if not drawn:
        raise ConfigError(
            f"--engine {question.engine} does not draw until a --precision is reached, and its error is "
            f"{share:.2g}; use the permutation engine."
        )
    needed = math.ceil(max(drawn) * (share / question.precision) ** 2) if math.isfinite(share) else None
    raise ConfigError(
        f"--precision {question.precision:g} is not reached: after {max(drawn)} draws the error is "
        f"{share:.2g} of the forecasts' standard deviation"
        + (f", and it needs about {needed:,} draws" if needed else "")
        + "; ask for less precision, or allow more with --draws, which continues these draws."
    )


_FOLDER = "explanations"


@dataclass(frozen=True, slots=True)
class StoredDraws:
    """The file of the draws that belong to a checkpoint, a date, players, an engine and a seed.

    Attributes
    ----------
    path
        ``explanations/<digest>.npz`` in the run's folder. A run reads fixed data versions, so the folder
        stands for them.
    """

    path: Path

    def read(self) -> SamplerState | None:
        """Read the draws; None if there are none, or the file is damaged, which is drawn again."""
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files if name != "about"}
                about = json.loads(str(stored["about"]))
            return SamplerState(**about, arrays=arrays)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return None

    def write(self, state: SamplerState) -> None:
        """Write the draws atomically."""
        about = {name: getattr(state, name) for name in ("engine", "n_players", "seed", "draws")}
        with replacing(self.path) as partial, partial.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **state.arrays)  # type: ignore[arg-type]


def stored_draws(run_folder: Path, checkpoint: Path, question: Mapping[str, object]) -> StoredDraws:
    """Name the file of some draws.

    Parameters
    ----------
    run_folder
        Folder of the run.
    checkpoint
        Folder of the fitted model. Its contents are part of the name: other weights are other draws.
    question
        Everything else that the draws depend on, as JSON.
    """
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode())
    code = sorted(Path(str(models.explain.__file__)).parent.rglob("*.py"))
    for file in (*sorted(checkpoint.iterdir()), *code):
        digest.update(file.name.encode() + file.read_bytes())
    return StoredDraws(run_folder / _FOLDER / f"{digest.hexdigest()[:24]}.npz")
