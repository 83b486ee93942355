"""The methods of an image's Objective-C classes and categories.

Source: objc4, ``runtime/objc-runtime-new.h``, and the sections that compilers put their records
in (``__objc_classlist``, ``__objc_nlclslist``, ``__objc_catlist``, ``__objc_catlist2``,
``__objc_nlcatlist``).

Lists of methods: of pointers, of relative offsets, of a shared cache's; and lists of lists.

Source: objc4, ``runtime/objc-runtime-new.h`` (``method_list_t``, ``method_t``,
``relative_list_list_t``); dyld, ``common/ObjCVisitor.h`` (``MethodList``: what the flags mean).

The records of Objective-C's metadata, and how to go from one to the next.

Source: objc4, ``runtime/objc-runtime-new.h`` (``objc_class``, ``class_ro_t``, ``class_rw_t``,
``category_t``). All of them are read as columns: one call for all classes of an image.
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
"""Where ``class_rw_t`` has its ``ro_or_rw_ext``, of either width."""
_PACKED_ISA_BITS = 0xFFFFFFFF8
"""Where an isa of arm64 has the class, if it holds a reference count and more besides."""
_LONGEST_NAME = 1 << 12


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where fields are, in bytes from a record's start."""

    pointer: int
    class_data: int
    ro_name: int
    ro_methods: int

    @property
    def aligned(self) -> np.uint64:
        """The bits of a record's address that are not flags in disguise."""
        return ~np.uint64(self.pointer - 1)


_LAYOUT_64 = _Layout(pointer=8, class_data=32, ro_name=24, ro_methods=32)
_LAYOUT_32 = _Layout(pointer=4, class_data=16, ro_name=16, ro_methods=20)


class ObjcRecords:
    """The image that metadata is read from."""

    __slots__ = ("contents", "is_loaded", "layout", "memory", "pointers")

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self.layout = _LAYOUT_64 if contents.image.header.is_64 else _LAYOUT_32
        self.is_loaded = contents.is_loaded
        """Whether the runtime may have changed the records."""

    def listed(self, *sections: str) -> Addresses:
        """The places of all pointers in the sections of these names, of any segment."""
        return self.memory.elements(sections, self.layout.pointer)

    def field(self, records: Addresses, offset: int) -> Addresses:
        """Where the pointer at ``offset`` of each record leads; 0 where there is none."""
        return np.where(
            records != 0, self.pointers.addresses(records + np.uint64(offset)), np.uint64(0)
        )

    def metaclasses(self, classes: Addresses) -> Addresses:
        """The class of each class; 0 where it is not in this image."""
        image = self.contents.image
        found = self.field(classes, 0) & self.layout.aligned
        if self.is_loaded:
            packed = self.pointers.addresses(classes, _PACKED_ISA_BITS)
            found = np.where(inside_image(image, found), found, packed)
        return np.where(inside_image(image, found), found, np.uint64(0))

    def read_only_data(self, classes: Addresses) -> Addresses:
        """The ``class_ro_t`` of each class: what the compiler wrote; 0 where there is none."""
        # The low bits of the pointer say whether the class is Swift's.
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
        """Where the name of each class is; 0 where it has none that can be read."""
        return self.strings(self.field(self.read_only_data(classes), self.layout.ro_name))

    def strings(self, at: Addresses) -> Addresses:
        """``at``, with 0 in place of what is no string with anything in it."""
        first, known = self.memory.read(at, "u1")
        return np.where(known & (first != 0) & (at != 0), at, np.uint64(0))

    def text(self, at: int) -> str:
        r"""The string at a stated address; bytes that are no UTF-8 are shown as ``\x..``."""
        return self.memory.string(at)[:_LONGEST_NAME].decode("utf-8", "backslashreplace")


Owners = npt.NDArray[np.int64]
"""Of each method or list of methods: which class or category has it."""


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


_CLASS_SECTIONS = ("__objc_classlist", "__objc_nlclslist")
_CATEGORY_SECTIONS = ("__objc_catlist", "__objc_catlist2", "__objc_nlcatlist")
_MOST_OWNERS = 1 << 14
"""Whose names are kept; at the limit all are forgotten."""
_CLASS_SYMBOL = "_OBJC_CLASS_$_"
_OLD_CLASS_SYMBOL = ".objc_class_name_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOwner:
    """A class or a category, as its methods' names say."""

    class_name: str
    """As the runtime knows it: of a Swift class, mangled."""
    category: str | None
    """None of a class."""


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for its cached property
class ObjcMethods:
    """The methods that an image has code for, one row each; some share their code."""

    rows: MethodRows
    is_class_method: npt.NDArray[np.bool_]
    records: ObjcRecords
    class_names: Addresses
    """Of each owner: where its name is; 0: it is :attr:`bound_names` that has it."""
    bound_names: tuple[str, ...]
    category_names: Addresses
    """Of each owner: where the category's name is; 0 of classes."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _owners(self) -> dict[int, MethodOwner]:
        return {}

    def owner(self, row: int) -> MethodOwner:
        """Whose method it is."""
        number = int(self.rows.owners[row])
        found = self._owners.get(number)
        if found is None:
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            at, category = int(self.class_names[number]), int(self.category_names[number])
            found = self._owners[number] = MethodOwner(
                class_name=self.records.text(at) if at else self.bound_names[number],
                category=self.records.text(category) if category else None,
            )
        return found

    def selector(self, row: int) -> str:
        """What the method is called."""
        return self.records.text(int(self.rows.selectors[row]))


def parse_objc_methods(
    contents: MachOContents, pointers: Pointers, *, selector_base: Svma | None = None
) -> ObjcMethods:
    """The methods of all classes and categories that ``contents`` has.

    What cannot be read or makes no sense is left out: nothing else is lost by it.

    Args:
        contents: the image, in a file or in memory.
        pointers: where its pointers lead.
        selector_base: what selectors in the method lists of a shared cache count from.
    """
    records = ObjcRecords(contents, pointers)
    classes, categories = _classes(records), _categories(records)
    lists = np.concatenate([classes.lists, categories.lists])
    # A method says nothing of which list it was in, so class methods' owners come second.
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
    """Of each list."""
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
    """``category_t``: the name, the class, its instances' methods, its own."""
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
    kept = (category_names != 0) & (is_bound | (names != 0))
    numbers = np.arange(int(kept.sum()))
    return _Listed(
        names[kept],
        tuple(name for name, keep in zip(bound, kept.tolist(), strict=True) if keep),
        category_names[kept],
        np.concatenate(
            [records.field(at[kept], 2 * pointer), records.field(at[kept], 3 * pointer)]
        ),
        np.concatenate([numbers, numbers]),
        np.repeat(np.array([False, True]), len(numbers)),
    )


def _class_of_symbol(name: str) -> str:
    for start in (_CLASS_SYMBOL, _OLD_CLASS_SYMBOL):
        if name.startswith(start):
            return name[len(start) :]
    return ""
