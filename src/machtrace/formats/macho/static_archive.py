"""Static libraries: archives of object files, as ``ar`` and ``libtool -static`` write them.

The format is ``ar(5)``'s: a magic, then members, each with a header of 60 characters. BSD and
Apple write a long name before the member's contents, and ``#1/`` and its length in the header;
GNU and LLVM write ``/`` and the name's offset in a member called ``//``. A thin archive
(``!<thin>``, GNU's ``ar``) has the members' paths instead of their contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from machtrace.errors import MachOError
from machtrace.formats.macho.fat import is_fat, parse_rows
from machtrace.formats.macho.header import arch_of
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"
_HEADER = Struct("16s12s6s6s8s10s2s")
_HEADER_END = b"`\n"
_MAX_NAME_LENGTH = 1 << 12
_SYMBOL_TABLES = frozenset({"", "/", "/SYM64/"})
_BSD_SYMBOL_TABLE = "__.SYMDEF"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One object file of an archive."""

    name: str
    """The name; in a thin archive the path, relative to the archive's folder."""
    modified: int
    """Seconds since 1970; 0 in a reproducible archive."""
    data: memoryview | None
    """The contents; None in a thin archive."""


def is_static_archive(data: bytes | memoryview) -> bool:
    """Return whether ``data`` starts like an archive, thin or not."""
    return bytes(data[: len(MAGIC)]) in (MAGIC, THIN_MAGIC)


def archive_members(data: bytes | memoryview, source: str) -> Iterator[ArchiveMember]:
    """Yield the members of an archive in its order, without tables of symbols and names.

    Raises:
        MachOError: it is not an archive; or, after the members before it, a member is malformed
            or truncated.
    """
    view = memoryview(data)
    if not is_static_archive(view):
        raise MachOError("not a static library", source=source, offset=0)
    is_thin = bytes(view[: len(MAGIC)]) == THIN_MAGIC
    long_names = memoryview(b"")
    at = len(MAGIC)
    while at + _HEADER.size <= len(view):
        raw_name, date, _, _, _, raw_size, end = _HEADER.unpack_from(view, at)
        size = _number(raw_size)
        if end != _HEADER_END or size is None:
            raise MachOError("not a member's header", source=source, offset=at)
        name = raw_name.decode("utf-8", "surrogateescape").rstrip(" ")
        start = at + _HEADER.size
        is_table = name in _SYMBOL_TABLES or name == "//"
        stored = 0 if is_thin and not is_table else size
        if start + stored > len(view):
            raise MachOError(
                f"a member of {size} bytes, {len(view) - start} are left", source=source, offset=at
            )
        content = view[start : start + stored]
        at = start + stored + stored % 2
        if name == "//":
            long_names = content
        if is_table:
            continue
        name, content = _named(name, content, long_names)
        if not name.startswith(_BSD_SYMBOL_TABLE):
            yield ArchiveMember(name, _number(date) or 0, None if is_thin else content)


def part_for(data: memoryview, arch: Arch, source: str) -> memoryview:
    """Return the slice for ``arch`` of a fat file of static libraries; any other data unchanged.

    Raises:
        MachOError: the fat header is truncated, or no slice is for ``arch``.
    """
    if not is_fat(data):
        return data
    for row in parse_rows(data, source):
        if arch_of(row.cputype, row.cpusubtype) is arch:
            return data[row.offset : row.offset + row.size]
    raise MachOError(f"nothing in it is for {arch.value}", source=source, offset=0)


def _number(field: bytes) -> int | None:
    digits = field.strip()
    return int(digits) if digits.isdigit() else None


def _named(name: str, content: memoryview, long_names: memoryview) -> tuple[str, memoryview]:
    """Return the full name of a member, and its contents without the name."""
    if name.startswith("#1/"):
        length = _number(name[3:].encode("utf-8", "surrogateescape")) or 0
        length = min(length, len(content))
        head = bytes(content[: min(length, _MAX_NAME_LENGTH)])
        return head.rstrip(b"\0").decode("utf-8", "surrogateescape"), content[length:]
    if name.startswith("/"):
        start = _number(name[1:].encode("utf-8", "surrogateescape"))
        if start is None:
            return name, content
        found = bytes(long_names[start : start + _MAX_NAME_LENGTH]).partition(b"\n")[0]
        return found.rstrip(b"\0").removesuffix(b"/").decode("utf-8", "surrogateescape"), content
    return name.removesuffix("/"), content
