"""The methods of an image's Objective-C classes and categories.

Source: objc4, ``runtime/objc-runtime-new.h``, and the sections that compilers put their records
in (``__objc_classlist``, ``__objc_nlclslist``, ``__objc_catlist``, ``__objc_catlist2``,
``__objc_nlcatlist``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.metadata.objc_method_lists import MethodRows, read_method_lists
from machtrace.formats.macho.metadata.objc_records import ObjcRecords, Owners
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.model.address import Svma

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
