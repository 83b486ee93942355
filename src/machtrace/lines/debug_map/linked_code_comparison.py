"""Whether an object file's functions are those that were linked, by their instructions.

Some linkers do not write down when an object file was changed. A linker changes instructions only
where relocations are, and beside them where it found shorter ways to reach something.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.segments import Section
from machtrace.model.address import Svma

_RELOCATION_SIZE = 8
_SCATTERED = 0x80000000
_BEFORE = 3
"""Bytes before a place that may be other ones: on x86 the operation, where an address that was
loaded is worked out."""
_PLACE = 4
_INSTRUCTION = 4


def are_as_linked(
    image: FileContents,
    linked_object: FileContents,
    *,
    linked: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
    stated: npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Which functions have the same instructions in the image and in the object file.

    Args:
        image: the image's file, with its code.
        linked_object: the object file.
        linked: Where the image has each function, an :data:`Svma`.
        sizes: In bytes.
        stated: Where the object file has each, an :data:`Svma` there.
    """
    places = {
        section.address: _relocated(linked_object, section)
        for section in linked_object.image.sections
        if section.is_code
    }
    rows = zip(linked.tolist(), sizes.tolist(), stated.tolist(), strict=True)
    return np.array([_is_same(image, linked_object, places, *row) for row in rows], np.bool_)


def _is_same(
    image: FileContents,
    linked_object: FileContents,
    places: dict[Svma, npt.NDArray[np.bool_]],
    linked: int,
    size: int,
    stated: int,
) -> bool:
    section = linked_object.image.section_at(Svma(stated))
    if section is None or section.address not in places or stated + size > section.end:
        return False
    try:
        here = np.frombuffer(image.read_svma(Svma(linked), size), np.uint8)
        there = np.frombuffer(linked_object.read_svma(Svma(stated), size), np.uint8)
    except MemoryReadError:
        return False
    begin = stated - section.address
    relocated = places[section.address][begin : begin + size]
    differing = np.flatnonzero((here != there) & ~relocated)
    # What is loaded through an address may be loaded otherwise when that is known.
    return len(np.unique(differing // _INSTRUCTION)) <= int(relocated.sum()) // _INSTRUCTION


def _relocated(linked_object: FileContents, section: Section) -> npt.NDArray[np.bool_]:
    """For each byte of a section, whether a linker may have changed it."""
    # A size that is more than the file's is made up.
    length = section.size if section.size <= len(linked_object.data) else 0
    changes = np.zeros(length + 1, np.int64)
    size = section.nreloc * _RELOCATION_SIZE
    if section.reloff + size <= len(linked_object.data):
        order = "<" if linked_object.image.header.little_endian else ">"
        table = np.frombuffer(linked_object.data, f"{order}u4", 2 * section.nreloc, section.reloff)
        at = table[::2].astype(np.int64)
        at = np.where(at >= _SCATTERED, at & 0xFFFFFF, at)
        at = at[at < len(changes) - 1]
        before = 0 if linked_object.image.arch.is_arm64 else _BEFORE
        np.add.at(changes, np.maximum(at - before, 0), 1)
        np.add.at(changes, np.minimum(at + _PLACE, len(changes) - 1), -1)
    mask: npt.NDArray[np.bool_] = np.cumsum(changes)[:-1] > 0
    return mask
