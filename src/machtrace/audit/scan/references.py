"""Where code refers to given addresses, references in bulk.

The result may have a place too many, never one too few as far as the instruction forms of
compilers go: :mod:`~machtrace.audit.scan.flow` decodes the functions around the places and decides.

On arm64 an address is a branch's target, or a page (ADRP) and the offset within it in a later
instruction with the same register, or within 1 MiB of the instruction (ADR, LDR literal). On
x86-64 it is a displacement of 32 bits relative to the instruction's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses
from machtrace.frozen import dataclass

_PAGE_BITS = 12
_DISPLACEMENT = 4
_PIECE = 1 << 16
"""Instructions searched at once."""
_X86_PIECE = 1 << 18
"""Bytes searched at once; a multiple of the size of a displacement."""
_X86_TAILS = (0, 1, 2, 4)
"""Bytes of operands that may follow a displacement."""

Words = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class References:
    """Places in code and the addresses that they may refer to; a place may have several."""

    places: Rows
    """Addresses of instructions; on x86-64 of a displacement inside of one."""
    targets: Rows

    @classmethod
    def joined(cls, parts: Sequence[References]) -> References:
        """Put rows together."""
        none = np.zeros(0, np.int64)
        return cls(
            np.concatenate([none, *(part.places for part in parts)]),
            np.concatenate([none, *(part.targets for part in parts)]),
        )

    def only(self, wanted: Addresses) -> References:
        """Return the rows whose target is wanted; ``wanted`` ascends."""
        kept = _in(self.targets, wanted)
        return References(self.places[kept], self.targets[kept])


def arm64_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return what may refer to any of ``wanted``.

    Args:
        code: a section's instructions.
        start: its address.
        wanted: ascending.
    """
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    if not len(words) or not len(wanted):
        return References.joined([])
    search = _Arm64Search(wanted)
    # Pieces whose intermediate columns fit the processor's cache.
    return References.joined(
        [
            part
            for at in range(0, len(words), _PIECE)
            for part in search.piece(words[at : at + _PIECE], start + at * 4)
        ]
    )


def _signed(values: Rows, bits: int) -> Rows:
    return (values ^ (1 << (bits - 1))) - (1 << (bits - 1))


_BRANCH, _ADR, _LITERAL, _ADRP, _ADD, _LOAD, _MOVE = range(1, 8)


def _kinds() -> bytes:
    """Return the kind of instructions by their highest byte; ADD, LDR and MOV need a closer look.

    The kinds from _ADRP on set a register.
    """
    kinds = np.zeros(256, np.uint8)
    kinds[[0x14, 0x15, 0x16, 0x17, 0x94, 0x95, 0x96, 0x97]] = _BRANCH
    kinds[[0x10, 0x30, 0x50, 0x70]] = _ADR
    kinds[[0x90, 0xB0, 0xD0, 0xF0]] = _ADRP
    kinds[0x58], kinds[0x91], kinds[0xF9], kinds[0xAA] = _LITERAL, _ADD, _LOAD, _MOVE
    return kinds.tobytes()


_KINDS = _kinds()
_EXACT = {
    _ADD: (np.uint32(0xFFC00000), np.uint32(0x91000000)),
    _LOAD: (np.uint32(0xFFC00000), np.uint32(0xF9400000)),
    _MOVE: (np.uint32(0xFFE0FFE0), np.uint32(0xAA0003E0)),
}


class _Arm64Search:
    """A search through consecutive pieces of one section."""

    def __init__(self, wanted: Addresses) -> None:
        self._wanted = wanted
        self._low = np.zeros(1 << _PAGE_BITS, np.bool_)
        self._low[(wanted & np.uint64(0xFFF)).astype(np.int64)] = True
        self._setters = np.full(32, -1, np.int64)
        """By register: the address of the instruction that set it last, in earlier pieces."""
        self._setting_words = np.zeros(32, np.uint32)

    def piece(self, words: Words, start: int) -> Iterator[References]:
        """Yield the references of a piece at the address ``start``."""
        # Five times as fast as an array's indexing, which converts indices to 8 bytes.
        highest = words.view(np.uint8)[3::4].tobytes()
        kinds = np.frombuffer(highest.translate(_KINDS), np.uint8)
        rows = np.flatnonzero(kinds == _BRANCH)
        distance = _signed((words[rows] & np.uint32(0x03FFFFFF)).astype(np.int64), 26)
        yield References(start + rows * 4, start + (rows + distance) * 4).only(self._wanted)
        # The linker makes these of ADRP where the address is near.
        rows = np.flatnonzero(kinds == _ADR)
        targets = start + rows * 4 + _page_distance(words[rows])
        yield References(start + rows * 4, targets).only(self._wanted)
        rows = np.flatnonzero(kinds == _LITERAL)
        distance = _signed(words[rows].astype(np.int64) >> 5 & 0x7FFFF, 19)
        yield References(start + rows * 4, start + (rows + distance) * 4).only(self._wanted)
        yield self._paged(words, kinds, start)

    def _paged(self, words: Words, kinds: npt.NDArray[np.uint8], start: int) -> References:
        """Return ADRP with ADD, or with LDR, of the low bits of an address."""
        setters = np.flatnonzero(kinds >= _ADRP)
        kind, setting = kinds[setters], words[setters]
        is_setter = kind == _ADRP
        for each, (mask, value) in _EXACT.items():
            is_setter |= (kind == each) & ((setting & mask) == value)
        setters, kind, setting = setters[is_setter], kind[is_setter], setting[is_setter]
        is_load = kind == _LOAD
        offset = (setting >> np.uint32(10) & np.uint32(0xFFF)) << (is_load * np.uint32(3))
        is_use = ((kind == _ADD) | is_load) & (offset < np.uint32(1 << _PAGE_BITS))
        is_use[is_use] = self._low[offset[is_use]]
        uses = np.flatnonzero(is_use)
        base = setting[uses] >> np.uint32(5) & np.uint32(31)
        register = (setting & np.uint32(31)).astype(np.uint8)
        parts: list[References] = []
        for number in np.unique(base).tolist():
            mine = np.flatnonzero(register == number)
            rows = uses[base == number]
            # The instruction that sets the base last has to be an ADRP: of other ones the value is
            # unknown.
            before = mine.searchsorted(rows) - 1
            is_earlier = before < 0
            last = mine[before] if len(mine) else np.zeros(len(rows), np.int64)
            word = np.where(is_earlier, self._setting_words[number], setting[last])
            place = np.where(is_earlier, self._setters[number], start + setters[last] * 4)
            is_page = (word & np.uint32(0x9F000000)) == np.uint32(0x90000000)
            rows, word, place = rows[is_page], word[is_page], place[is_page]
            pages = (place >> _PAGE_BITS) + _page_distance(word)
            targets = (pages << _PAGE_BITS) + offset[rows].astype(np.int64)
            parts.append(References(start + setters[rows] * 4, targets).only(self._wanted))
        # Of several values for one register, numpy stores the last.
        self._setters[register] = start + setters * 4
        self._setting_words[register] = setting
        return References.joined(parts)


def _page_distance(words: Words) -> Rows:
    """Return the number in ADR and ADRP."""
    adr = words.astype(np.int64)
    return _signed((adr >> 5 & 0x7FFFF) << 2 | adr >> 29 & 3, 21)


def _in(addresses: Rows, wanted: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are wanted."""
    if not len(wanted):
        return np.zeros(len(addresses), np.bool_)
    low, high = int(wanted[0]), int(wanted[-1])
    inside: npt.NDArray[np.bool_] = (addresses >= low) & (addresses <= high)
    some = addresses[inside].astype(np.uint64)
    rows = wanted.searchsorted(some).clip(max=len(wanted) - 1)
    inside[inside] = wanted[rows] == some
    return inside


def x86_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return what may refer to any of ``wanted``; see :func:`arm64_references`."""
    if len(code) < _DISPLACEMENT or not len(wanted):
        return References.joined([])
    # In 32-bit arithmetic, which wraps: a displacement reaches no further.
    lowest = int(wanted[0]) - _X86_TAILS[-1]
    span = np.uint32(min(int(wanted[-1]) - lowest, (1 << 32) - 1))
    steps = np.arange(0, _X86_PIECE + _DISPLACEMENT, _DISPLACEMENT, dtype=np.uint32)
    parts: list[References] = []
    for at in range(0, len(code), _X86_PIECE):
        end = min(at + _X86_PIECE + _DISPLACEMENT - 1, len(code))
        for shift in range(_DISPLACEMENT):
            piece = code[at + shift : end]
            displacements = np.frombuffer(piece[: len(piece) // 4 * 4], "<u4")
            first = start + at + shift
            beyond = displacements + steps[: len(displacements)]
            beyond += np.uint32(first + _DISPLACEMENT - lowest & 0xFFFFFFFF)
            rows = np.flatnonzero(beyond <= span)
            targets = beyond[rows].astype(np.int64) + lowest
            places = first + rows * _DISPLACEMENT
            parts += [References(places, targets + tail).only(wanted) for tail in _X86_TAILS]
    return References.joined(parts)


def absolute_references(code: memoryview, start: int, wanted: Addresses) -> References:
    """Return where code has any of ``wanted`` as a number of 32 bits."""
    parts: list[References] = []
    for shift in range(_DISPLACEMENT):
        piece = code[shift:]
        numbers = np.frombuffer(piece[: len(piece) // 4 * 4], "<u4").astype(np.int64)
        places = start + shift + np.arange(len(numbers), dtype=np.int64) * _DISPLACEMENT
        parts.append(References(places, numbers).only(wanted))
    return References.joined(parts)
