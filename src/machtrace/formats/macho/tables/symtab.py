"""The symbol table and its debug map, as columns (``mach-o/nlist.h``, ``mach-o/stab.h``).

There may be a million symbols, of which few are looked up. So rows stay as they are in the file,
kinds are computed for all at once, and names are decoded on access.

A linker that leaves DWARF in the object files writes a debug map, stabs that list them and their
functions: N_OSO with an object file's path and modification time, then for each of its functions
an N_FUN with the name and the address, and an N_FUN without a name and with the size.
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
"""One boolean per symbol."""

_REFERENCED_DYNAMICALLY = 0x0010
_MAX_NAME_LENGTH = 1 << 16
_NAME_CHUNK = 256
_SHARED_NAMES = 16
"""Maximum size of all names together, in string tables: beyond, they overlap on purpose."""
_REDACTED = REDACTED_NAME + b"\0"
_ARM = frozenset({Arch.ARM, Arch.ARMV7, Arch.ARMV7S, Arch.ARMV7K})


def nlist_dtype(*, is_64: bool, little_endian: bool) -> np.dtype[np.void]:
    """Return ``struct nlist_64`` or ``struct nlist`` as a structured type."""
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
    """All entries of a symbol table, in its order."""

    def __init__(
        self,
        rows: npt.NDArray[np.void],
        strings: memoryview,
        image: MachOImage,
        *,
        strings_start: int = 0,
    ) -> None:
        """Take the string table from its byte ``strings_start`` on as ``strings``."""
        self.rows = rows
        """Entries of :func:`nlist_dtype`, in the file's byte order."""
        self._strings = strings
        self._strings_start = strings_start
        self._image = image

    def __len__(self) -> int:
        return len(self.rows)

    # --- columns ---

    @property
    def n_strx(self) -> npt.NDArray[np.uint32]:
        """The names' offsets in the string table; 0 for no name."""
        return self._column("n_strx", np.uint32)

    @property
    def n_type(self) -> npt.NDArray[np.uint8]:
        """``N_STAB``, ``N_PEXT``, ``N_TYPE`` and ``N_EXT`` bits."""
        return self._column("n_type", np.uint8)

    @property
    def n_sect(self) -> npt.NDArray[np.uint8]:
        """Section numbers, from 1 in the order of :attr:`MachOImage.sections`; 0 for none."""
        return self._column("n_sect", np.uint8)

    @property
    def n_desc(self) -> npt.NDArray[np.uint16]:
        """Flags, whose meaning depends on the type."""
        return self._column("n_desc", np.uint16)

    @property
    def n_value(self) -> npt.NDArray[np.uint64]:
        """Values: an :data:`Svma` for symbols in sections, without the Thumb bit."""
        return self._column("n_value", np.uint64)

    def _column(self, field: str, kind: type[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self.rows[field], dtype=kind)

    # --- kinds ---

    @property
    def is_stab(self) -> Mask:
        """Which are for debuggers and not symbols of the program: N_STAB."""
        mask: Mask = (self.n_type & N_STAB) != 0
        return mask

    def _is_type(self, kind: int) -> Mask:
        mask: Mask = (self.n_type & (N_STAB | N_TYPE)) == kind
        return mask

    @property
    def is_in_section(self) -> Mask:
        """Which are defined at an address in a section: N_SECT."""
        mask: Mask = self._is_type(N_SECT) & (self.n_sect != 0)
        return mask

    @property
    def is_undefined(self) -> Mask:
        """Which are defined in another image, or common: N_UNDF."""
        return self._is_type(N_UNDF)

    @property
    def is_absolute(self) -> Mask:
        """Which are numbers, not addresses: N_ABS."""
        return self._is_type(N_ABS)

    @property
    def is_external(self) -> Mask:
        """Which are visible to other images: N_EXT without N_PEXT."""
        mask: Mask = (self.n_type & (N_STAB | N_PEXT | N_EXT)) == N_EXT
        return mask

    @property
    def is_thumb(self) -> Mask:
        """Which are functions in Thumb code; none on other CPUs than arm."""
        if self._image.header.arch not in _ARM:
            return np.zeros(len(self), np.bool_)
        mask: Mask = self.is_in_section & ((self.n_desc & N_ARM_THUMB_DEF) != 0)
        return mask

    @property
    def is_header(self) -> Mask:
        """Which are the Mach-O header and not functions: ``__mh_execute_header`` and similar.

        These are symbols at the header's address, and those that the linker makes for the dynamic
        loader, whose names start with ``__mh_``.
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
        """Which have a name that is not empty, and not redacted in a shared cache."""
        strings = np.frombuffer(self._strings, np.uint8)
        at = self.rows["n_strx"].astype(np.int64) - self._strings_start
        mask: Mask = (at != -self._strings_start) & (at >= 0) & (at < len(strings))
        rows = np.flatnonzero(mask)
        first = strings[at[rows]]
        mask[rows[first == 0]] = False
        mask[self._start_with(_REDACTED, rows[first == _REDACTED[0]])] = False
        return mask

    def has_underscore(self, rows: npt.NDArray[np.intp]) -> Mask:
        """Return which of ``rows`` have a name with the underscore that compilers prefix."""
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
        """Which name code: in a section of code, with a name, and not the Mach-O header."""
        is_code_section = np.zeros(256, np.bool_)
        # nlist has one byte for the section: later sections have no symbols.
        for number, section in enumerate(self._image.sections[:255], 1):
            is_code_section[number] = section.is_code
        mask: Mask = self.is_in_section & is_code_section[self.n_sect]
        return mask & self.is_named & ~self.is_header

    # --- names ---

    def name_bytes(self, row: int) -> bytes:
        """Return the name of one symbol, at most 64 KiB; empty if it has none."""
        at = int(self.rows["n_strx"][row])
        start = at - self._strings_start
        if at == 0 or start < 0:
            return b""
        text = b""
        while len(text) < _MAX_NAME_LENGTH:
            chunk = bytes(self._strings[start + len(text) : start + len(text) + _NAME_CHUNK])
            head, end, _ = chunk.partition(b"\0")
            text += head
            if end or not chunk:
                break
        return text[:_MAX_NAME_LENGTH]

    def name(self, row: int) -> str:
        r"""Return the linkage name of one symbol; empty if it has none.

        Invalid UTF-8 is escaped as ``\x..``, so that distinct names stay distinct.
        """
        return self.name_bytes(row).decode("utf-8", "backslashreplace")

    def names(self, rows: Iterable[int] | None = None) -> list[str]:
        """Return the names of many symbols (None: of all), in the given order.

        Raises:
            MachOError: together, the names are many times as long as the string table, as only in
                a synthetic file.
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
            end = min(strings.find(b"\0", start), start + _MAX_NAME_LENGTH)
            room -= end - start
            if room < 0:
                raise MachOError(
                    "the names of symbols overlap", source=self._image.source, offset=at
                )
            names[at] = strings[start:end].decode("utf-8", "backslashreplace")
        return [names[at] for at in chosen.tolist()]


def parse_symbols(contents: MachOContents) -> SymbolRows:
    """Parse the symbol table of an image; empty if it has none.

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
    """Return the part of a loaded string table that these symbols use.

    All images of a shared cache share a string table of hundreds of megabytes.
    """
    used = rows["n_strx"]
    used = used[(used != 0) & (used < command.strsize)]
    if not len(used):
        return 0, 0
    start = int(used.min())
    end = min(command.strsize, int(used.max()) + _MAX_NAME_LENGTH)
    return start, end - start


N_FUN = 0x24


@dataclass(frozen=True, slots=True, eq=False)
class DebugMapRows:
    """A debug map: functions in the symbol table's order, one row each."""

    starts: npt.NDArray[np.uint64]
    """Addresses, each an :data:`Svma` without the Thumb bit."""
    sizes: npt.NDArray[np.uint64]
    """Sizes in bytes; 0 if not stated."""
    object_ids: npt.NDArray[np.int32]
    """Each function's object file, an index among the N_OSO."""
    name_rows: npt.NDArray[np.intp]
    """Each function's symbol with its name."""


def parse_debug_map(symbols: SymbolRows, *, has_thumb: bool = False) -> DebugMapRows:
    """Return the debug map in a symbol table; empty if there is none.

    Functions before the first object file are omitted.

    Args:
        symbols: the whole symbol table.
        has_thumb: whether the lowest bit of a function's address is the Thumb bit.
    """
    kinds = symbols.n_type
    objects = np.flatnonzero(kinds == N_OSO)
    functions = np.flatnonzero(kinds == N_FUN)
    values = symbols.n_value[functions]
    begins = symbols.is_named[functions]
    # Functions are followed by an N_FUN without a name, whose value is the size.
    # Both columns are those of the next row.
    is_sized = np.append(~begins[1:], np.False_)[: len(begins)]
    following = np.append(values[1:], np.zeros(1, np.uint64))[: len(values)]
    object_ids = objects.searchsorted(functions, side="right").astype(np.int32) - np.int32(1)
    rows = np.flatnonzero(begins & (object_ids >= 0))
    starts = values[rows]
    if has_thumb:
        starts &= ~np.uint64(1)
    return DebugMapRows(
        starts=starts,
        sizes=np.where(is_sized, following, np.uint64(0))[rows],
        object_ids=object_ids[rows],
        name_rows=functions[rows],
    )
