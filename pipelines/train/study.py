"""The trials of one search in Optuna's storage: proposed, scored and kept across interruptions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import DataError
from pipelines.train.search import Choice, Range, Space, Value

if TYPE_CHECKING:
    import optuna

_FILE = "trials.db"
_DIVERGED = "diverged"
_TRACKED = "tracked"


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished trial of a search.

    Attributes
    ----------
    values
        Searched setting -> value.
    score
        Mean over folds of the validation score that early stopping uses; None where training diverged.
    """

    values: dict[str, Value]
    score: float | None


class Study:
    """A search for the highest score, stored in an SQLite database of Optuna.

    The first 8 trials are random; the others come from Optuna's multivariate tree-structured Parzen estimator
    (Bergstra et al. 2011). The sampler's seed is the number of finished trials, and it uses the finished
    trials only. An interrupted search therefore proposes the same settings as an uninterrupted one.

    Parameters
    ----------
    folder
        Folder of the database. Only one process may write at a time (`Locks.lock_search`).
    space
        Ranges and choices of the settings to search.

    Raises
    ------
    DataError
        If the database was written by an incompatible version of Optuna.
    """

    def __init__(self, folder: Path, space: Space) -> None:
        import optuna

        self._space = space
        self._distributions = {name: _distribution(where) for name, where in space.items()}
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder / _FILE}"
        with _quiet():
            try:
                storage = optuna.storages.RDBStorage(url)
            except RuntimeError as error:
                raise DataError(
                    f"{folder / _FILE} was written by another version of Optuna ({error}) Upgrade it with "
                    f"'optuna storage upgrade --storage {url}', or delete it to start the search again."
                ) from None
            self._study = optuna.create_study(
                storage=storage, study_name=folder.name, direction="maximize", load_if_exists=True
            )
            for trial in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # interrupted: not counted

    @property
    def finished(self) -> list[Trial]:
        """The finished trials, oldest first. Interrupted trials are left out."""
        return [
            Trial(self._values(trial.params), trial.value)
            for trial in self._study.get_trials(deepcopy=False)
            if trial.value is not None or trial.user_attrs.get(_DIVERGED)
        ]

    @property
    def tracked(self) -> int:
        """Number of finished trials that were sent to the tracking store."""
        return int(self._study.user_attrs.get(_TRACKED, 0))

    @tracked.setter
    def tracked(self, count: int) -> None:
        self._study.set_user_attr(_TRACKED, count)

    def propose(self) -> tuple[optuna.Trial, dict[str, Value]]:
        """Propose the next trial and its settings."""
        import optuna

        with _quiet():
            self._study.sampler = optuna.samplers.TPESampler(
                seed=len(self.finished), n_startup_trials=8, multivariate=True
            )
            trial = self._study.ask(self._distributions)
        return trial, self._values(trial.params)

    def record(self, trial: optuna.Trial, score: float | None) -> None:
        """Record the score of a proposed trial; None where training diverged."""
        from optuna.trial import TrialState

        if score is None:
            trial.set_user_attr(_DIVERGED, True)
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, score)

    def _values(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """The settings of a trial, in the order of the space; fractions are rounded to four digits."""
        values = {name: params[name] for name in self._space}
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in values.items()
        }


def _distribution(where: Range | Choice) -> optuna.distributions.BaseDistribution:
    import optuna

    if isinstance(where, Choice):
        return optuna.distributions.CategoricalDistribution(where.values)
    if where.integer:
        return optuna.distributions.IntDistribution(int(where.low), int(where.high), log=where.log)
    return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's own log and its warning about multivariate sampling."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
