"""Array types and guards that the feature modules share.

Shape suffixes: T sessions, N firms, C channels, F characteristics, S groups.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
DateArray = npt.NDArray[np.datetime64]
AnyFloatArray = npt.NDArray[np.floating]


Element = TypeVar("Element", bound=np.generic)


def frozen(array: npt.NDArray[Element]) -> npt.NDArray[Element]:
    """Give a read-only view; kernels are compiled once, for arguments that are read-only."""
    view = array.view()
    view.setflags(write=False)
    return view


def require_shape(name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    """Refuse an array whose shape is not the one that its neighbours have.

    Parameters
    ----------
    name : str
        What the array is, for the message.
    array : ndarray
        The array to check.
    shape : tuple of int
        The shape it must have.

    Raises
    ------
    ValueError
        If the shapes differ; the message quotes both.
    """
    if array.shape != shape:
        msg = f"{name} has shape {array.shape} where {shape} is needed: build both from the same panel."
        raise ValueError(msg)
