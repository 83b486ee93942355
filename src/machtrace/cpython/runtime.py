"""Finding CPython in a process: the image that has ``_PyRuntime``, and the version's layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from machtrace.cpython.layout import COOKIE, HEAD_SIZE, PythonLayout, layout_of, unsupported
from machtrace.errors import FormatError, MachtraceError, TargetError
from machtrace.formats.elf.contents import ElfContents, ElfFileContents, ElfMemoryContents
from machtrace.formats.elf.dynamic import dynamic_symbol_tables
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.options import WITHOUT_PYTHON

_RUNTIME = "_PyRuntime"
_VERSION = "Py_Version"
_SECTION = ".PyRuntime"
"""Since 3.13 it is a section of its own, which is left where symbols are stripped."""

_FIRST_IMAGES = 2
"""Images whose exports are searched before any file: the program and libpython."""
_WORD = Struct("<Q")
_WIDE = 8
_SYMBOLS = (Struct("<4xI6xH"), Struct("<6xHQ8x"))
"""Value and section of an ``Elf32_Sym``, section and value of an ``Elf64_Sym``."""
_WIDE_SYMBOL = 24

_BEFORE_RUNTIME = re.compile(r"python(2\.\d|3\.[0-6])(?!\d)")
"""The names of images of versions that had no ``_PyRuntime``."""

FileOf = Callable[[BinaryImage], memoryview | bytes | None]
"""The bytes of an image's file; None if it cannot be had."""


@dataclass(frozen=True, slots=True)
class PythonRuntime:
    """A CPython in a process."""

    address: int
    """The address of its ``_PyRuntime`` (Avma)."""
    layout: PythonLayout
    image: BinaryImage


def find_runtime(
    images: Iterable[BinaryImage], memory: MemoryReader, file_of: FileOf, program: str
) -> PythonRuntime:
    """Find the CPython of a process; of several the one whose image is named after it.

    Args:
        images: the process's.
        memory: the process's.
        file_of: see :data:`FileOf`; called if an image's symbols are not in memory.
        program: the path of the program, which may have CPython in itself.

    Raises:
        TargetError: there is none.
        FormatError: its layout is not known.
        MemoryReadError: it is in memory that cannot be read.
    """
    ordered = sorted(images, key=lambda image: _unlikely(image, program))
    elf_images = [image for image in ordered if image.format is ImageFormat.ELF]
    # Files take longer: a program named python may have all of CPython in a library.
    searches = (
        *((image, _in_memory(image, memory)) for image in elf_images[:_FIRST_IMAGES]),
        *((image, None) for image in elf_images),
    )
    for image, known in searches:
        places = _places(image, memory, file_of) if known is None else known
        address = places.get(_RUNTIME)
        if address is None:
            continue
        if image.arch.pointer_size != _WIDE:
            raise FormatError(
                "32-bit CPython is not supported",
                source=image.path,
                offset=0,
                remedy=WITHOUT_PYTHON,
            )
        head = bytes(memory.read(Avma(address), HEAD_SIZE))
        version = None
        if not head.startswith(COOKIE) and _VERSION in places:
            version = _WORD.unpack(memory.read(Avma(places[_VERSION]), _WORD.size))[0]
        return PythonRuntime(address, layout_of(head, version, image.path), image)
    for image in ordered:
        if _BEFORE_RUNTIME.search(image.name):
            raise unsupported(image.path, None)
    raise TargetError(
        "no CPython found in the process",
        remedy=f"{WITHOUT_PYTHON}; before 3.13 a stripped interpreter cannot be read",
    )


def _unlikely(image: BinaryImage, program: str) -> tuple[bool, bool]:
    return "python" not in image.name, image.path != program


def _in_memory(image: BinaryImage, memory: MemoryReader) -> dict[str, int]:
    """Return the addresses (Avmas) of the names that the image exports; empty if unreadable."""
    try:
        return _exported(ElfMemoryContents(memory, image.load_address, image.path))
    except MachtraceError:
        return {}


def _places(image: BinaryImage, memory: MemoryReader, file_of: FileOf) -> dict[str, int]:
    """Return the addresses (Avmas) of the names; empty where the image has no CPython."""
    exported = _in_memory(image, memory)
    if _RUNTIME in exported or "python" not in image.name:
        return exported
    data = file_of(image)
    if data is None:
        return exported
    try:
        contents = ElfFileContents(data, image.path)
        return _in_file(contents, image.load_address - contents.image.header_svma)
    except MachtraceError:
        return exported


def _exported(contents: ElfMemoryContents) -> dict[str, int]:
    """Read the addresses from the dynamic symbols, which are in memory."""
    symbol = _SYMBOLS[contents.image.layout.pointer_size == _WIDE]
    tables = dynamic_symbol_tables(contents, symbol.size)
    if tables is None:
        return {}
    table, text = (bytes(part) for part in tables)
    addresses: dict[str, int] = {}
    for name in (_RUNTIME, _VERSION):
        rows = (
            row
            for offset in _offsets(text, name.encode() + b"\0")
            for row in _rows(table, symbol, offset)
        )
        values = [value for section, value in rows if section and value]
        if not values:
            return addresses
        addresses[name] = values[0] + contents.slide
    return addresses


def _rows(table: bytes, symbol: Struct, name: int) -> Iterator[tuple[int, int]]:
    """Yield section and value of the symbols whose name is at offset ``name``."""
    word = name.to_bytes(4, "little")
    at = table.find(word)
    while at >= 0:
        if at % symbol.size == 0 and at + symbol.size <= len(table):
            first, second = symbol.unpack_from(table, at)
            yield (first, second) if symbol.size == _WIDE_SYMBOL else (second, first)
        at = table.find(word, at + 1)


def _offsets(text: bytes, name: bytes) -> list[int]:
    """Return the offsets of names that end so: linkers let a name be the end of a longer one."""
    offsets: list[int] = []
    at = text.find(name)
    while at >= 0:
        offsets.append(at)
        at = text.find(name, at + 1)
    return offsets


def _in_file(contents: ElfContents, slide: int) -> dict[str, int]:
    """Read the addresses from the file's symbol table, or the section."""
    from machtrace.formats.elf.symtab import parse_symbols

    addresses: dict[str, int] = {}
    section = contents.image.section(_SECTION)
    if section is not None:
        addresses[_RUNTIME] = section.address + slide
        return addresses
    symbols = parse_symbols(contents)
    wanted = {_RUNTIME, _VERSION}
    for row, name in enumerate(symbols.names()):
        if name in wanted and symbols.rows["st_value"][row]:
            addresses[name] = int(symbols.rows["st_value"][row]) + slide
    return addresses
