"""Exported symbols: the trie of LC_DYLD_EXPORTS_TRIE or LC_DYLD_INFO.

Source: ``mach-o/loader.h``, at ``struct dyld_info_command``. A node is a ULEB128 size, that many
bytes about the symbol that ends here (none if no symbol does), a count of children, and for each a
string to append to the name and the ULEB128 offset of its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from machtrace.errors import MachOError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.model.address import ImageOffset

EXPORT_SYMBOL_FLAGS_KIND_MASK = 0x03
EXPORT_SYMBOL_FLAGS_KIND_THREAD_LOCAL = 0x01
EXPORT_SYMBOL_FLAGS_KIND_ABSOLUTE = 0x02
EXPORT_SYMBOL_FLAGS_WEAK_DEFINITION = 0x04
EXPORT_SYMBOL_FLAGS_REEXPORT = 0x08
EXPORT_SYMBOL_FLAGS_STUB_AND_RESOLVER = 0x10

_NAMES_PER_BYTE = 256
"""Maximum size of all names together, in tries. Long common prefixes are a trie's point, but only a
synthetic one exceeds this."""
_MIN_ROOM = 1 << 16


class Export(NamedTuple):
    """One exported symbol."""

    name: str
    """The linkage name."""
    flags: int
    value: int
    """An :data:`ImageOffset`; a number if :attr:`is_absolute`; 0 if :attr:`is_reexport`."""
    resolver: ImageOffset | None = None
    """The offset of the function that picks the implementation; :attr:`value` is then its stub."""
    ordinal: int | None = None
    """The ordinal of a re-export's library, from 1."""
    imported_name: str = ""
    """A re-export's name in its library; empty if it is the same."""

    @property
    def is_reexport(self) -> bool:
        """Whether it is a symbol of another library."""
        return bool(self.flags & EXPORT_SYMBOL_FLAGS_REEXPORT)

    @property
    def is_weak(self) -> bool:
        """Whether another image's definition may replace it."""
        return bool(self.flags & EXPORT_SYMBOL_FLAGS_WEAK_DEFINITION)

    @property
    def is_absolute(self) -> bool:
        """Whether the value is a number, not an address."""
        kind = self.flags & EXPORT_SYMBOL_FLAGS_KIND_MASK
        return kind == EXPORT_SYMBOL_FLAGS_KIND_ABSOLUTE

    @property
    def is_thread_local(self) -> bool:
        """Whether the value is the address of a thread-local variable's descriptor."""
        kind = self.flags & EXPORT_SYMBOL_FLAGS_KIND_MASK
        return kind == EXPORT_SYMBOL_FLAGS_KIND_THREAD_LOCAL

    @property
    def is_stub(self) -> bool:
        """Whether :attr:`resolver` picks the implementation."""
        return bool(self.flags & EXPORT_SYMBOL_FLAGS_STUB_AND_RESOLVER)


def parse_exports(contents: MachOContents) -> tuple[Export, ...]:
    """Return all exports of an image, in the trie's order; empty without a trie.

    Raises:
        MachOError: the trie is not in the file, or malformed.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    place = contents.image.exports_trie
    if place is None:
        return ()
    trie = read_table(contents, place.offset, place.size, "the exports trie")
    return tuple(walk_exports_trie(trie, contents.source))


def find_export(contents: MachOContents, name: bytes) -> ImageOffset | None:
    """Return the offset of the linkage name ``name``; None if the image does not define it.

    Only the nodes on its path are read. Re-exports, absolute and thread-local symbols do not
    count.

    Raises:
        MachOError: the trie is not in the file, or a node on the path is malformed.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    place = contents.image.exports_trie
    if place is None or not place.size:
        return None
    trie = read_table(contents, place.offset, place.size, "the exports trie")
    cursor = ByteCursor(trie, source=contents.source, error=MachOError)
    rest = name
    while rest:
        size = cursor.uleb128()
        cursor.offset += size
        for _ in range(cursor.unsigned(1)):
            edge = cursor.c_string()
            child = cursor.uleb128()
            if edge and rest.startswith(edge):
                cursor.offset, rest = child, rest[len(edge) :]
                break
        else:
            return None
    size = cursor.uleb128()
    if not size:
        return None
    found = _export(cursor, name, cursor.offset + size)
    if found.is_reexport or found.is_absolute or found.is_thread_local:
        return None
    return ImageOffset(found.value)


def walk_exports_trie(trie: bytes | memoryview, source: str) -> Iterator[Export]:
    """Yield the exports in ``trie``, in the order of its nodes.

    Every node is visited once: a cycle would yield names without end.

    Raises:
        MachOError: a node is outside the trie, reached twice or truncated, or all names together
            are far longer than the trie.
    """
    data = bytes(trie)
    cursor = ByteCursor(data, source=source, error=MachOError)
    room = _MIN_ROOM + _NAMES_PER_BYTE * len(data)
    seen: set[int] = set()
    waiting = [(0, b"")] if data else []
    while waiting:
        cursor.offset, name = waiting.pop()
        if cursor.offset in seen:
            raise cursor.fail("a node of the exports trie is reached twice")
        seen.add(cursor.offset)
        size = cursor.uleb128()
        children_at = cursor.offset + size
        if size:
            yield _export(cursor, name, children_at)
        cursor.offset = children_at
        children = []
        for _ in range(cursor.unsigned(1)):
            end = data.find(b"\0", cursor.offset)
            if end < 0:
                raise cursor.fail("a name in the exports trie has no end")
            longer = name + data[cursor.offset : end]
            room -= len(longer)
            if room < 0:
                raise cursor.fail("the names in the exports trie are too long for its size")
            cursor.offset = end + 1
            children.append((cursor.uleb128(), longer))
        waiting += reversed(children)


def _export(cursor: ByteCursor, name: bytes, end: int) -> Export:
    spelt = name.decode("utf-8", "backslashreplace")
    flags = cursor.uleb128()
    number = cursor.uleb128()
    if flags & EXPORT_SYMBOL_FLAGS_REEXPORT:
        there = cursor.take(end - cursor.offset).partition(b"\0")[0]
        imported = there.decode("utf-8", "backslashreplace")
        return Export(spelt, flags, 0, ordinal=number, imported_name=imported)
    if flags & EXPORT_SYMBOL_FLAGS_STUB_AND_RESOLVER:
        return Export(spelt, flags, number, resolver=ImageOffset(cursor.uleb128()))
    return Export(spelt, flags, number)
