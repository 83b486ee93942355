"""Lists of methods: of pointers, of relative offsets, of a shared cache's; and lists of lists.

Source: objc4, ``runtime/objc-runtime-new.h`` (``method_list_t``, ``method_t``,
``relative_list_list_t``); dyld, ``common/ObjCVisitor.h`` (``MethodList``: what the flags mean).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.flattened_lists import Rows, flattened
from machtrace.formats.macho.metadata.objc_records import ObjcRecords, Owners
from machtrace.formats.macho.columns import Addresses
from machtrace.model.address import Svma

_HEADER = np.dtype([("flags", "<u4"), ("count", "<u4")])
_RELATIVE = np.dtype([("name", "<i4"), ("types", "<i4"), ("implementation", "<i4")])
_ENTRY_SIZE = np.uint32(0xFFFC)
_IS_RELATIVE = np.uint32(0x80000000)
_HAS_DIRECT_SELECTORS = np.uint32(0x60000000)
"""``methodListUsesSelectorOffsets``, and ``methodListUsesTypeOffsets``, which includes it."""
_IS_LIST_OF_LISTS = np.uint64(1)
_IMPLEMENTATION = np.uint64(8)
"""Where a relative entry has the offset of its code; it counts from there."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodRows:
    """Methods, one row each."""

    implementations: Addresses
    """Of the code."""
    selectors: Addresses
    """Of the selectors' strings."""
    owners: Owners

    def __len__(self) -> int:
        return len(self.owners)


def read_method_lists(
    records: ObjcRecords, lists: Addresses, owners: Owners, selector_base: Svma | None
) -> MethodRows:
    """All methods in ``lists``, without those that lead nowhere.

    There are no more of them than the image has room for: lists beyond that, which can only
    overlap, are left out.

    Args:
        records: the image.
        lists: as pointers to them are; 0: there is none.
        owners: of each list.
        selector_base: what the selectors of lists in a shared cache count from; None: not known,
            and such lists are left out.
    """
    lists, owners = _flattened(records, lists, owners)
    headers, known = records.memory.read(lists, _HEADER)
    sizes = (headers["flags"] & _ENTRY_SIZE).astype(np.int64)
    is_relative = (headers["flags"] & _IS_RELATIVE) != 0
    least = np.where(is_relative, _RELATIVE.itemsize, 3 * records.layout.pointer)
    counts = headers["count"].astype(np.int64)
    room = records.memory.size
    kept = known & (lists != 0) & (sizes >= least) & (counts * sizes <= room)
    kept &= np.cumsum(np.where(kept, counts * sizes, 0)) <= room
    lists, owners, headers, sizes = lists[kept], owners[kept], headers[kept], sizes[kept]
    counts, is_relative = counts[kept], is_relative[kept]

    entries, of_list = _entries(lists, counts, sizes)
    relative = is_relative[of_list]
    direct = ((headers["flags"] & _HAS_DIRECT_SELECTORS) != 0)[of_list]
    implementations = np.zeros(len(entries), np.uint64)
    selectors = np.zeros(len(entries), np.uint64)
    _read_relative(records, entries, (relative, direct), selector_base, implementations, selectors)
    at = entries[~relative]
    pointer = records.layout.pointer
    selectors[~relative] = records.pointers.addresses(at)
    implementations[~relative] = records.pointers.addresses(at + np.uint64(2 * pointer))
    selectors = records.strings(selectors)
    good = (implementations != 0) & (selectors != 0)
    return MethodRows(implementations[good], selectors[good], owners[of_list][good])


def _entries(lists: Addresses, counts: Rows, sizes: Rows) -> tuple[Addresses, Rows]:
    """Where the entries are that follow the headers of lists, and the list that each is in."""
    of_list, index = flattened(counts)
    places = index.astype(np.uint64) * sizes[of_list].astype(np.uint64)
    return lists[of_list] + np.uint64(_HEADER.itemsize) + places, of_list


def _flattened(records: ObjcRecords, lists: Addresses, owners: Owners) -> tuple[Addresses, Owners]:
    """Lists of lists opened: a shared cache has one for each image that adds methods to a class."""
    several = (lists & _IS_LIST_OF_LISTS) != 0
    if not several.any():
        return lists, owners
    outer, outer_owners = lists[several] & ~_IS_LIST_OF_LISTS, owners[several]
    headers, known = records.memory.read(outer, _HEADER)
    sizes = headers["flags"].astype(np.int64)
    counts = headers["count"].astype(np.int64)
    room = records.memory.size
    kept = known & (sizes >= 8) & (sizes < 1 << 16) & (counts * sizes <= room)  # noqa: PLR2004
    kept &= np.cumsum(np.where(kept, counts * sizes, 0)) <= room
    outer, outer_owners, sizes, counts = (
        outer[kept], outer_owners[kept], sizes[kept], counts[kept],
    )  # fmt: skip
    entries, of_list = _entries(outer, counts, sizes)
    # 16 bits say which image the list is from, 48 how far it is from here.
    words, readable = records.memory.read(entries, "<i8")
    inner = np.where(readable, entries + (words >> 16).astype(np.uint64), np.uint64(0))
    return (
        np.concatenate([lists[~several], inner]),
        np.concatenate([owners[~several], outer_owners[of_list]]),
    )


def _read_relative(
    records: ObjcRecords,
    entries: Addresses,
    kinds: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    selector_base: Svma | None,
    implementations: Addresses,
    selectors: Addresses,
) -> None:
    relative, direct = kinds
    rows, known = records.memory.read(entries, _RELATIVE)
    relative = relative & known
    offsets = rows["implementation"].astype(np.int64).astype(np.uint64)
    implementations[relative] = (entries + _IMPLEMENTATION + offsets)[relative]
    names = rows["name"].astype(np.int64).astype(np.uint64)
    indirect = relative & ~direct
    # The selector is in a reference that the runtime makes unique.
    selectors[indirect] = records.pointers.addresses((entries + names)[indirect])
    if selector_base is not None:
        both = relative & direct
        selectors[both] = np.uint64(selector_base) + names[both]
