"""Go's table of functions in the images that have it."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.gopclntab import GoFunctions
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.segments import Section
from machtrace.model.address import Svma

SECTION = "__gopclntab"
"""The section of a Mach-O; ``.gopclntab`` of an ELF, where it may be among relocated data."""
_ELF_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
_MODULE = "__go_module"
_PAGE = 4096
_TEXT_WORD = 22
"""``moduledata.text`` of Go 1.26, counted in words: a pointer, five slices and a slice of functions
of three words each, three pointers and two bounds come before it."""


def macho_go_functions(
    contents: MachOContents, pointers: Callable[[], Pointers]
) -> GoFunctions | None:
    """Return the functions of a Go program in a Mach-O; None if it has no table of them.

    ``pointers`` is called only if fixups hide them.

    Raises:
        FormatError: the table is malformed.
        MemoryReadError: it cannot be read.
    """
    section = _section(contents, SECTION)
    if section is None or not section.size:
        return None
    data = contents.read_svma(section.address, section.size)
    return GoFunctions(
        data, f"{contents.source} {SECTION}", text_start=_text_start(contents, pointers)
    )


def elf_go_functions(contents: ElfFileContents) -> GoFunctions | None:
    """Return the functions of a Go program in an ELF file; None if it has no table of them.

    None, too, if the table does not state where code begins, and Go's is not all of ``.text``.

    Raises:
        FormatError: the table is malformed.
        MemoryReadError: it cannot be read.
    """
    sections = {section.name: section for section in contents.image.sections}
    for name in _ELF_SECTIONS:
        section = sections.get(name)
        if section is not None and section.size:
            data = contents.read_svma(Svma(section.address), section.size)
            text = sections.get(".text")
            start = None if text is None else text.address
            functions = GoFunctions(data, f"{contents.source} {name}", text_start=start)
            if text is None or functions.states_text_start or not len(functions):
                return functions
            # Other linkers put code of C before Go's, and no section states where Go's begins.
            behind = text.address + text.size - int(functions.ends[-1])
            return functions if 0 <= behind < _PAGE else None
    return None


def _section(contents: MachOContents, name: str) -> Section | None:
    return next((section for section in contents.image.sections if section.name == name), None)


def _text_start(contents: MachOContents, pointers: Callable[[], Pointers]) -> int | None:
    """Return where Go's code begins: by its module data, else where code begins."""
    text = _section(contents, "__text")
    module = _section(contents, _MODULE)
    if module is not None:
        size = 8 if contents.image.header.is_64 else 4
        place = Svma(module.address + _TEXT_WORD * size)
        try:
            start = int.from_bytes(contents.read_svma(place, size), "little")
            if text is not None and Svma(start) in text:
                return start  # as Go's own linker leaves it; of large programs fixups take seconds
            target = pointers().target(place)
        except (FormatError, MemoryReadError):
            target = None
        if target is not None and contents.image.section_at(target) is not None:
            return target
    return None if text is None else text.address
