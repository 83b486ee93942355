"""Jumps of x86 stubs (x86-64 psABI, section 5.2; i386 psABI, section 5.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_JUMP = 0xFF
_ABSOLUTE, _FROM_EBX = 0x25, 0xA3
"""``jmp *slot`` (relative to rip on x86-64) and ``jmp *offset(%ebx)``."""
_JUMP_SIZE = 6

_ENDBR = (0xF3, 0x0F, 0x1E)
"""``endbr64`` and ``endbr32`` but for the last byte."""
_PUSH_AT, _PUSH, _PUSH_SIZE = 4, 0x68, 5

_Places = npt.NDArray[np.intp]
_Bytes = npt.NDArray[np.uint8]


def jumps_of_x86_64(data: _Bytes, address: int) -> tuple[_Places, npt.NDArray[np.uint64]]:
    """Offset of each jump in the code ``data`` at ``address``, and the Svma of its slot."""
    at = _jumps(data, _ABSOLUTE)
    after = at.astype(np.uint64) + np.uint64(address) + np.uint64(_JUMP_SIZE)
    return at, after + _numbers(data, at + 2).astype(np.uint64)


def jumps_of_i386(data: _Bytes, table: int) -> tuple[_Places, npt.NDArray[np.uint64]]:
    """As above; ``table`` is the Svma of the global offset table, which ebx holds."""
    absolute, relative = _jumps(data, _ABSOLUTE), _jumps(data, _FROM_EBX)
    slots = np.concatenate(
        [_numbers(data, absolute + 2), _numbers(data, relative + 2) + (table & 0xFFFFFFFF)]
    )
    return np.concatenate([absolute, relative]), (slots & 0xFFFFFFFF).astype(np.uint64)


def pushes(data: _Bytes, stub_size: int) -> tuple[_Places, npt.NDArray[np.int64]]:
    """Offset of each stub that pushes a number for the loader, and the number.

    That is all that ``.plt`` has of a function where ``.plt.sec`` has the jumps.
    """
    end = len(data) - _PUSH_AT - _PUSH_SIZE + 1
    at = np.arange(0, max(0, end), stub_size)
    for place, byte in (*enumerate(_ENDBR), (_PUSH_AT, _PUSH)):
        at = at[data[at + place] == byte]
    return at, _numbers(data, at + _PUSH_AT + 1)


def _jumps(data: _Bytes, kind: int) -> _Places:
    heads = data[: max(0, len(data) - _JUMP_SIZE + 1)]
    at: _Places = np.flatnonzero(heads == _JUMP)
    is_kind: npt.NDArray[np.bool_] = data[at + 1] == kind
    return at[is_kind]


def _numbers(data: _Bytes, at: _Places) -> npt.NDArray[np.int64]:
    places = at[:, None] + np.arange(4)
    return np.ascontiguousarray(data[places]).view("<i4")[:, 0].astype(np.int64)
