"""A model version as MLflow loads it, and the form of its input.

The input is a pandas frame with one row per session and firm: the inputs of the model before the scaling that
is stored with it (the guide, "Load a version with MLflow"). It holds ``window`` sessions for one forecast,
and one more for every further one. The answer has date, ticker and signal, as the table ``signals`` has it.

Shape suffixes: T sessions, N firms, K inputs, D sessions that are forecast.
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
from models.fitted import Fitted
from pipelines.dataset.folds import FoldInputs
from pipelines.results.evaluate import ensemble
from pipelines.run.checkpoints import load_checkpoint
from pipelines.tracking.store import CHARACTERISTIC, INPUTS, KEYS
from pipelines.train.task import Arrays, to_tensors

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
        """Forecast every session of a frame that has a whole window: date, ticker and signal, sorted."""
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
        sessions, arrays = self._arrays(rows)
        dates_D = np.arange(self.window - 1, len(sessions))
        if not len(dates_D):
            raise ValueError(
                f"The input has {len(sessions)} sessions, and the model reads windows of {self.window}; give "
                "at least that many."
            )
        forecasts = {
            seed: fitted.forecast(to_tensors(arrays, inputs, "cpu"), dates_D).astype(np.float64)
            for seed, (fitted, inputs) in self.fitted.items()
        }
        signal_DN = ensemble(forecasts)
        d, n = np.nonzero(np.isfinite(signal_DN))
        answer = {
            "date": sessions.gather(dates_D[d]),
            "ticker": np.asarray(arrays.tickers)[n],
            "signal": signal_DN[d, n],
        }
        frame = pl.DataFrame(answer, schema_overrides={"ticker": pl.String})
        return frame.with_columns(pl.col("date").cast(pl.Datetime("ns"))).to_pandas()

    def _arrays(self, rows: pl.DataFrame) -> tuple[pl.Series, Arrays]:
        """The sessions of an input, and its rows as a model reads them."""
        sessions, tickers = (rows[name].unique().sort() for name in ("date", "ticker"))
        groups = tuple(rows["group"].drop_nulls().unique().sort())
        grid = (
            sessions.to_frame()
            .join(tickers.to_frame(), how="cross")
            .join(rows, on=["date", "ticker"], how="left", maintain_order="left")
        )
        codes = dict(zip(groups, range(len(groups)), strict=True))
        group = grid["group"].replace_strict(codes, default=-1, return_dtype=pl.Int64)

        def placed(names: Sequence[str], absent: float) -> Float32Array:
            known = grid.select(pl.col(names).cast(pl.Float32).fill_nan(absent).fill_null(absent))
            value_TNK = known.to_numpy().reshape(len(sessions), len(tickers), len(names))
            if np.isinf(value_TNK).any():
                raise ValueError("The input has infinite values; clip them, or set them to NaN (unknown).")
            return np.ascontiguousarray(value_TNK)

        unknown_TN = np.full((len(sessions), len(tickers)), np.nan)
        return sessions, Arrays(
            channels_TNC=placed(self.channels, np.nan),
            characteristics_TNF=placed(self.characteristics, 0.0),
            universe_TN=grid["in_universe"].fill_null(value=False).to_numpy().reshape(unknown_TN.shape),
            group_TN=group.to_numpy().reshape(unknown_TN.shape),
            groups=groups,
            target_TN=unknown_TN.astype(np.float32),
            label_TN=unknown_TN,
            path_TNK=None,
            characteristic_names=tuple(name.removeprefix(CHARACTERISTIC) for name in self.characteristics),
            tickers=tuple(tickers),
            window=self.window,
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
