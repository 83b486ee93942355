"""The loader's list of loaded objects, which it keeps in memory for debuggers.

The auxiliary vector has the address of the program headers; one of them is the dynamic section,
whose ``DT_DEBUG`` entry the loader points to ``struct r_debug``; that has the first ``struct
link_map`` (``link.h`` of glibc and musl, which agree).
"""

from __future__ import annotations

from struct import Struct

from machtrace.errors import MemoryReadError
from machtrace.formats.elf.core.notes import auxiliary_values
from machtrace.formats.elf.structs import DT_NULL, PT_DYNAMIC, ElfLayout
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader

AT_PHDR = 3
AT_PHENT = 4
AT_PHNUM = 5
AT_ENTRY = 9
AT_EXECFN = 31
AT_SYSINFO_EHDR = 33

PT_PHDR = 6
DT_DEBUG = 21

_MAX_OBJECTS = 4096
_MAX_HEADERS = 128
_MAX_ENTRIES = 1024
_MAX_NAME_LENGTH = 4096
_NAME_STEP = 64
"""Bytes of a name read at once; pages are a multiple of it, so no read crosses one needlessly."""


@dataclass(frozen=True, slots=True)
class LoadedObject:
    """A ``struct link_map``."""

    bias: int
    """``l_addr``: the difference between the addresses in memory and those in the file."""
    dynamic: Avma
    """``l_ld``: the address of its dynamic section."""
    name: str
    """Empty for the program."""


def loaded_objects(
    memory: MemoryReader, vector: bytes, layout: ElfLayout
) -> tuple[LoadedObject, ...]:
    """Return the objects in the loader's list, in order; empty without a list. Raises nothing.

    Args:
        memory: the process's; the reads are those that a debugger needs for the same list.
        vector: the auxiliary vector.
        layout: the process's width and byte order.
    """
    try:
        first = _first_object(memory, vector, layout)
    except MemoryReadError:
        return ()
    words = Struct(layout.byte_order + ("5Q" if layout.is_64 else "5I"))
    objects: list[LoadedObject] = []
    seen: set[int] = set()
    at = first
    while at and at not in seen and len(objects) < _MAX_OBJECTS:
        seen.add(at)
        try:
            bias, name, dynamic, following, _ = words.unpack(memory.read(Avma(at), words.size))
        except MemoryReadError:
            break
        objects.append(LoadedObject(bias, Avma(dynamic), read_string(memory, Avma(name))))
        at = following
    return tuple(objects)


def read_string(memory: MemoryReader, address: Avma) -> str:
    """Return the C string at ``address``; empty if it cannot be read. Raises nothing."""
    text = bytearray()
    while len(text) < _MAX_NAME_LENGTH:
        at = address + len(text)
        try:
            part = bytes(memory.read(Avma(at), _NAME_STEP - at % _NAME_STEP))
        except MemoryReadError:
            return ""
        head, end, _ = part.partition(b"\0")
        text += head
        if end:
            return text.decode("utf-8", "surrogateescape")
    return ""


def _first_object(memory: MemoryReader, vector: bytes, layout: ElfLayout) -> int:
    values = dict(auxiliary_values(vector, layout))
    headers_at, count = values.get(AT_PHDR, 0), values.get(AT_PHNUM, 0)
    header = layout.program_header
    if not headers_at or values.get(AT_PHENT) != header.size or count > _MAX_HEADERS:
        return 0
    bias = 0
    dynamic: tuple[int, int] | None = None
    for fields in header.iter_unpack(memory.read(Avma(headers_at), count * header.size)):
        kind, address = fields[0], fields[3 if layout.is_64 else 2]
        if kind == PT_PHDR:
            bias = headers_at - address
        elif kind == PT_DYNAMIC:
            dynamic = address, fields[6 if layout.is_64 else 5]
    if dynamic is None:
        return 0
    entry, word = layout.dynamic, layout.pointer_size
    address, size = dynamic
    size = min(size // entry.size, _MAX_ENTRIES) * entry.size
    for tag, value in entry.iter_unpack(memory.read(Avma(address + bias), size)):
        if tag == DT_DEBUG and value:
            # int version, padded; r_map; r_brk; r_state, padded; r_ldbase.
            debug = memory.read(Avma(value), 5 * word)
            return int.from_bytes(debug[word : 2 * word], "little")
        if tag == DT_NULL:
            break
    return 0
