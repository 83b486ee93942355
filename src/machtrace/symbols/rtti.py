"""Names of C++ virtual methods, from the vtables that stripping leaves.

A vtable shows that a function is the fourth virtual method of a class, not its name. It is called
``Class::{virtual method 3}``: no name of C++ has braces there. If a base of the class has no vtable
in the image, the function may be the base's: it is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from machtrace.demangler.itanium.demangler import demangle_type
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.metadata.rtti import (
    TYPE_INFO_SYMBOL,
    TypeInfos,
    Vtables,
    parse_type_infos,
    parse_vtables,
)
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.model.address import Svma
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges, Offsets

_MAX_BASES = 64
"""Bases, and bases of bases, that are followed."""


def rtti_names(
    contents: MachOContents,
    pointers: Callable[[], Pointers],
    function_starts: Offsets,
    symbols: SymbolRows | None = None,
    wanted: Offsets | None = None,
) -> NamedRanges:
    """Name the virtual methods of an image's classes, as ``Class::{virtual method N}``.

    ``N`` counts the vtable's slots from 0. A function that several classes share is the
    base-most one's; one that unrelated classes share has a name of each. One that may as well be
    a base's of which the image has no vtable has none.

    Args:
        contents: the image; one in memory has no names, as its pointers have none.
        pointers: reads its pointers.
        function_starts: the starts of its functions (ImageOffset), sorted.
        symbols: the rest of its symbol table: it has the addresses of what is bound by name.
        wanted: the functions to name, sorted; None: all.
    """
    if contents.is_loaded or not len(function_starts):
        return no_rtti_names()
    base = np.uint64(contents.image.header_svma)
    where = pointers()
    definitions = _definitions(symbols, where)
    types = parse_type_infos(contents, where, definitions)
    tables = parse_vtables(contents, where, types, definitions, function_starts + base)
    finder = _Methods(types, tables, (function_starts if wanted is None else wanted) + base)
    methods = finder.found

    def name(row: int) -> str:
        _, owner, slot = methods[row].tolist()
        return finder.name(owner, slot)

    return NamedRanges.unranked(methods[:, 0].astype(np.uint64) - base, name, Certainty.RTTI)


def no_rtti_names() -> NamedRanges:
    """Return the names of no function."""
    return NamedRanges.unranked(np.zeros(0, np.uint64), lambda _: "", Certainty.RTTI)


def _definitions(symbols: SymbolRows | None, pointers: Pointers) -> Mapping[str, Svma]:
    """Return the addresses of type information that pointers in the image are bound to by name."""
    wanted = {name for name in pointers.binds.names if name.startswith(TYPE_INFO_SYMBOL)}
    if symbols is None or not wanted:
        return {}
    rows = np.flatnonzero(symbols.is_in_section & ~symbols.is_code)
    values = symbols.n_value
    found = ((symbols.name(row), row) for row in rows.tolist())
    return {name: Svma(int(values[row])) for name, row in found if name in wanted}


class _Methods:
    """Which class each function is a virtual method of."""

    def __init__(self, types: TypeInfos, tables: Vtables, wanted: Addresses) -> None:
        """``wanted``: the functions to name (Svma)."""
        self._types = types
        self._tables = tables
        self._primary: dict[int, int] = {}
        self._lines: dict[int, list[int]] = {}
        for table, (owner, top) in enumerate(
            zip(tables.owners.tolist(), tables.tops.tolist(), strict=True)
        ):
            if top == 0:
                self._primary.setdefault(owner, table)
        at = wanted.searchsorted(tables.functions)
        self._is_wanted = np.append(wanted, np.uint64(0))[at] == tables.functions
        self._is_wanted &= tables.functions != 0
        rows = sorted(
            (function, owner, slot)
            for function, owner, slot in self._merged(set(self._rows()))
            if not self._may_inherit(owner, of_parts=slot < 0)
        )
        self.found = np.array(rows, np.int64).reshape(-1, 3)
        """(function, class, slot), once each; a negative slot: see :meth:`name`."""

    def name(self, owner: int, slot: int) -> str:
        """Return the name of a virtual method; ``slot`` is as in :attr:`found`."""
        mangled = self._types.mangled[owner]
        shown = demangle_type(mangled.removeprefix("*")) or mangled
        if slot >= 0:
            return f"{shown}::{{virtual method {slot}}}"
        table, number = divmod(-slot - 1, _MAX_SLOTS)
        part = self._part(owner, -int(self._tables.tops[table]))
        return f"{shown}::{{virtual method {number} as {part}}}"

    def _may_inherit(self, owner: int, *, of_parts: bool) -> bool:
        """Whether a class has a base whose functions in the class's own vtable are not known.

        Args:
            owner: the class.
            of_parts: whether to check the vtables for all its bases, not only its own.
        """
        return any(
            base.row not in self._primary
            for base in self._types.bases[owner]
            if of_parts or base.is_virtual or base.offset == 0
        )

    @cached_property
    def _functions(self) -> list[int]:
        functions: list[int] = self._tables.functions.tolist()
        return functions

    def _rows(self) -> Iterator[tuple[int, int, int]]:
        tables = self._tables
        slots = np.flatnonzero(self._is_wanted)
        of = tables.firsts.searchsorted(slots, side="right") - 1
        places = slots - tables.firsts[of]
        primary: set[int] = set()
        secondary: list[tuple[int, int, int]] = []
        for table, slot, function in zip(
            of.tolist(), places.tolist(), tables.functions[slots].tolist(), strict=True
        ):
            owner = int(tables.owners[table])
            if slot >= _MAX_SLOTS:
                continue
            if self._primary.get(owner) == table:
                primary.add(function)
                yield function, self._origin(owner, slot, function), slot
            else:
                secondary.append((function, owner, -(table * _MAX_SLOTS + slot) - 1))
        # A function of a base is in the vtables that derived classes have for the base, too.
        yield from self._own(row for row in secondary if row[0] not in primary)

    def _own(self, rows: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield rows except those of classes that inherit the function from a base that has it."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for row in rows:
            found.setdefault(row[0], []).append(row)
        for same in found.values():
            owners = {owner for _, owner, _ in same}
            for row in same:
                if len(owners) == 1 or owners.isdisjoint(self._bases(row[1])):
                    yield row

    def _merged(self, rows: set[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield rows, with one for all classes that share a function of a base without a vtable."""
        owners: dict[tuple[int, int], list[int]] = {}
        for function, owner, slot in rows:
            owners.setdefault((function, slot), []).append(owner)
        for (function, slot), found in owners.items():
            shared = self._common_base(found) if slot >= 0 and len(found) > 1 else None
            for owner in found if shared is None else [shared]:
                yield function, owner, slot

    def _common_base(self, owners: list[int]) -> int | None:
        """Return the nearest class that all of ``owners`` begin as, if it has no vtable."""
        shared = self._above(owners[0])
        for owner in owners[1:]:
            others = set(self._above(owner))
            shared = [one for one in shared if one in others]
        return shared[0] if shared and shared[0] not in self._primary else None

    def _origin(self, owner: int, slot: int, function: int) -> int:
        """Return the base-most class that has the function in this slot of its own vtable."""
        firsts, origin = self._tables.firsts, owner
        for above in self._above(owner):
            table = self._primary.get(above)
            if table is None:
                continue
            place = int(firsts[table]) + slot
            if place < int(firsts[table + 1]) and self._functions[place] == function:
                origin = above
        return origin

    def _above(self, owner: int) -> list[int]:
        """Return the classes that a class's own vtable may begin as, nearest first.

        They are at its objects' start, where a base without virtual methods may be, too.
        """
        found = self._lines.get(owner)
        if found is None:
            found = self._lines[owner] = self._followed(owner, only_at_start=True)
        return found

    def _bases(self, owner: int) -> list[int]:
        """Return all bases of a class, nearest first."""
        return self._followed(owner, only_at_start=False)

    def _followed(self, owner: int, *, only_at_start: bool) -> list[int]:
        rows = [owner]
        for row in rows:  # it grows
            if len(rows) > _MAX_BASES:
                break
            rows += [
                base.row
                for base in self._types.bases[row]
                if base.row >= 0
                and base.row not in rows
                and not (only_at_start and (base.is_virtual or base.offset))
            ]
        return rows[1:]

    def _part(self, owner: int, offset: int) -> str:
        """Describe an offset of a class's objects: a base, by name if it can be no other."""
        bases = self._types.bases[owner]
        found = [base for base in bases if not base.is_virtual and base.offset == offset]
        found = found or [base for base in bases if base.is_virtual]
        if len(found) == 1 and found[0].mangled:
            return demangle_type(found[0].mangled) or found[0].mangled
        return f"part at {offset}"


_MAX_SLOTS = 1 << 16
"""Slots of a vtable that are examined."""
