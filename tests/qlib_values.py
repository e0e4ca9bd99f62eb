"""Alpha158 and Alpha360 as qlib computes them, on given frames instead of files in its format.

With the extra ``peers`` this writes the numbers that the tests compare with:
``python tests/qlib_values.py > tests/golden/alpha158.csv``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

SESSIONS, FIRMS = 130, 3
SHOWN = (SESSIONS - 1, SESSIONS - 30)
"""Sessions whose values are kept."""


def made_prices() -> dict[str, npt.NDArray[np.float32]]:
    """Return open, high, low, close and volume [T, N] of a market without gaps, as float32 like qlib's."""
    k = np.arange(SESSIONS * FIRMS, dtype=np.float64).reshape(SESSIONS, FIRMS)

    def uniform(seed: float) -> npt.NDArray[np.float64]:
        wave: npt.NDArray[np.float64] = np.sin(k * 12.9898 + seed) * 43758.5453
        return wave - np.floor(wave)

    close = 20.0 * np.exp(np.cumsum(0.04 * (uniform(1.0) - 0.5), axis=0))
    opened = close * (1.0 + 0.02 * (uniform(2.0) - 0.5))
    frames = {
        "open": opened,
        "high": np.maximum(opened, close) * (1.0 + 0.02 * uniform(3.0)),
        "low": np.minimum(opened, close) * (1.0 - 0.02 * uniform(4.0)),
        "close": close,
        "volume": np.round(1e7 * np.exp(2.0 * uniform(5.0))),
    }
    return {name: x.astype(np.float32) for name, x in frames.items()}


def values_of_qlib(
    frames: Mapping[str, npt.NDArray[np.floating]], alpha: str = "Alpha158"
) -> dict[str, npt.NDArray[np.float64]]:
    """Name -> values [T, N] of a set without those of the vwap, of prices and volumes rounded to float32."""
    import pandas as pd
    from qlib.contrib.data import loader  # type: ignore[import-not-found]
    from qlib.data import ops  # type: ignore[import-not-found]
    from qlib.data.base import Expression  # type: ignore[import-not-found]

    class Given(Expression):  # type: ignore[misc]  # qlib has no types
        """A series of the frames."""

        def __init__(self, name: str) -> None:
            self.name = name

        def load(self, firm: int, *_: object) -> Any:  # noqa: ANN401 (as qlib's)
            """Return the series of a firm."""
            return pd.Series(frames[self.name][:, firm].astype(np.float32))

        _load_internal = get_longest_back_rolling = get_extended_window_size = load

    def without_cache(self: Any, *where: object) -> Any:  # noqa: ANN401 (as qlib's)
        return self._load_internal(*where)

    ops.ExpressionOps.load = without_cache
    fields, names = getattr(loader, f"{alpha}DL").get_feature_config()
    words = {name: getattr(ops, name) for name in dir(ops)} | {"Given": Given}
    out = {}
    for text, name in zip(fields, names, strict=True):
        if not name.startswith("VWAP"):
            tree = eval(re.sub(r"\$(\w+)", r"Given('\1')", text), words)  # noqa: S307  # qlib's formulas
            firms = range(frames["close"].shape[1])
            out[name] = np.stack([np.asarray(tree.load(firm, 0, 0), np.float64) for firm in firms], axis=1)
    return out


if __name__ == "__main__":
    sys.stdout.write("name,session," + ",".join(f"firm_{n}" for n in range(FIRMS)) + "\n")
    for feature, values in values_of_qlib(made_prices()).items():
        for session in SHOWN:
            numbers = ",".join(f"{value:.9g}" for value in values[session])
            sys.stdout.write(f"{feature},{session},{numbers}\n")
