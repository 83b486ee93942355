"""Which ways of unwinding an image offers, in the order that they are asked.

What is for other formats and processors is not imported: most of it brings tables, and a library.
"""

from __future__ import annotations

from machtrace.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.macho.contents import FileContents, MemoryContents
from machtrace.model.arch import Arch
from machtrace.unwinder.process_rules import ImageRules

Contents = FileContents | MemoryContents | ElfFileContents | ElfMemoryContents
"""The bytes of an image of any format."""


def image_rules(contents: Contents, arch: Arch) -> ImageRules:
    """The rule sources of an image, best first.

    A kind whose tables are malformed, or were not captured, is left out.
    """
    if isinstance(contents, ElfFileContents | ElfMemoryContents):
        from machtrace.unwinder.elf_rules import elf_rules

        return elf_rules(contents, arch)
    from machtrace.unwinder.macho_rules import macho_rules

    return macho_rules(contents, arch)
