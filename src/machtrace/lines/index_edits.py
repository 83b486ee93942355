"""What is changed in a debug file's headers, in memory, before an index is made of it.

The library that makes indices takes names from the symbol table, too: a label in the middle of a
function ends its lines there, a function's cold part gives its name to all of it, and what no
debug information describes is named after whatever symbol came before. Names by symbol are
:mod:`machtrace.symbols.table`'s; so the table is hidden from it. And it counts offsets
from the address that the first segment states, which need not be where the header is.
"""

from __future__ import annotations

from typing import TypeAlias

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import PT_DYNAMIC, PT_LOAD, SHT_SYMTAB
from machtrace.formats.macho.command_numbers import LC_SYMTAB
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.image import MachOImage

Edits: TypeAlias = tuple[tuple[int, bytes], ...]
"""Offsets in the file, or the slice, and what to put there; all within it."""

_NSYMS_OFFSET = 12
"""Of ``nsyms`` in a ``symtab_command``."""
_SH_TYPE_OFFSET = 4
_NOTHING = bytes(4)
"""No symbols; ``SHT_NULL``, ``PT_NULL``."""


def header_edits(contents: FileContents | ElfFileContents) -> Edits:
    """What to change in a file of these contents."""
    if isinstance(contents, FileContents):
        return _macho_edits(contents.image)
    return _elf_edits(contents.image)


def _macho_edits(image: MachOImage) -> Edits:
    return tuple(
        (command.offset + _NSYMS_OFFSET, _NOTHING) for command in image.commands_of(LC_SYMTAB)
    )


def _elf_edits(image: ElfImage) -> Edits:
    header, layout = image.header, image.layout
    edits = [
        (
            header.section_headers_offset + number * header.section_header_size + _SH_TYPE_OFFSET,
            _NOTHING,
        )
        for number, section in enumerate(image.sections)
        if section.type == SHT_SYMTAB
    ]
    first = True
    for number, segment in enumerate(image.segments):
        at = header.program_headers_offset + number * header.program_header_size
        if segment.type == PT_DYNAMIC:
            edits.append((at, _NOTHING))
        elif segment.type == PT_LOAD and first:
            first = False
            address = image.header_svma.to_bytes(
                layout.pointer_size, "little" if layout.little_endian else "big"
            )
            edits.append((at + (16 if layout.is_64 else 8), address))
    return tuple(edits)
