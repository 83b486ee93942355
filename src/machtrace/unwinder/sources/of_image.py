"""The rule sources of an image of any format.

The other format's module is not imported, nor what only its images need.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.formats.object_file import ObjectContents
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.unwinder.rule_cache import ImageRules


def image_rules(contents: ObjectContents, arch: Arch) -> ImageRules:
    """Return the rule sources of an image, best first.

    Sources whose tables are malformed or were not captured are skipped.
    """
    if contents.format is ImageFormat.ELF:
        from machtrace.unwinder.sources.of_elf import elf_rules

        return elf_rules(contents, arch)
    from machtrace.unwinder.sources.of_macho import macho_rules

    return macho_rules(contents, arch)


def merged_rules(copies: Sequence[ObjectContents], arch: Arch) -> ImageRules:
    """Return the rule sources of one image, of which there are several ``copies``, best first.

    A source that the first copy lacks is taken from the next. A copy that states another header
    address than the first is skipped: its addresses differ.
    """
    rules = [image_rules(contents, arch) for contents in copies]
    if not rules:
        return ImageRules()
    header = rules[0].header_svma
    compatible = [image for image in rules if image.header_svma == header]
    code = compatible[0].code
    for image in compatible[1:]:
        if code is not None and image.code is not None:
            code.add(image.code)
    return ImageRules(
        tuple(source for image in compatible for source in image.sources),
        header,
        next((image.code_check for image in compatible if image.code_check is not None), None),
        code,
    )
