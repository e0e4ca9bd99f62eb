"""Array types and guards that the feature modules share.

Shape suffixes: T sessions, N firms, C channels, F characteristics, S groups.
"""

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
    """Return a read-only view. Kernels are compiled once, for read-only arguments."""
    view = array.view()
    view.setflags(write=False)
    return view


def require_shape(name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    """Raise ValueError if an array does not have the required shape; the message names it and both shapes."""
    if array.shape != shape:
        msg = f"The shape of {name} is {array.shape}; it must be {shape}: build both from the same panel."
        raise ValueError(msg)
