"""Which ways of unwinding an image offers, in the order that they are asked.

What is for other formats and processors is not imported: most of it brings tables, and a library.
"""

from __future__ import annotations

from machtrace.formats.object_file import ObjectContents
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.unwinder.rule_cache import ImageRules


def image_rules(contents: ObjectContents, arch: Arch) -> ImageRules:
    """The rule sources of an image, best first.

    A kind whose tables are malformed, or were not captured, is left out.
    """
    if contents.format is ImageFormat.ELF:
        from machtrace.unwinder.sources.of_elf import elf_rules

        return elf_rules(contents, arch)
    from machtrace.unwinder.sources.of_macho import macho_rules

    return macho_rules(contents, arch)
