"""The symbol table, as columns (``mach-o/nlist.h``: ``struct nlist``, ``struct nlist_64``).

There may be a million symbols, of which a few are asked for by name. So rows stay as they lie in
the file, questions about kinds are answered for all at once, and a name is decoded when it is
wanted.

The debug map that linkers leave in a symbol table, as columns (``mach-o/stab.h``).

A linker that leaves DWARF in the object files writes stabs that say where those are and what it
took from each: N_OSO with an object file's path and when that was changed, then for each of its
functions N_FUN with the name and the address, and N_FUN without a name and with the size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.structs import (
    N_ABS,
    N_ARM_THUMB_DEF,
    N_EXT,
    N_PEXT,
    N_SECT,
    N_STAB,
    N_TYPE,
    N_UNDF,
    REDACTED_NAME,
    SymtabCommand,
)
from machtrace.formats.macho.tables.stabs import N_OSO
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One truth a symbol."""

_REFERENCED_DYNAMICALLY = 0x0010
_LONGEST_NAME = 1 << 16
_NAME_CHUNK = 256
_SHARED_NAMES = 16
"""How many times over the string table may be used before names must be overlapping on purpose."""
_REDACTED = REDACTED_NAME + b"\0"
_ARM = frozenset({Arch.ARM, Arch.ARMV7, Arch.ARMV7S, Arch.ARMV7K})


def nlist_dtype(*, is_64: bool, little_endian: bool) -> np.dtype[np.void]:
    """``struct nlist_64`` or ``struct nlist`` as a structured type, its fields so named."""
    order = "<" if little_endian else ">"
    return np.dtype(
        [
            ("n_strx", f"{order}u4"),
            ("n_type", "u1"),
            ("n_sect", "u1"),
            ("n_desc", f"{order}u2"),
            ("n_value", f"{order}u{8 if is_64 else 4}"),
        ]
    )


class SymbolRows:
    """All entries of a symbol table, in its order; nothing is left out or sorted."""

    __slots__ = ("_image", "_strings", "_strings_start", "rows")

    def __init__(
        self,
        rows: npt.NDArray[np.void],
        strings: memoryview,
        image: MachOImage,
        *,
        strings_start: int = 0,
    ) -> None:
        """``strings`` is the string table from its byte ``strings_start`` on."""
        self.rows = rows
        """Of :func:`nlist_dtype`, in the file's byte order."""
        self._strings = strings
        self._strings_start = strings_start
        self._image = image

    def __len__(self) -> int:
        return len(self.rows)

    # --- columns ---

    @property
    def n_strx(self) -> npt.NDArray[np.uint32]:
        """Where the name is in the string table; 0 is no name."""
        return self._column("n_strx", np.uint32)

    @property
    def n_type(self) -> npt.NDArray[np.uint8]:
        """``N_STAB``, ``N_PEXT``, ``N_TYPE`` and ``N_EXT`` bits."""
        return self._column("n_type", np.uint8)

    @property
    def n_sect(self) -> npt.NDArray[np.uint8]:
        """Which section, from 1 in the order of :attr:`MachOImage.sections`; 0 is none."""
        return self._column("n_sect", np.uint8)

    @property
    def n_desc(self) -> npt.NDArray[np.uint16]:
        """Flags that depend on the type."""
        return self._column("n_desc", np.uint16)

    @property
    def n_value(self) -> npt.NDArray[np.uint64]:
        """Of symbols in sections an :data:`Svma`; on arm, Thumb functions have no low bit here."""
        return self._column("n_value", np.uint64)

    def _column(self, field: str, kind: type[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self.rows[field], dtype=kind)

    # --- kinds ---

    @property
    def is_stab(self) -> Mask:
        """For a debugger, not symbols of the program: N_STAB."""
        mask: Mask = (self.n_type & N_STAB) != 0
        return mask

    def _is_type(self, kind: int) -> Mask:
        mask: Mask = (self.n_type & (N_STAB | N_TYPE)) == kind
        return mask

    @property
    def is_in_section(self) -> Mask:
        """Defined at an address in a section: N_SECT."""
        mask: Mask = self._is_type(N_SECT) & (self.n_sect != 0)
        return mask

    @property
    def is_undefined(self) -> Mask:
        """Defined in another image, or common: N_UNDF."""
        return self._is_type(N_UNDF)

    @property
    def is_absolute(self) -> Mask:
        """A number, not an address: N_ABS."""
        return self._is_type(N_ABS)

    @property
    def is_external(self) -> Mask:
        """Visible to other images: N_EXT without N_PEXT."""
        mask: Mask = (self.n_type & (N_STAB | N_PEXT | N_EXT)) == N_EXT
        return mask

    @property
    def is_thumb(self) -> Mask:
        """A function of Thumb instructions; false of every CPU but arm."""
        if self._image.header.arch not in _ARM:
            return np.zeros(len(self), np.bool_)
        mask: Mask = self.is_in_section & ((self.n_desc & N_ARM_THUMB_DEF) != 0)
        return mask

    @property
    def is_header(self) -> Mask:
        """``__mh_execute_header``, ``___dso_handle`` and their kin: the Mach-O header, no function.

        They are whatever is at the header's address, and whatever the linker made for the dynamic
        loader to find under a name that starts with ``__mh_``.
        """
        mask = np.zeros(len(self), np.bool_)
        if self._image.text_segment is not None:
            mask |= self.is_in_section & (self.n_value == np.uint64(self._image.header_svma))
        marked = ~self.is_stab & ((self.n_desc & _REFERENCED_DYNAMICALLY) != 0)
        marked &= ~self.is_undefined & ~mask
        found = self._start_with(b"__mh_", np.flatnonzero(marked))
        mask[found] = True
        return mask

    @property
    def is_named(self) -> Mask:
        """Has a name that is not empty, and was not blackened when a shared cache was built."""
        strings = np.frombuffer(self._strings, np.uint8)
        at = self.rows["n_strx"].astype(np.int64) - self._strings_start
        mask: Mask = (at != -self._strings_start) & (at >= 0) & (at < len(strings))
        rows = np.flatnonzero(mask)
        first = strings[at[rows]]
        mask[rows[first == 0]] = False
        mask[self._start_with(_REDACTED, rows[first == _REDACTED[0]])] = False
        return mask

    def has_underscore(self, rows: npt.NDArray[np.intp]) -> Mask:
        """Which of some symbols have a name that begins with one, as those of compilers do."""
        found = self._start_with(b"_", rows)
        mask: Mask = np.isin(rows, found)
        return mask

    def _start_with(self, start: bytes, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        strings = np.frombuffer(self._strings, np.uint8)
        at = self.rows["n_strx"][rows].astype(np.int64) - self._strings_start
        fits = (at >= 0) & (at + len(start) <= len(strings))
        rows, at = rows[fits], at[fits]
        for place, byte in enumerate(start):
            same = strings[at + place] == byte
            rows, at = rows[same], at[same]
        return rows

    @property
    def is_code(self) -> Mask:
        """Names instructions: in a section of code, with a name, and not the Mach-O header."""
        is_code_section = np.zeros(256, np.bool_)
        # nlist has one byte for the section, so later ones have no symbols.
        for number, section in enumerate(self._image.sections[:255], 1):
            is_code_section[number] = section.is_code
        mask: Mask = self.is_in_section & is_code_section[self.n_sect]
        return mask & self.is_named & ~self.is_header

    # --- names ---

    def name_bytes(self, row: int) -> bytes:
        """The name of one symbol, at most 64 KiB of it; empty where it has none."""
        at = int(self.rows["n_strx"][row])
        start = at - self._strings_start
        if at == 0 or start < 0:
            return b""
        found = b""
        while len(found) < _LONGEST_NAME:
            chunk = bytes(self._strings[start + len(found) : start + len(found) + _NAME_CHUNK])
            head, end, _ = chunk.partition(b"\0")
            found += head
            if end or not chunk:
                break
        return found[:_LONGEST_NAME]

    def name(self, row: int) -> str:
        r"""The name of one symbol as the table spells it; empty where it has none.

        Bytes that are no UTF-8 are shown as ``\x..``, so that no two names become one.
        """
        return self.name_bytes(row).decode("utf-8", "backslashreplace")

    def names(self, rows: Iterable[int] | None = None) -> list[str]:
        """The names of many symbols (None: of all), in the order asked for.

        Raises:
            MachOError: together they are many times as long as the table they are in, which only
                a made-up file does.
        """
        chosen = self.rows["n_strx"]
        if rows is not None:
            chosen = chosen[np.fromiter(rows, np.intp)]
        strings = b"".join((self._strings, b"\0"))
        base, size = self._strings_start, len(self._strings)
        room = _SHARED_NAMES * size + len(chosen)
        names: dict[int, str] = {0: ""}
        for at in np.unique(chosen).tolist():
            start = at - base
            if at == 0 or not 0 <= start < size:
                names[at] = ""
                continue
            end = min(strings.find(b"\0", start), start + _LONGEST_NAME)
            room -= end - start
            if room < 0:
                raise MachOError(
                    "the names of symbols overlap", source=self._image.source, offset=at
                )
            names[at] = strings[start:end].decode("utf-8", "backslashreplace")
        return [names[at] for at in chosen.tolist()]


def parse_symbols(contents: MachOContents) -> SymbolRows:
    """The symbol table of an image; empty where it has none.

    Raises:
        MachOError: the table or its strings are not in the file.
        MemoryReadError: they are in a loaded segment that cannot be read.
    """
    image = contents.image
    header = image.header
    dtype = nlist_dtype(is_64=header.is_64, little_endian=header.little_endian)
    command = image.symtab
    if command is None or command.nsyms == 0:
        return SymbolRows(np.zeros(0, dtype), memoryview(b""), image)
    table = read_table(contents, command.symoff, command.nsyms * dtype.itemsize, "the symbol table")
    rows = np.frombuffer(table, dtype)
    start, size = 0, command.strsize
    if contents.is_loaded:
        start, size = _used_strings(rows, command)
    strings = read_table(contents, command.stroff + start, size, "the string table")
    return SymbolRows(rows, strings, image, strings_start=start)


def _used_strings(rows: npt.NDArray[np.void], command: SymtabCommand) -> tuple[int, int]:
    """The part of a loaded string table that these symbols use.

    All images of a shared cache have the same string table, of hundreds of megabytes.
    """
    used = rows["n_strx"]
    used = used[(used != 0) & (used < command.strsize)]
    if not len(used):
        return 0, 0
    start = int(used.min())
    end = min(command.strsize, int(used.max()) + _LONGEST_NAME)
    return start, end - start


N_FUN = 0x24


@dataclass(frozen=True, slots=True, eq=False)
class DebugMapRows:
    """A debug map: functions in the symbol table's order, one entry a function in each column."""

    starts: npt.NDArray[np.uint64]
    """Each an :data:`Svma`; of Thumb functions without the lowest bit."""
    sizes: npt.NDArray[np.uint64]
    """In bytes; 0 where it is not said."""
    object_ids: npt.NDArray[np.int32]
    """Which object file each function is from, by its place among the N_OSO."""
    name_rows: npt.NDArray[np.intp]
    """For each function, the symbol with its name."""


def parse_debug_map(symbols: SymbolRows, *, has_thumb: bool = False) -> DebugMapRows:
    """The debug map in a symbol table; empty where there is none.

    Functions that stand before the first object file belong to none, and are left out.

    Args:
        symbols: the whole symbol table.
        has_thumb: whether the lowest bit of a function's address is no part of it.
    """
    kinds = symbols.n_type
    objects = np.flatnonzero(kinds == N_OSO)
    functions = np.flatnonzero(kinds == N_FUN)
    values = symbols.n_value[functions]
    begins = symbols.is_named[functions]
    # Whose next N_FUN has no name: that one's value is the size.
    is_sized = np.append(~begins[1:], np.False_)[: len(begins)]
    following = np.append(values[1:], np.zeros(1, np.uint64))[: len(values)]
    object_ids = objects.searchsorted(functions, side="right").astype(np.int32) - np.int32(1)
    kept = np.flatnonzero(begins & (object_ids >= 0))
    starts = values[kept]
    if has_thumb:
        starts &= ~np.uint64(1)
    return DebugMapRows(
        starts=starts,
        sizes=np.where(is_sized, following, np.uint64(0))[kept],
        object_ids=object_ids[kept],
        name_rows=functions[kept],
    )
