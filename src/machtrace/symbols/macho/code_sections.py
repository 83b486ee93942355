"""The sections of a Mach-O that hold functions, and those that hold other code."""

from __future__ import annotations

from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.segments import S_SYMBOL_STUBS, Section
from machtrace.model.address import LAST_OFFSET

Ranges = tuple[tuple[int, int], ...]
"""The (start, end) of sections, as offsets from the header; by start."""


def holds_functions(section: Section) -> bool:
    """Whether a section has the code of functions, and not stubs and code that binds them."""
    if not section.is_code or not section.size or section.type == S_SYMBOL_STUBS:
        return False
    return section.name != "__stub_helper" and not is_objc_stubs(section)


def is_objc_stubs(section: Section) -> bool:
    """Whether it holds calls of ``objc_msgSend``, one for each selector."""
    return section.name == "__objc_stubs"


def function_sections(image: MachOImage) -> Ranges:
    """Return the sections that hold functions."""
    return _ranges(image, [section for section in image.code_sections if holds_functions(section)])


def named_sections(image: MachOImage) -> Ranges:
    """Return the sections in which anything has a name: functions and stubs.

    The code that binds stubs lazily, in ``__stub_helper``, is the linker's own.
    """
    sections = [section for section in image.code_sections if section.name != "__stub_helper"]
    return _ranges(image, sections)


def _ranges(image: MachOImage, sections: list[Section]) -> Ranges:
    base = image.header_svma
    return tuple(
        (section.address - base, min(section.end - base, LAST_OFFSET))
        for section in sections
        if section.address >= base
    )
