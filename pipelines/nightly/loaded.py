"""A model version as MLflow loads it, and the form of its input.

The input is a pandas frame with one row per session and firm: the inputs of the model as a dataset holds
them, before the scaling that is stored with the model.

========================  ==================================================================================
column                    content
========================  ==================================================================================
``date``                  session at whose close the row was known
``ticker``                firm
``group``                 name of its group (``features.group_by``) on the session; null if not known
``in_universe``           whether it may be forecast on the session
``channel.NAME``          each window channel, unscaled; NaN where not known
``characteristic.NAME``   each characteristic, transformed within the date; NaN counts as 0, the mean
========================  ==================================================================================

A session is forecast from its own characteristics and from the channels of the ``window`` sessions that end
with it. So the frame holds ``window`` sessions for one forecast, and one more for every further one. The
answer has date, ticker and signal for every firm of the universe on these sessions. The signal is the one of
the table ``signals``: the mean over seeds of the forecasts standardised within the session.

Shape suffixes: T sessions, N firms, C channels, F characteristics, D sessions that are forecast.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from features.arrays import Float32Array
from models.batch import PanelTensors
from models.fitted import Fitted
from pipelines.dataset.folds import FoldInputs
from pipelines.results.evaluate import ensemble
from pipelines.run.checkpoints import load_checkpoint
from pipelines.tracking.model_versions import CHARACTERISTIC, INPUTS, KEYS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A fitted model with all its seeds: of each, the model and the inputs of its fold."""

    window: int
    channels: tuple[str, ...]
    characteristics: tuple[str, ...]
    fitted: dict[int, tuple[Fitted, FoldInputs]]

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Forecast every session of a frame that has a whole window: date, ticker and signal, sorted.

        ValueError if a column is missing, a row is there twice, or no session has a whole window.
        """
        del params
        features = (*self.channels, *self.characteristics)
        missing = [name for name in (*KEYS, *features) if name not in model_input.columns]
        if missing:
            raise ValueError(
                f"The input has no column {missing[0]!r}; a version needs {', '.join(KEYS)} and "
                "its features, see pipelines.nightly.loaded."
            )
        plain = model_input[[*KEYS, *features]].reset_index(drop=True)
        rows = pl.from_pandas(plain).with_columns(pl.col("date").cast(pl.Date))
        if rows.select("date", "ticker").is_duplicated().any():
            raise ValueError("The input has two rows of one session and firm; keep one.")
        panel = _Panel.of(rows, self.channels, self.characteristics)
        dates_D = np.arange(self.window - 1, len(panel.sessions))
        if not len(dates_D):
            raise ValueError(
                f"The input has {len(panel.sessions)} sessions, and the model reads windows of "
                f"{self.window}; give at least that many."
            )
        forecasts = {
            seed: fitted.forecast(panel.tensors(inputs, self), dates_D).astype(np.float64)
            for seed, (fitted, inputs) in self.fitted.items()
        }
        signal_DN = ensemble(forecasts)
        d, n = np.nonzero(np.isfinite(signal_DN))
        answer = {
            "date": panel.sessions.gather(dates_D[d]),
            "ticker": panel.tickers.gather(n),
            "signal": signal_DN[d, n],
        }
        return pl.DataFrame(answer).with_columns(pl.col("date").cast(pl.Datetime("ns"))).to_pandas()


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    """The rows of an input as dense arrays."""

    sessions: pl.Series
    tickers: pl.Series
    channels_TNC: Float32Array
    characteristics_TNF: Float32Array
    mask_TN: np.ndarray
    group_TN: np.ndarray
    groups: tuple[str, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, channels: Sequence[str], characteristics: Sequence[str]) -> _Panel:
        sessions, tickers = (rows[name].unique().sort() for name in ("date", "ticker"))
        groups = tuple(rows["group"].drop_nulls().unique().sort())
        t = sessions.search_sorted(rows["date"]).to_numpy()
        n = tickers.search_sorted(rows["ticker"]).to_numpy()
        codes = {name: code for code, name in enumerate(groups)}
        shape = (len(sessions), len(tickers))

        def placed(names: Sequence[str]) -> Float32Array:
            value_TNK = np.full((*shape, len(names)), np.nan, dtype=np.float32)
            value_TNK[t, n] = rows.select(names).to_numpy().astype(np.float32)
            return value_TNK

        mask_TN, group_TN = np.zeros(shape, dtype=np.bool_), np.full(shape, -1, dtype=np.int64)
        mask_TN[t, n] = rows["in_universe"].to_numpy()
        group_TN[t, n] = [codes.get(name, -1) for name in rows["group"]]
        return cls(sessions, tickers, placed(channels), placed(characteristics), mask_TN, group_TN, groups)

    def tensors(self, inputs: FoldInputs, version: LoadedVersion) -> PanelTensors:
        """The arrays as a model reads them, with the scaling and the groups of its training."""
        return PanelTensors.from_arrays(
            channels_TNC=inputs.scaler.apply(self.channels_TNC),
            characteristics_TNF=self.characteristics_TNF,
            mask_TN=self.mask_TN,
            group_TN=inputs.known_groups(self.group_TN, self.groups),
            target_TN=np.full(self.mask_TN.shape, np.nan, dtype=np.float32),
            window=version.window,
            n_groups=len(inputs.groups),
            characteristic_names=tuple(name.removeprefix(CHARACTERISTIC) for name in version.characteristics),
            firm_names=tuple(self.tickers),
        )


def _load_pyfunc(path: str) -> LoadedVersion:
    """Load a version from the folder of its checkpoints; MLflow calls this."""
    folder = Path(path)
    inputs: dict[str, Any] = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
    return LoadedVersion(
        window=inputs["window"],
        channels=tuple(inputs["channels"]),
        characteristics=tuple(inputs["characteristics"]),
        fitted={
            seed: load_checkpoint(folder / f"fold-{inputs['fold']}-seed-{seed}") for seed in inputs["seeds"]
        },
    )
