"""The layouts of chained pointers, by pointer format.

Source: ``mach-o/fixup-chains.h``, the structs named after ``DYLD_CHAINED_PTR_*``. Columns of raw
pointers are decoded at once, as a page has hundreds of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.frozen import dataclass

Words: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ChainBases:
    """Bases of the targets in a chain; each an :data:`~machtrace.model.address.Svma`."""

    image: int
    """The Mach-O header."""
    segments: tuple[int, ...]
    """The segments, in their order."""
    shared_cache: int | None
    """The start of the shared cache; None if unknown."""
    max_valid_pointer: int
    """In 32-bit images, the maximum pointer: greater values are numbers; 0 for no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Decoded pointers, one row each."""

    is_bind: npt.NDArray[np.bool_]
    is_rebase: npt.NDArray[np.bool_]
    """Which are neither: numbers, or pointers into another image of a collection."""
    targets: Words
    """Targets of rebases, each an :data:`~machtrace.model.address.Svma`."""
    ordinals: Words
    """Imports of binds."""
    addends: npt.NDArray[np.int64]
    """Addends of binds."""


@dataclass(frozen=True, slots=True)
class PointerFormat:
    """One ``DYLD_CHAINED_PTR_*``."""

    name: str
    size: int
    """The size of a pointer, in bytes."""
    stride: int
    """The unit of distances, in bytes."""
    next_shift: int
    next_bits: int
    decode: Callable[[Words, ChainBases], Decoded]

    def distances(self, raw: Words) -> npt.NDArray[np.int64]:
        """Return the distances to the next pointers, in bytes; 0 at the end of a chain."""
        steps = (raw >> np.uint64(self.next_shift)) & np.uint64((1 << self.next_bits) - 1)
        return steps.astype(np.int64) * self.stride

    def distance(self, raw: int) -> int:
        """Return the distance to the next pointer, in bytes; 0 at the end of the chain."""
        return (raw >> self.next_shift & (1 << self.next_bits) - 1) * self.stride


def _bits(raw: Words, shift: int, count: int) -> Words:
    return (raw >> np.uint64(shift)) & np.uint64((1 << count) - 1)


def _signed(raw: Words, shift: int, count: int) -> npt.NDArray[np.int64]:
    value = _bits(raw, shift, count).astype(np.int64)
    return np.where(value >= 1 << (count - 1), value - (1 << count), value)


def _rebases(targets: Words, base: int = 0) -> Decoded:
    count = len(targets)
    return Decoded(
        np.zeros(count, np.bool_),
        np.ones(count, np.bool_),
        targets + np.uint64(base),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int64),
    )


def _arm64e(*, is_offset: bool, ordinal_bits: int = 16) -> Callable[[Words, ChainBases], Decoded]:
    """``dyld_chained_ptr_arm64e_*``; ``is_offset``: for unsigned pointers, too."""

    def decode(raw: Words, bases: ChainBases) -> Decoded:
        is_auth, is_bind = _bits(raw, 63, 1) != 0, _bits(raw, 62, 1) != 0
        base = np.uint64(bases.image)
        plain = _bits(raw, 0, 43) + (base if is_offset else np.uint64(0))
        return Decoded(
            is_bind,
            ~is_bind,
            np.where(is_auth, _bits(raw, 0, 32) + base, plain),
            _bits(raw, 0, ordinal_bits),
            np.where(is_auth, 0, _signed(raw, 32, 19)),
        )

    return decode


def _generic_64(*, is_offset: bool) -> Callable[[Words, ChainBases], Decoded]:
    """``dyld_chained_ptr_64_rebase`` and ``dyld_chained_ptr_64_bind``."""

    def decode(raw: Words, bases: ChainBases) -> Decoded:
        is_bind = _bits(raw, 63, 1) != 0
        return Decoded(
            is_bind,
            ~is_bind,
            _bits(raw, 0, 36) + np.uint64(bases.image if is_offset else 0),
            _bits(raw, 0, 24),
            _bits(raw, 24, 8).astype(np.int64),
        )

    return decode


def _generic_32(raw: Words, bases: ChainBases) -> Decoded:
    is_bind = _bits(raw, 31, 1) != 0
    targets = _bits(raw, 0, 26)
    highest = bases.max_valid_pointer or (1 << 32)
    return Decoded(
        is_bind,
        ~is_bind & (targets <= np.uint64(highest)),
        targets,
        _bits(raw, 0, 20),
        _bits(raw, 20, 6).astype(np.int64),
    )


def _firmware_32(raw: Words, bases: ChainBases) -> Decoded:
    targets = _bits(raw, 0, 26)
    decoded = _rebases(targets)
    decoded.is_rebase[targets > np.uint64(bases.max_valid_pointer or (1 << 32))] = False
    return decoded


def _kernel_cache(raw: Words, bases: ChainBases) -> Decoded:
    """``dyld_chained_ptr_64_kernel_cache_rebase``; level 0 of a collection is this image."""
    decoded = _rebases(_bits(raw, 0, 30), bases.image)
    decoded.is_rebase[_bits(raw, 30, 2) != 0] = False
    return decoded


def _segmented(raw: Words, bases: ChainBases) -> Decoded:
    starts = np.array([*bases.segments, 0], np.uint64)
    index = _bits(raw, 28, 4).astype(np.int64)
    is_known = index < len(bases.segments)
    decoded = _rebases(
        _bits(raw, 0, 28) + starts[np.minimum(index, len(bases.segments))],
    )
    decoded.is_rebase[~is_known] = False
    return decoded


def _in_shared_cache(offsets: Words, bases: ChainBases) -> Decoded:
    decoded = _rebases(offsets, bases.shared_cache or 0)
    if bases.shared_cache is None:
        decoded.is_rebase[:] = False
    return decoded


def _shared_cache_v3(raw: Words, bases: ChainBases) -> Decoded:
    is_auth = _bits(raw, 63, 1) != 0
    signed = _in_shared_cache(_bits(raw, 0, 32), bases)
    # An address of at most 47 bits, below an optional tag.
    plain = _bits(raw, 0, 43)
    return Decoded(
        signed.is_bind,
        np.where(is_auth, signed.is_rebase, True),  # noqa: FBT003 (a column of truths)
        np.where(is_auth, signed.targets, plain),
        signed.ordinals,
        signed.addends,
    )


POINTER_FORMATS = {
    1: PointerFormat("ARM64E", 8, 8, 51, 11, _arm64e(is_offset=False)),
    2: PointerFormat("64", 8, 4, 51, 12, _generic_64(is_offset=False)),
    3: PointerFormat("32", 4, 4, 26, 5, _generic_32),
    4: PointerFormat(
        "32_CACHE", 4, 4, 30, 2, lambda raw, bases: _in_shared_cache(_bits(raw, 0, 30), bases)
    ),
    5: PointerFormat("32_FIRMWARE", 4, 4, 26, 6, _firmware_32),
    6: PointerFormat("64_OFFSET", 8, 4, 51, 12, _generic_64(is_offset=True)),
    7: PointerFormat("ARM64E_KERNEL", 8, 4, 51, 11, _arm64e(is_offset=True)),
    8: PointerFormat("64_KERNEL_CACHE", 8, 4, 51, 12, _kernel_cache),
    9: PointerFormat("ARM64E_USERLAND", 8, 8, 51, 11, _arm64e(is_offset=True)),
    10: PointerFormat("ARM64E_FIRMWARE", 8, 4, 51, 11, _arm64e(is_offset=False)),
    11: PointerFormat("X86_64_KERNEL_CACHE", 8, 1, 51, 12, _kernel_cache),
    12: PointerFormat("ARM64E_USERLAND24", 8, 8, 51, 11, _arm64e(is_offset=True, ordinal_bits=24)),
    13: PointerFormat(
        "ARM64E_SHARED_CACHE",
        *(8, 8, 52, 11),
        lambda raw, bases: _in_shared_cache(_bits(raw, 0, 34), bases),
    ),
    14: PointerFormat("ARM64E_SEGMENTED", 8, 4, 51, 12, _segmented),
    15: PointerFormat("ARM64E_SHARED_CACHE_V3", 8, 8, 51, 11, _shared_cache_v3),
    16: PointerFormat(
        "SHARED_CACHE_V2",
        *(8, 4, 40, 16),
        lambda raw, bases: _in_shared_cache(_bits(raw, 0, 40), bases),
    ),
}
"""Names by number, without ``DYLD_CHAINED_PTR_``."""
