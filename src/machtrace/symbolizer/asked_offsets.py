"""The column of offsets that a caller asks about, from whatever holds whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

import numpy as np
import numpy.typing as npt

from machtrace.errors import ArgumentError
from machtrace.symbols.ranges import Offsets

_END = 1 << 64
_REMEDY = "give a column of whole numbers from 0 to 2**64 - 1"
_UNSIGNED, _SIGNED, _OBJECTS = "u", "i", "O"


def offsets_array(given: npt.ArrayLike | Iterable[int]) -> Offsets:
    """A column of the caller's numbers, of its own: what the caller changes later is not in it.

    Args:
        given: an array, or anything that can be made one, or gives whole numbers one by one.

    Raises:
        ArgumentError: it is no column, or has what is no whole number from 0 to 2**64 - 1.
    """
    if isinstance(given, str | bytes):
        raise ArgumentError(f"offsets are a column of numbers, not {given!r:.40}", remedy=_REMEDY)
    array = _array(given)
    if array.ndim != 1:
        shape = f"of shape {array.shape}" if array.ndim else "one number"
        raise ArgumentError(f"offsets are a column, not {shape}", remedy=_REMEDY)
    kind = array.dtype.kind
    if kind == _OBJECTS:
        column = np.fromiter((_offset(one) for one in array), np.uint64, len(array))
    elif kind in {_UNSIGNED, _SIGNED}:
        if kind == _SIGNED and len(array) and int(array.min()) < 0:
            raise _out_of_range(int(array.min()))
        column = array.astype(np.uint64, order="C")
    else:
        raise ArgumentError(f"offsets are whole numbers, not {array.dtype}", remedy=_REMEDY)
    column.flags.writeable = False
    return column


def _array(given: npt.ArrayLike | Iterable[int]) -> npt.NDArray[np.generic]:
    if hasattr(given, "__array__") or hasattr(given, "__array_interface__"):
        return np.asarray(given)
    try:
        items = list(given)  # type: ignore[arg-type]  # what is no iterable is refused
    except TypeError:
        kind = "one number" if hasattr(given, "__index__") else type(given).__name__
        raise ArgumentError(f"offsets are a column, not {kind}", remedy=_REMEDY) from None
    try:
        array = np.asarray(items)
    except (ValueError, OverflowError):  # rows of several lengths
        array = np.empty(0, np.float64)
    if array.dtype.kind in {_UNSIGNED, _SIGNED}:
        return array
    # Python's numbers from 2**63 on become floating-point ones beside smaller ones: not here.
    objects = np.empty(len(items), np.object_)
    objects[:] = items
    return objects


def _offset(one: object) -> int:
    try:
        value = index(one)  # type: ignore[arg-type]  # what has none is refused
    except TypeError:
        text = f"offsets are whole numbers, not {one!r:.40}"
        raise ArgumentError(text, remedy=_REMEDY) from None
    if not 0 <= value < _END:
        raise _out_of_range(value)
    return value


def _out_of_range(value: int) -> ArgumentError:
    side = "less than 0" if value < 0 else "more than 64 bits"
    return ArgumentError(f"an offset is {side}: {value:#x}", remedy=_REMEDY)
