"""Symbolic's SymCache files, as columns straight over their bytes.

A SymCache maps ranges of code to source locations, each of which may be inlined into another. The
format, version 9, is that of the crate ``symbolic-symcache`` (``src/raw/v9.rs``), little-endian::

    VersionInfo, Header                          80 bytes
    File            num_files                    24 bytes each
    Function        num_functions                16 bytes each
    SourceLocation  num_source_locations         16 bytes each
    Range           num_ranges                    4 bytes each
    strings         string_bytes                 a LEB128 length, then UTF-8

Each table begins at a multiple of 8. The last ``num_ranges`` source locations are those of the
ranges, one each; those before them are calls that others are inlined into.
"""

from __future__ import annotations

from ntpath import splitdrive
from struct import Struct
from typing import TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError


def join_path(base: str, path: str) -> str:
    """Join ``path`` to ``base`` if it is relative, by the rules of any system.

    Nothing else is changed: ``..`` stays, for it may follow a symbolic link.
    """
    if not path or not base:
        return path or base
    if path.startswith("/") or _is_windows_root(path) or (path[0] == "<" and path[-1] == ">"):
        return path
    separator = "\\" if _is_windows_root(base) and "/" not in base[2:] else "/"
    return base + path if base.endswith(("/", "\\")) else f"{base}{separator}{path}"


def _is_windows_root(path: str) -> bool:
    return path.startswith("\\\\") or (path[1:2] == ":" and splitdrive(path)[1][:1] in ("/", "\\"))


Indices: TypeAlias = npt.NDArray[np.int32]
"""A column of row numbers; -1 is none."""
Numbers: TypeAlias = npt.NDArray[np.uint32]

VERSION = 9
"""The supported version of the format."""
NONE = 2**32 - 1
"""No string, no address, no language."""

_PREAMBLE = Struct("<4sI")
_HEADER = Struct("<16sI12xIIIIII16x")
"""A debug id (a UUID, an age, padding), the CPU, and the sizes of the tables."""
_ALIGNMENT = 8
_FILE, _FUNCTION, _LOCATION, _RANGE = 6, 4, 4, 1
"""The alignment of tables in words of 4 bytes."""
_LENGTH_BITS = 35
"""Bits of a string's length, in at most five bytes."""
_LEB128_MORE = 0x80
REMEDY = "delete this index; it is built again"
"""The remedy for a malformed index."""


class SymCache:
    """The tables of a SymCache. All references between them were checked.

    Addresses are :data:`~machtrace.model.address.ImageOffset`. A range reaches to the next one.
    """

    __slots__ = (
        "_data",
        "_file_parts",
        "_names",
        "_paths",
        "function_entry",
        "location_file",
        "location_function",
        "location_line",
        "location_parent",
        "location_rows",
        "range_locations",
        "range_starts",
        "source",
        "uuid",
    )

    def __init__(
        self, data: bytes | memoryview, source: str = "index of debug information"
    ) -> None:
        """Check the tables; ``data`` is read as long as this lives.

        Raises:
            FormatError: ``data`` is no SymCache of this version, or cut short, or a reference is
                out of bounds or cyclic.
        """
        self._data = view = memoryview(data)
        self.source = source
        """The name in errors."""
        at = _PREAMBLE.size + _HEADER.size
        if len(view) < at:
            raise self._fail(f"{len(view)} bytes hold no header", 0)
        magic, version = _PREAMBLE.unpack_from(view)
        if magic != b"SYMC" or version != VERSION:
            raise self._fail(f"{magic!r} {version} is no SymCache of version {VERSION}", 0)
        fields = _HEADER.unpack_from(view, _PREAMBLE.size)
        uuid, _age, _cpu, files, functions, locations, ranges, string_bytes = fields
        self.uuid = UUID(bytes=uuid)
        """The image's UUID; of an ELF image, made from its build-id as Breakpad does."""
        if ranges > locations:
            raise self._fail(f"{ranges} ranges have {locations} source locations", at)

        tables: list[Numbers] = []
        rows = ((files, _FILE), (functions, _FUNCTION), (locations, _LOCATION), (ranges, _RANGE))
        for count, words in (*rows, (string_bytes, 0)):
            size = count * 4 * words if words else count
            if at + size > len(view):
                raise self._fail(f"{size} bytes wanted, {max(0, len(view) - at)} left", at)
            if words:
                table = np.frombuffer(view, "<u4", count * words, at)
                tables.append(table.reshape(count, words))
                at = -(-(at + size) // _ALIGNMENT) * _ALIGNMENT
        file_table, function_table, location_table, range_table = tables
        strings = np.frombuffer(view, np.uint8, string_bytes, at)

        self.range_starts: Numbers = range_table[:, 0]
        """The start of each range, ascending."""
        self.location_rows: Indices = location_table.view("<i4")
        """The four columns below as rows, as they are in the file."""
        signed = self.location_rows
        self.location_file: Indices = signed[:, 0]
        """The file of each source location; -1 if unknown."""
        self.location_line: Numbers = location_table[:, 1]
        """1-based; 0 if unknown. A SymCache has no columns of lines."""
        self.location_function: Indices = signed[:, 2]
        self.location_parent: Indices = signed[:, 3]
        """The source location of the call that this one is inlined into; -1 if it is not inlined.
        """
        self.function_entry: Numbers = function_table[:, 2]
        """The start of a function; :data:`NONE` for an inlined one."""
        self.range_locations: Indices = np.arange(locations - ranges, locations, dtype=np.int32)
        """The source location of each range; -1 if no function of the debug information holds it.
        """
        self._check(files, functions)
        # Functions of the symbol table reach too far: nothing is known of where they end.
        known = np.append(function_table[:, 3] != NONE, np.False_)
        self.range_locations[~known[self.location_function[locations - ranges :]]] = -1

        self._names = self._string_bounds(strings, at, function_table[:, 0])
        self._file_parts = self._string_bounds(strings, at, file_table[:, :3].ravel())
        self._paths: dict[int, str] = {}

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self._file_parts) // 3

    @property
    def function_count(self) -> int:
        """The number of functions, including inlined ones and those of the symbol table."""
        return len(self._names)

    def function_name(self, number: int) -> str:
        """Return a function's name in the debug information: its linkage name, if it has one."""
        return self._text(self._names[number])

    def file_path(self, number: int) -> str:
        """Return a file's path, absolute if the compilation folder is known."""
        known = self._paths.get(number)
        if known is None:
            compiled_in, directory, name = map(
                self._text, self._file_parts[3 * number : 3 * number + 3]
            )
            if directory == compiled_in:  # DWARF 5 has it as the first directory, too
                directory = ""
            known = self._paths[number] = join_path(join_path(compiled_in, directory), name)
        return known

    def _text(self, bounds: npt.NDArray[np.int64]) -> str:
        return str(self._data[int(bounds[0]) : int(bounds[1])], "utf-8", "replace")

    def _check(self, files: int, functions: int) -> None:
        """Refuse references that are out of bounds or cyclic."""
        if not bool((self.range_starts[1:] > self.range_starts[:-1]).all()):
            raise self._fail("ranges are not in order", 0)
        rows = np.arange(len(self.location_parent), dtype=np.uint32)
        columns = (
            ("file", self.location_file, files),
            ("function", self.location_function, functions),
            # A location is written after the call that it is inlined into: so chains end.
            ("call", self.location_parent, rows),
        )
        for what, column, limit in columns:
            following = column.view(np.uint32) + np.uint32(1)  # of none, 0
            if not bool((following <= limit).all()):
                raise self._fail(f"a source location has a {what} that is not there", 0)

    def _string_bounds(
        self, strings: npt.NDArray[np.uint8], base: int, offsets: Numbers
    ) -> npt.NDArray[np.int64]:
        """Return the bounds of strings in the data; both 0 for none."""
        there = offsets != NONE
        at = np.where(there, offsets, 0).astype(np.int64)
        size = np.zeros(len(at), np.int64)
        more = there
        for shift in range(0, _LENGTH_BITS, 7):
            if not bool((at[more] < len(strings)).all()):
                raise self._fail("a name is not within the strings", base)
            byte = np.zeros(len(at), np.int64)
            byte[more] = strings[at[more]]
            size |= (byte & 0x7F) << shift
            at += more
            more = more & (byte >= _LEB128_MORE)
            if not bool(more.any()):
                break
        ends = at + size
        if bool(more.any()) or not bool((ends[there] <= len(strings)).all()):
            raise self._fail("a name is not within the strings", base)
        return np.where(there[:, None], np.stack([at, ends], 1) + base, 0)

    def _fail(self, message: str, offset: int) -> FormatError:
        return FormatError(message, source=self.source, offset=offset, remedy=REMEDY)
