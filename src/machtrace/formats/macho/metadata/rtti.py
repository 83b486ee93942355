"""C++ classes by their type information: names, bases, vtables.

``dynamic_cast`` and exceptions need ``type_info`` objects at run time, so stripping leaves them. A
vtable is the offset to the top of the object, the pointer to ``type_info``, then the virtual
functions. Source: Itanium C++ ABI, sections 2.5.2 "Virtual Table Components and Order" and 2.9.5
"RTTI Layout".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses, ScatteredRecords, flattened
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

_PLAIN = "__ZTVN10__cxxabiv117__class_type_infoE"
_SINGLE = "__ZTVN10__cxxabiv120__si_class_type_infoE"
_MULTIPLE = "__ZTVN10__cxxabiv121__vmi_class_type_infoE"
TYPE_INFO_VTABLES = (_PLAIN, _SINGLE, _MULTIPLE)
"""The symbols that the first word of a ``type_info`` is bound to, by the kind of bases."""
_NAME_SYMBOL = "__ZTS"
TYPE_INFO_SYMBOL = "__ZTI"
_NAME_ADDRESS = np.uint64((1 << 63) - 1)
"""The address bits of a pointer to a name: on arm64, the highest bit marks a type that other images
may define under the same name (LLVM, ``libcxx/include/typeinfo``, "NonUniqueARMRTTIBit")."""
_MAX_BASES = 1 << 10
_SHARED_NAMES = 16
"""Maximum size of all names together, in images: beyond, they overlap on purpose."""
_VIRTUAL = 1
"""``__base_class_type_info::__virtual_mask``."""
_OFFSET_SHIFT = 8


class Base(NamedTuple):
    """A direct base of a class."""

    mangled: str
    """The name in ``type_info``; empty if unreadable."""
    row: int
    """The row of the image's class; -1 if it is in another image."""
    offset: int
    """The offset in the class; for a virtual base, the offset of that in the vtable."""
    is_virtual: bool


@dataclass(frozen=True, slots=True, eq=False)
class TypeInfos:
    """The classes of an image with type information, ascending by its address."""

    addresses: Addresses
    """Addresses of the ``type_info`` objects."""
    mangled: list[str]
    """Names in ``type_info``: mangled types."""
    bases: list[tuple[Base, ...]]
    """Direct bases, in their order."""

    def __len__(self) -> int:
        return len(self.addresses)

    def rows_at(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        """Return the row at each of ``addresses``; -1 for none."""
        if not len(self.addresses):
            return np.full(len(addresses), -1, np.int64)
        rows = self.addresses.searchsorted(addresses).clip(max=len(self.addresses) - 1)
        return np.where(self.addresses[rows] == addresses, rows, -1)


def parse_type_infos(
    contents: MachOContents, pointers: Pointers, definitions: Mapping[str, Svma]
) -> TypeInfos:
    """Return the classes whose type information is in an image; malformed ones are omitted.

    Args:
        contents: the image, in a file.
        pointers: its pointers.
        definitions: addresses of the image's symbols that its pointers are bound to by name, such
            as weak definitions.
    """
    binds = pointers.binds
    wanted = {number for number, name in enumerate(binds.names) if name in TYPE_INFO_VTABLES}
    rows = np.flatnonzero(np.isin(binds.symbols, np.array(sorted(wanted), np.int32)))
    return _Reader(contents, pointers, definitions).read(
        binds.places[rows], [binds.names[symbol] for symbol in binds.symbols[rows].tolist()]
    )


class _Reader:
    def __init__(
        self, contents: MachOContents, pointers: Pointers, definitions: Mapping[str, Svma]
    ) -> None:
        self._pointers = pointers
        self._definitions = definitions
        self._records = ScatteredRecords(contents)
        self._size = 8 if contents.image.header.is_64 else 4
        self._order = "<" if contents.image.header.little_endian else ">"

    def read(self, places: Addresses, kinds: list[str]) -> TypeInfos:
        names = self._names(places)
        known = np.array([bool(name) for name in names], np.bool_)
        known_rows = np.flatnonzero(known)
        places, names = places[known_rows], [names[row] for row in known_rows.tolist()]
        kinds = [kinds[row] for row in known_rows.tolist()]
        types = TypeInfos(places, names, [() for _ in names])
        single = np.array([kind == _SINGLE for kind in kinds], np.bool_)
        rows = np.flatnonzero(single)
        for row, base in zip(rows.tolist(), self._bases(places[rows], 2, types), strict=True):
            types.bases[row] = (Base(*base, 0, is_virtual=False),)
        for row, kind in enumerate(kinds):
            if kind == _MULTIPLE:
                types.bases[row] = self._several(int(places[row]), types)
        return types

    def _names(self, places: Addresses) -> list[str]:
        at = places + np.uint64(self._size)
        texts = self._texts(self._pointers.targets(at) & _NAME_ADDRESS)
        # The pointer to a weak definition's name is bound by a symbol, which contains the name.
        bound = self._pointers.symbols(at)
        return [
            symbol.removeprefix(_NAME_SYMBOL) if symbol.startswith(_NAME_SYMBOL) else text
            for text, symbol in zip(texts, bound, strict=True)
        ]

    def _texts(self, addresses: Addresses) -> list[str]:
        room = _SHARED_NAMES * self._records.size
        texts = []
        for address in addresses.tolist():
            text = self._records.string(address) if address and room > 0 else b""
            room -= len(text)
            texts.append(text.decode("utf-8", "backslashreplace"))
        return texts

    def _bases(self, records: Addresses, word: int, types: TypeInfos) -> list[tuple[str, int]]:
        """Return the name and row of the base in each record's ``word``-th pointer."""
        at = records + np.uint64(word * self._size)
        targets = self._pointers.targets(at)
        symbols = self._pointers.symbols(at)
        defined = [self._definitions.get(symbol, 0) for symbol in symbols]
        rows = types.rows_at(np.where(targets != 0, targets, np.array(defined, np.uint64)))
        bases: list[tuple[str, int]] = []
        for row, symbol in zip(rows.tolist(), symbols, strict=True):
            if row >= 0:
                bases.append((types.mangled[row], row))
            elif symbol.startswith(TYPE_INFO_SYMBOL):
                bases.append((symbol.removeprefix(TYPE_INFO_SYMBOL), -1))
            else:
                bases.append(("", -1))
        return bases

    def _several(self, place: int, types: TypeInfos) -> tuple[Base, ...]:
        size = self._size
        head = np.dtype([("flags", f"{self._order}u4"), ("count", f"{self._order}u4")])
        records, known = self._records.read(np.array([place + 2 * size], np.uint64), head)
        count = int(records["count"][0])
        if not known[0] or count > _MAX_BASES:
            return ()
        entries = np.uint64(place + 2 * size + 8) + np.arange(count, dtype=np.uint64) * np.uint64(
            2 * size
        )
        flags, known = self._records.read(entries + np.uint64(size), f"{self._order}i{size}")
        bases = self._bases(entries, 0, types)
        return tuple(
            Base(*base, flag >> _OFFSET_SHIFT, bool(flag & _VIRTUAL))
            for base, flag, ok in zip(bases, flags.tolist(), known.tolist(), strict=True)
            if ok
        )


_DATA_SYMBOLS = ("__ZTI", "__ZTV", "__ZTS", "__ZTT")
_FARTHEST = 1 << 32
"""Maximum plausible size of an object, in bytes."""
_POINTER_SECTIONS = frozenset({"__got", "__auth_got", "__la_symbol_ptr", "__nl_symbol_ptr"})


@dataclass(frozen=True, slots=True, eq=False)
class Vtables:
    """Vtables, ascending by address; several for a class with several bases."""

    owners: npt.NDArray[np.int64]
    """Each vtable's class, a row of :class:`TypeInfos`."""
    tops: npt.NDArray[np.int64]
    """Offsets from the vtable's subobject to the top of the object: 0 or negative."""
    firsts: npt.NDArray[np.int64]
    """Indices of each vtable's first slot in :attr:`functions`, and the number of all slots."""
    functions: Addresses
    """The slots' functions (Svma); 0 for a function in another image."""

    def __len__(self) -> int:
        return len(self.owners)


def parse_vtables(
    contents: MachOContents,
    pointers: Pointers,
    type_infos: TypeInfos,
    definitions: Mapping[str, Svma],
    function_starts: Addresses,
) -> Vtables:
    """Return the vtables of the classes in ``type_infos``; slots point to starts of functions.

    Args:
        contents: the image, in a file.
        pointers: its pointers.
        type_infos: its classes.
        definitions: addresses of the image's symbols that its pointers are bound to by name.
        function_starts: starts of functions (Svma), sorted.
    """
    size = 8 if contents.image.header.is_64 else 4
    columns = _columns(pointers, type_infos, definitions, function_starts)
    heads = np.flatnonzero((columns.owners >= 0) & ~_in_pointer_sections(contents, columns.places))
    tops, plausible = _offsets_to_top(contents, columns.places, heads, size)
    # Slots are consecutive, from the word after the head on: ``follows`` marks pointers that are
    # slots one word after the previous pointer. A vtable ends at the first break after its head.
    follows = np.zeros(len(columns.places) + 1, np.bool_)
    follows[1:-1] = (np.diff(columns.places) == np.uint64(size)) & columns.is_slot[1:]
    breaks = np.flatnonzero(~follows)
    ends = breaks[breaks.searchsorted(heads, side="right")]
    counts = ends - heads - 1
    valid = np.flatnonzero(plausible & (counts > 0))
    heads, counts = heads[valid], counts[valid]
    firsts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    of_table, slots = flattened(counts)
    rows = heads[of_table] + 1 + slots
    return Vtables(columns.owners[heads], tops[valid], firsts, columns.targets[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """All pointers of the image, by address."""

    places: Addresses
    targets: Addresses
    owners: npt.NDArray[np.int64]
    """The row of each pointer's ``type_info``; -1 for none."""
    is_slot: npt.NDArray[np.bool_]


def _columns(
    pointers: Pointers,
    type_infos: TypeInfos,
    definitions: Mapping[str, Svma],
    function_starts: Addresses,
) -> _Columns:
    rebases, binds = pointers.rebases, pointers.binds
    own = np.array([definitions.get(name, 0) for name in binds.names] or [0], np.uint64)
    is_data = np.array([name.startswith(_DATA_SYMBOLS) for name in binds.names] or [False])
    is_type = np.array([name.startswith(TYPE_INFO_SYMBOL) for name in binds.names] or [False])
    symbols = binds.symbols
    places = np.concatenate([rebases.places, binds.places])
    # Opcodes state a weak pointer twice, as a rebase and a bind: the rebase takes precedence.
    # The sort is stable, so the first of equal addresses is the rebase, and the others are dropped.
    order = np.argsort(places, kind="stable")
    order = order[np.concatenate([[True], np.diff(places[order]) > 0])] if len(order) else order
    targets = np.concatenate([rebases.targets, np.where(is_type[symbols], own[symbols], 0)])
    bound_function = np.concatenate([np.zeros(len(rebases), np.bool_), ~is_data[symbols]])
    targets, bound_function = targets[order], bound_function[order]
    is_function = np.zeros(len(order), np.bool_)
    if len(function_starts):
        # A target is a start if the first start at or after it is the target itself.
        at = function_starts.searchsorted(targets).clip(max=len(function_starts) - 1)
        is_function = function_starts[at] == targets
    return _Columns(
        places[order], targets, type_infos.rows_at(targets), is_function | bound_function
    )


def _in_pointer_sections(contents: MachOContents, places: Addresses) -> npt.NDArray[np.bool_]:
    is_inside = np.zeros(len(places), np.bool_)
    for section in contents.image.sections:
        if section.name in _POINTER_SECTIONS:
            is_inside |= places - np.uint64(section.address) < np.uint64(section.size)
    return is_inside


def _offsets_to_top(
    contents: MachOContents, places: Addresses, heads: npt.NDArray[np.int64], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the number before each head, and whether it is plausible and not a pointer."""
    order = "<" if contents.image.header.little_endian else ">"
    before = places[heads] - np.uint64(size)
    words, known = ScatteredRecords(contents).read(before, f"{order}i{size}")
    tops = words.astype(np.int64)
    previous = places[np.maximum(heads - 1, 0)]
    is_pointer = (heads > 0) & (previous == before)
    return tops, known & ~is_pointer & (tops <= 0) & (tops > -_FARTHEST)
