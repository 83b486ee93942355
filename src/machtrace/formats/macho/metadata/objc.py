"""The methods of an image's Objective-C classes and categories.

Sources: objc4, ``runtime/objc-runtime-new.h`` (``objc_class``, ``class_ro_t``, ``class_rw_t``,
``category_t``, ``method_list_t``, ``method_t``, ``relative_list_list_t``); dyld,
``common/ObjCVisitor.h`` (``MethodList``: the flags). The records are in the sections
``__objc_classlist``, ``__objc_nlclslist``, ``__objc_catlist``, ``__objc_catlist2`` and
``__objc_nlcatlist``. Lists of methods have pointers, relative offsets or, in a shared cache,
selectors relative to a base. All are read as columns: one call for all classes of an image.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses, Rows, ScatteredRecords, flattened
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers, inside_image
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

_RW_REALIZED = np.uint32(1 << 31)
_RW_FIELD = 8
"""The offset of ``ro_or_rw_ext`` in ``class_rw_t``, of either width."""
_PACKED_ISA_BITS = 0xFFFFFFFF8
"""The bits of the class in a non-pointer isa of arm64."""
_MAX_NAME_LENGTH = 1 << 12


@dataclass(frozen=True, slots=True)
class _Layout:
    """Offsets of fields in records, in bytes."""

    pointer: int
    class_data: int
    ro_name: int
    ro_methods: int

    @property
    def aligned(self) -> np.uint64:
        """The bits of a pointer to a record that are not flags."""
        return ~np.uint64(self.pointer - 1)


_LAYOUT_64 = _Layout(pointer=8, class_data=32, ro_name=24, ro_methods=32)
_LAYOUT_32 = _Layout(pointer=4, class_data=16, ro_name=16, ro_methods=20)


class ObjcRecords:
    """The image, as a source of metadata."""

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self.layout = _LAYOUT_64 if contents.image.header.is_64 else _LAYOUT_32
        self.is_loaded = contents.is_loaded
        """Whether the runtime may have changed the records."""

    def listed(self, *sections: str) -> Addresses:
        """Return the addresses of all pointers in the sections of these names, of any segment."""
        return self.memory.elements(sections, self.layout.pointer)

    def field(self, records: Addresses, offset: int) -> Addresses:
        """Return the target of the pointer at ``offset`` of each record; 0 without a pointer."""
        return np.where(
            records != 0, self.pointers.addresses(records + np.uint64(offset)), np.uint64(0)
        )

    def metaclasses(self, classes: Addresses) -> Addresses:
        """Return the class of each class; 0 if it is not in this image."""
        image = self.contents.image
        targets = self.field(classes, 0) & self.layout.aligned
        if self.is_loaded:
            packed = self.pointers.addresses(classes, _PACKED_ISA_BITS)
            targets = np.where(inside_image(image, targets), targets, packed)
        return np.where(inside_image(image, targets), targets, np.uint64(0))

    def read_only_data(self, classes: Addresses) -> Addresses:
        """Return the ``class_ro_t`` of each class, the compiler's part; 0 without one."""
        # The low bits of the pointer mark Swift classes.
        data = self.field(classes, self.layout.class_data) & self.layout.aligned
        if not self.is_loaded:
            return data
        flags, known = self.memory.read(data, "<u4")
        realized = known & ((flags & _RW_REALIZED) != 0)
        parts = self.field(np.where(realized, data, np.uint64(0)), _RW_FIELD)
        extended = (parts & np.uint64(1)) != 0
        parts &= self.layout.aligned
        read_only = np.where(extended, self.field(parts * extended, 0), parts)
        return np.where(realized, read_only, data)

    def class_names(self, classes: Addresses) -> Addresses:
        """Return the address of each class's name; 0 if it is unreadable."""
        return self.strings(self.field(self.read_only_data(classes), self.layout.ro_name))

    def strings(self, at: Addresses) -> Addresses:
        """Return ``at``, with 0 for addresses without a string that is not empty."""
        first, known = self.memory.read(at, "u1")
        return np.where(known & (first != 0) & (at != 0), at, np.uint64(0))

    def text(self, at: int) -> str:
        r"""Return the string at a stated address; invalid UTF-8 is escaped as ``\x..``."""
        return self.memory.string(at)[:_MAX_NAME_LENGTH].decode("utf-8", "backslashreplace")


Owners = npt.NDArray[np.int64]
"""The class or category of each method or list of methods."""


_HEADER = np.dtype([("flags", "<u4"), ("count", "<u4")])
_RELATIVE = np.dtype([("name", "<i4"), ("types", "<i4"), ("implementation", "<i4")])
_ENTRY_SIZE = np.uint32(0xFFFC)
_IS_RELATIVE = np.uint32(0x80000000)
_HAS_DIRECT_SELECTORS = np.uint32(0x60000000)
"""``methodListUsesSelectorOffsets``, and ``methodListUsesTypeOffsets``, which includes it."""
_IS_LIST_OF_LISTS = np.uint64(1)
_IMPLEMENTATION = np.uint64(8)
"""The position of the code's offset in a relative entry, which is relative to itself."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodRows:
    """Methods, one row each."""

    implementations: Addresses
    """Addresses of the code."""
    selectors: Addresses
    """Addresses of the selectors' strings."""
    owners: Owners

    def __len__(self) -> int:
        return len(self.owners)


def read_method_lists(
    records: ObjcRecords, lists: Addresses, owners: Owners, selector_base: Svma | None
) -> MethodRows:
    """Return all methods in ``lists`` that have code and a selector.

    The image's size bounds their number: lists beyond it, which can only overlap, are omitted.

    Args:
        records: the image.
        lists: pointers to the lists; 0 for none.
        owners: each list's class or category.
        selector_base: the base of selectors in a shared cache's lists; None if unknown: such
            lists are omitted.
    """
    lists, owners = _flattened(records, lists, owners)
    headers, known = records.memory.read(lists, _HEADER)
    sizes = (headers["flags"] & _ENTRY_SIZE).astype(np.int64)
    is_relative = (headers["flags"] & _IS_RELATIVE) != 0
    least = np.where(is_relative, _RELATIVE.itemsize, 3 * records.layout.pointer)
    counts = headers["count"].astype(np.int64)
    room = records.memory.size
    fits = known & (lists != 0) & (sizes >= least) & (counts * sizes <= room)
    fits &= np.cumsum(np.where(fits, counts * sizes, 0)) <= room
    lists, owners, headers, sizes = lists[fits], owners[fits], headers[fits], sizes[fits]
    counts, is_relative = counts[fits], is_relative[fits]

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
    """Return the addresses of entries after the lists' headers, and each entry's list."""
    of_list, index = flattened(counts)
    places = index.astype(np.uint64) * sizes[of_list].astype(np.uint64)
    return lists[of_list] + np.uint64(_HEADER.itemsize) + places, of_list


def _flattened(records: ObjcRecords, lists: Addresses, owners: Owners) -> tuple[Addresses, Owners]:
    """Expand lists of lists: a shared cache has a list per image that adds methods to a class."""
    several = (lists & _IS_LIST_OF_LISTS) != 0
    if not several.any():
        return lists, owners
    outer, outer_owners = lists[several] & ~_IS_LIST_OF_LISTS, owners[several]
    headers, known = records.memory.read(outer, _HEADER)
    sizes = headers["flags"].astype(np.int64)
    counts = headers["count"].astype(np.int64)
    room = records.memory.size
    fits = known & (sizes >= 8) & (sizes < 1 << 16) & (counts * sizes <= room)  # noqa: PLR2004
    fits &= np.cumsum(np.where(fits, counts * sizes, 0)) <= room
    outer, outer_owners, sizes, counts = (
        outer[fits], outer_owners[fits], sizes[fits], counts[fits],
    )  # fmt: skip
    entries, of_list = _entries(outer, counts, sizes)
    # 16 bits are the index of the image that the list is from, 48 the offset of the list from here.
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
    # The entry refers to a selector reference, which the runtime makes unique.
    selectors[indirect] = records.pointers.addresses((entries + names)[indirect])
    if selector_base is not None:
        both = relative & direct
        selectors[both] = np.uint64(selector_base) + names[both]


_CLASS_SECTIONS = ("__objc_classlist", "__objc_nlclslist")
_CATEGORY_SECTIONS = ("__objc_catlist", "__objc_catlist2", "__objc_nlcatlist")
_MAX_OWNERS = 1 << 14
"""Owners whose names are cached; at the limit, all are dropped."""
_CLASS_SYMBOL = "_OBJC_CLASS_$_"
_OLD_CLASS_SYMBOL = ".objc_class_name_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOwner:
    """A class or a category, as in its methods' names."""

    class_name: str
    """The runtime's name; mangled for a Swift class."""
    category: str | None
    """The category's name; None for a class."""


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for its cached property
class ObjcMethods:
    """The methods with code in an image, one row each; some share their code."""

    rows: MethodRows
    is_class_method: npt.NDArray[np.bool_]
    records: ObjcRecords
    class_names: Addresses
    """The address of each owner's name; 0 if it is in :attr:`bound_names`."""
    bound_names: tuple[str, ...]
    category_names: Addresses
    """The address of each owner's category name; 0 for classes."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _owners(self) -> dict[int, MethodOwner]:
        return {}

    def owner(self, row: int) -> MethodOwner:
        """Return the method's class or category."""
        number = int(self.rows.owners[row])
        owner = self._owners.get(number)
        if owner is None:
            if len(self._owners) >= _MAX_OWNERS:
                self._owners.clear()
            at, category = int(self.class_names[number]), int(self.category_names[number])
            owner = self._owners[number] = MethodOwner(
                class_name=self.records.text(at) if at else self.bound_names[number],
                category=self.records.text(category) if category else None,
            )
        return owner

    def selector(self, row: int) -> str:
        """Return the method's selector."""
        return self.records.text(int(self.rows.selectors[row]))


def parse_objc_methods(
    contents: MachOContents, pointers: Pointers, *, selector_base: Svma | None = None
) -> ObjcMethods:
    """Return the methods of all classes and categories that ``contents`` has.

    Unreadable and malformed records are omitted.

    Args:
        contents: the image, in a file or in memory.
        pointers: the image's pointers.
        selector_base: the base of selectors in a shared cache's lists.
    """
    records = ObjcRecords(contents, pointers)
    classes, categories = _classes(records), _categories(records)
    lists = np.concatenate([classes.lists, categories.lists])
    # Methods have no reference to their list: owners of class methods follow those of instances.
    count = len(classes.names) + len(categories.names)
    owners = np.concatenate([classes.owners, categories.owners + len(classes.names)])
    is_class = np.concatenate([classes.is_class_list, categories.is_class_list])
    rows = read_method_lists(records, lists, owners + count * is_class, selector_base)
    is_class_method = rows.owners >= count
    return ObjcMethods(
        rows=MethodRows(
            rows.implementations, rows.selectors, rows.owners - count * is_class_method
        ),
        is_class_method=is_class_method,
        records=records,
        class_names=np.concatenate([classes.names, categories.names]),
        bound_names=(*classes.bound_names, *categories.bound_names),
        category_names=np.concatenate(
            [np.zeros(len(classes.names), np.uint64), categories.category_names]
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """Owners, and their lists of methods."""

    names: Addresses
    bound_names: tuple[str, ...]
    category_names: Addresses
    lists: Addresses
    owners: Owners
    """The owner of each list."""
    is_class_list: npt.NDArray[np.bool_]


def _classes(records: ObjcRecords) -> _Listed:
    at = np.unique(records.pointers.addresses(records.listed(*_CLASS_SECTIONS)))
    at = at[at != 0]
    names = records.class_names(at)
    at, names = at[names != 0], names[names != 0]
    methods = records.layout.ro_methods
    lists = records.field(records.read_only_data(at), methods)
    metaclasses = records.metaclasses(at)
    class_lists = records.field(records.read_only_data(metaclasses), methods)
    numbers = np.arange(len(at))
    return _Listed(
        names,
        ("",) * len(at),
        np.zeros(len(at), np.uint64),
        np.concatenate([lists, class_lists]),
        np.concatenate([numbers, numbers]),
        np.repeat(np.array([False, True]), len(at)),
    )


def _categories(records: ObjcRecords) -> _Listed:
    """``category_t``: the name, the class, instance methods, class methods."""
    pointer = records.layout.pointer
    at = np.unique(records.pointers.addresses(records.listed(*_CATEGORY_SECTIONS)))
    at = at[at != 0]
    category_names = records.strings(records.field(at, 0))
    places = at + np.uint64(pointer)
    classes = records.pointers.addresses(places)
    elsewhere = np.flatnonzero(classes == 0)
    bound = [""] * len(at)
    for row, symbol in zip(
        elsewhere.tolist(), records.pointers.symbols(places[elsewhere]), strict=True
    ):
        bound[row] = _class_of_symbol(symbol)
    is_bound = np.array([bool(name) for name in bound], np.bool_)
    names = records.class_names(classes)
    is_named = (category_names != 0) & (is_bound | (names != 0))
    numbers = np.arange(int(is_named.sum()))
    return _Listed(
        names[is_named],
        tuple(name for name, keep in zip(bound, is_named.tolist(), strict=True) if keep),
        category_names[is_named],
        np.concatenate(
            [records.field(at[is_named], 2 * pointer), records.field(at[is_named], 3 * pointer)]
        ),
        np.concatenate([numbers, numbers]),
        np.repeat(np.array([False, True]), len(numbers)),
    )


def _class_of_symbol(name: str) -> str:
    for start in (_CLASS_SYMBOL, _OLD_CLASS_SYMBOL):
        if name.startswith(start):
            return name[len(start) :]
    return ""
