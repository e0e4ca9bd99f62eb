"""Columns of numbers in a page: base64 of small number types, which the page's script reads as typed arrays.

Legend: E entries of a column.
"""

from __future__ import annotations

import base64
import math

import numpy as np
import numpy.typing as npt

Column = dict[str, str | float]
_LARGEST = 2.0**15  # of a scaled column; float16 ends at 65,504


def whole_numbers(value_E: npt.ArrayLike) -> Column:
    """Encode whole numbers from 0 to 65,535 with one or two bytes each.

    Raises
    ------
    ValueError
        If a number is outside this range.
    """
    whole_E = np.asarray(value_E)
    if whole_E.size and not 0 <= whole_E.min() <= whole_E.max() <= np.iinfo(np.uint16).max:
        raise ValueError(
            f"A column has values from {whole_E.min()} to {whole_E.max()}; only 0 to 65,535 can be encoded."
        )
    small = not whole_E.size or whole_E.max() <= np.iinfo(np.uint8).max
    return {"u1" if small else "u2": _base64(whole_E.astype("u1" if small else "<u2"))}


def values(value_E: npt.ArrayLike) -> Column:
    """Encode numbers that a reader compares with a table: four bytes each, IEEE single precision."""
    return {"f4": _base64(np.asarray(value_E, dtype=np.float64).astype("<f4"))}


def rough_values(value_E: npt.ArrayLike) -> Column:
    """Encode errors and shares with two bytes each.

    The numbers are IEEE half precision after division by a power of two.

    The relative error is at most 1 in 2,048 for values that are not smaller than the largest one by a factor
    of more than 500 million. NaN stays NaN. Infinite values become NaN.
    """
    real_E = np.asarray(value_E, dtype=np.float64)
    finite_E = np.isfinite(real_E)
    largest = float(np.abs(real_E[finite_E]).max(initial=0.0))
    # The quotient largest / _LARGEST would be zero where largest is subnormal.
    scale = 2.0 ** max(math.ceil(math.log2(largest) - math.log2(_LARGEST)), -1074) if largest > 0.0 else 1.0
    scaled_E = np.where(finite_E, real_E, np.nan) / scale
    return {"f2": _base64(scaled_E.astype("<f2")), "scale": scale}


def _base64(array: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
