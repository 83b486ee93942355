"""The bounds of functions that no table names, from the code between those that tables name.

A function begins where code calls to, and where the one before it ends: after a return, a jump or a
trap that no jump passes, and after the padding that aligns the next one. On x86 some operands look
like calls, so a target that is not aligned, or follows neither a return nor padding, begins none if
a jump before leads to it or passes it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.unwinder.arch.own_code import decoder
from machtrace.unwinder.code.effects import NOTHING, TRAP, Effect, IndirectJump, Jump, Return, Trap
from machtrace.unwinder.functions.branch_scan import call_targets

_Addresses: TypeAlias = npt.NDArray[np.uint64]
Range = tuple[int, int]
"""(start, end), in Svmas."""

MAX_LENGTH = 1 << 16
"""Bytes that are decoded from one known start."""
MAX_INSTRUCTIONS = 1 << 18
"""Instructions of one image that are decoded."""
_READ = 1 << 12
_ALIGNMENT = 16
_CALL = 0xE8
_CALL_SIZE = 5
_BEFORE_FUNCTIONS = np.array([0xC3, 0x90, 0xCC, 0x00], np.uint8)
"""The last byte of a return and of padding."""
_PADDING = (b"\x90", b"\xcc", b"\x00", b"\x66", b"\x0f\x1f", b"\x2e")
_ARM64_PADDING = (b"\x1f\x20\x03\xd5", b"\x00\x00\x00\x00")


class UnnamedFunctions:
    """The functions of one image's code, as far as they were queried."""

    def __init__(self, contents: ImageContents, arch: Arch, sections: tuple[Range, ...]) -> None:
        """``sections``: the (start, end) of the image's code."""
        self._contents = contents
        self._is_arm64 = arch.is_arm64
        self._sections = sections
        self._decode = decoder(arch)
        self._left = MAX_INSTRUCTIONS
        self._called: _Addresses | None = None
        """Targets of calls."""
        self._doubtful: _Addresses = np.empty(0, np.uint64)
        """Further targets, which may be inside of functions."""
        self._starts: dict[int, list[int]] = {}
        """Starts and ends of consecutive functions, by the first, as far as they were decoded."""

    def at(self, address: Svma, low: int, high: int) -> tuple[Svma, Svma] | None:
        """Return the (start, end) of the function that holds ``address``.

        None in padding, and where too much would have to be decoded. ``low`` and ``high`` are the
        bounds of code without names.
        """
        if self._called is None:
            self._called = self._call_targets()
        first, end = _around(self._called, address, low, high)
        if address - first > MAX_LENGTH:
            first = _around(self._doubtful, address, first, high)[0]
        if address - first > MAX_LENGTH:
            return None
        known = self._starts.setdefault(first, [first])
        try:
            while known[-1] <= address and known[-1] < end and self._left > 0:
                self._extend(known, end)
        except MemoryReadError:
            return None
        position = bisect_right(known, address) - 1
        if position % 2 or position + 1 >= len(known):
            return None
        return Svma(known[position]), Svma(known[position + 1])

    def _extend(self, known: list[int], limit: int) -> None:
        """Add the end of the last function, and the start of the next."""
        at = furthest = known[-1]
        code, base = b"", at
        while at < limit and self._left > 0:
            self._left -= 1
            if at - base + _ALIGNMENT > len(code):
                code, base = self._read(at, limit), at
            length, effects = self._decoded(code, at - base)
            following = at + length
            for effect in effects:
                if isinstance(effect, Jump) and known[-1] <= at + effect.distance < limit:
                    furthest = max(furthest, at + effect.distance)
            at = following
            if at > furthest and at < limit and self._is_doubtful(at):
                known += (at, at)
                return
            is_end = any(map(_ends, effects))
            if at <= furthest or at >= limit:
                continue
            if not is_end and not isinstance(effects[-1], IndirectJump):
                continue
            padded = self._behind_padding(at, limit)
            if is_end or (padded > at and padded % _ALIGNMENT == 0):
                known += (at, padded)
                return
        known += (limit, limit)

    def _behind_padding(self, at: int, limit: int) -> int:
        code = self._read(at, min(limit, at + 2 * _ALIGNMENT))
        marks = _ARM64_PADDING if self._is_arm64 else _PADDING
        offset = 0
        while offset < len(code) and code.startswith(marks, offset):
            if not self._is_arm64 and (at + offset) % _ALIGNMENT == 0 and offset:
                break
            length, effects = self._decoded(code, offset)
            is_byte = code[offset : offset + 1] in (b"\xcc", b"\x00") and not self._is_arm64
            if not is_byte and effects != (NOTHING,) and not self._is_arm64:
                break
            offset += 1 if is_byte else length
        return min(at + offset, limit)

    def _decoded(self, code: bytes, at: int) -> tuple[int, tuple[Effect, ...]]:
        return (1, (TRAP,)) if self._decode is None else self._decode(code, at)

    def _read(self, at: int, limit: int) -> bytes:
        return bytes(self._contents.read_svma(Svma(at), min(_READ, limit - at)))

    def _call_targets(self) -> _Addresses:
        if self._is_arm64:
            targets = list(call_targets(self._contents, self._sections))
            return np.unique(np.concatenate([np.empty(0, np.uint64), *targets]))
        pairs = [self._x86_targets(low, high) for low, high in self._sections]
        self._doubtful = np.unique(np.concatenate([self._doubtful, *(two for _, two in pairs)]))
        return np.unique(np.concatenate([self._doubtful[:0], *(one for one, _ in pairs)]))

    def _is_doubtful(self, address: int) -> bool:
        index = int(self._doubtful.searchsorted(np.uint64(address)))
        return index < len(self._doubtful) and int(self._doubtful[index]) == address

    def _x86_targets(self, low: int, high: int) -> tuple[_Addresses, _Addresses]:
        """Return targets of what looks like calls and look like starts; certain, and doubtful."""
        try:
            data = np.frombuffer(self._contents.read_svma(Svma(low), high - low), np.uint8)
        except MemoryReadError:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        calls = np.flatnonzero(data[: 1 - _CALL_SIZE] == _CALL)
        distances = np.zeros(len(calls), np.int64)
        for index in range(_CALL_SIZE - 1):
            distances |= data[calls + 1 + index].astype(np.int64) << 8 * index
        distances -= (distances >> 31) << 32
        targets = calls + _CALL_SIZE + distances
        targets = targets[(targets > 0) & (targets < len(data))]
        follows = np.isin(data[targets - 1], _BEFORE_FUNCTIONS)
        is_aligned = (targets + low) % _ALIGNMENT == 0
        certain, doubtful = targets[follows & is_aligned], targets[follows ^ is_aligned]
        base = np.uint64(low)
        return certain.astype(np.uint64) + base, doubtful.astype(np.uint64) + base


def _around(starts: _Addresses, address: int, low: int, high: int) -> tuple[int, int]:
    """Return the last of ``starts`` up to an address, and the next, between two bounds."""
    index = int(starts.searchsorted(np.uint64(address), "right"))
    first = int(starts[index - 1]) if index else low
    end = int(starts[index]) if index < len(starts) else high
    return max(low, first), min(high, end)


def _ends(effect: Effect) -> bool:
    if isinstance(effect, Jump):
        return not effect.is_conditional
    return isinstance(effect, Return | Trap)
