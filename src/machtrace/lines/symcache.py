"""Symbolic's SymCache files, read one offset at a time.

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
from uuid import UUID

from machtrace.errors import FormatError

TYPE_CHECKING = False  # as type checkers read it; typing's own costs an import

if TYPE_CHECKING:
    from machtrace.lines.symcache_columns import SymCacheColumns

VERSION = 9
"""The supported version of the format."""
NONE = 2**32 - 1
"""No string, no address, no language."""
NO_LOCATION = (-1, 0, -1, -1)
"""A location of which nothing is known: file, line, function, and the location of the call."""

_PREAMBLE = Struct("<4sI")
_HEADER = Struct("<16sI12xIIIIII16x")
"""A debug id (a UUID, an age, padding), the CPU, and the sizes of the tables."""
_ALIGNMENT = 8
_FILE, _FUNCTION, _LOCATION, _RANGE = (
    Struct("<III12x"),
    Struct("<I4xII"),
    Struct("<iIii"),
    Struct("<I"),
)
_LENGTH_BITS = 35
"""Bits of a string's length, in at most five bytes."""
_LEB128_MORE = 0x80
REMEDY = "delete this index; it is built again"
"""The remedy for a malformed index."""


class SymCache:
    """The tables of a SymCache.

    Addresses are :data:`~machtrace.model.address.ImageOffset`. A range reaches to the next one.
    Opening checks that the tables fit the data. Their references are checked as they are followed,
    and all at once by :attr:`columns`; a reference out of bounds leads to nothing.
    """

    def __init__(
        self, data: bytes | memoryview, source: str = "index of debug information"
    ) -> None:
        """Check the header; ``data`` is read as long as this lives.

        Raises:
            FormatError: ``data`` is no SymCache of this version, or cut short.
        """
        self.data = view = memoryview(data)
        self.source = source
        """The name in errors."""
        at = _PREAMBLE.size + _HEADER.size
        if len(view) < at:
            raise self.fail(f"{len(view)} bytes hold no header", 0)
        magic, version = _PREAMBLE.unpack_from(view)
        if magic != b"SYMC" or version != VERSION:
            raise self.fail(f"{magic!r} {version} is no SymCache of version {VERSION}", 0)
        fields = _HEADER.unpack_from(view, _PREAMBLE.size)
        uuid, _age, _cpu, *counts, string_bytes = fields
        self.uuid = UUID(bytes=uuid)
        """The image's UUID; of an ELF image, made from its build-id as Breakpad does."""
        self.file_count, self.function_count, self.location_count, self.range_count = counts
        if self.range_count > self.location_count:
            message = f"{self.range_count} ranges have {self.location_count} source locations"
            raise self.fail(message, at)
        tables = []
        for count, row in zip(counts, (_FILE, _FUNCTION, _LOCATION, _RANGE), strict=True):
            tables.append(at)
            at = -(-self._end(at, count * row.size) // _ALIGNMENT) * _ALIGNMENT
        self.tables: tuple[int, ...] = tuple(tables)
        """The offsets in the data of files, functions, source locations and ranges."""
        self.strings = (at, self._end(at, string_bytes))
        """The bounds of the strings in the data."""
        self._columns: SymCacheColumns | None = None
        self._paths: dict[int, str] = {}

    @property
    def columns(self) -> SymCacheColumns:
        """The tables as columns, with every reference checked.

        Raises:
            FormatError: a reference is out of bounds or cyclic.
        """
        if self._columns is None:
            from machtrace.lines.symcache_columns import SymCacheColumns

            self._columns = SymCacheColumns(self)
        return self._columns

    def location_at(self, offset: int) -> int:
        """Return the source location of the range that holds ``offset``; -1 if unknown."""
        data, at = self.data, self.tables[3]
        low, high = 0, self.range_count
        while low < high:  # bisect, without a column of the starts
            middle = (low + high) // 2
            if _RANGE.unpack_from(data, at + 4 * middle)[0] <= offset:
                low = middle + 1
            else:
                high = middle
        # The last locations are those of the ranges.
        row = self.location_count - self.range_count + low - 1
        function = self.location(row)[2] if low else -1
        # Functions of the symbol table reach too far: nothing is known of where they end.
        return row if function >= 0 and self._function(function)[2] != NONE else -1

    def location(self, row: int) -> tuple[int, int, int, int]:
        """Return file, line, function and the call's location of a source location."""
        if not 0 <= row < self.location_count:
            return NO_LOCATION
        at = self.tables[2] + _LOCATION.size * row
        file, line, function, parent = _LOCATION.unpack_from(self.data, at)
        # A location is written after the call that it is inlined into: so chains end.
        return (
            file if file < self.file_count else -1,
            line,
            function if function < self.function_count else -1,
            parent if parent < row else -1,
        )

    def function_entry(self, number: int) -> int:
        """Return the start of a function; :data:`NONE` for an inlined one."""
        return self._function(number)[1]

    def function_name(self, number: int) -> str:
        """Return a function's name in the debug information: its linkage name, if it has one."""
        return self._text(self._function(number)[0])

    def file_path(self, number: int) -> str:
        """Return a file's path, absolute if the compilation folder is known."""
        known = self._paths.get(number)
        if known is None:
            parts = _FILE.unpack_from(self.data, self.tables[0] + _FILE.size * number)
            compiled_in, directory, name = map(self._text, parts)
            if directory == compiled_in:  # DWARF 5 has it as the first directory, too
                directory = ""
            known = self._paths[number] = join_path(join_path(compiled_in, directory), name)
        return known

    def _function(self, number: int) -> tuple[int, int, int]:
        """Return the offset of a function's name, its start, and its language."""
        name, entry, language = _FUNCTION.unpack_from(
            self.data, self.tables[1] + _FUNCTION.size * number
        )
        return name, entry, language

    def _text(self, offset: int) -> str:
        start, end = self.strings
        at, size = start + offset, 0
        for shift in range(0, _LENGTH_BITS, 7):
            if offset == NONE or at >= end:
                return ""
            byte = self.data[at]
            size |= (byte & ~_LEB128_MORE) << shift
            at += 1
            if byte < _LEB128_MORE:
                return (
                    str(self.data[at : at + size], "utf-8", "replace") if at + size <= end else ""
                )
        return ""

    def _end(self, at: int, size: int) -> int:
        if at + size > len(self.data):
            raise self.fail(f"{size} bytes wanted, {max(0, len(self.data) - at)} left", at)
        return at + size

    def fail(self, message: str, offset: int) -> FormatError:
        """Return the error for malformed data at ``offset``."""
        return FormatError(message, source=self.source, offset=offset, remedy=REMEDY)


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
