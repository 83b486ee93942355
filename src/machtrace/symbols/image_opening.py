"""Opening an image for its names: from its files, else from the memory of who has it loaded."""

from __future__ import annotations

from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.macho.contents import FileContents, MemoryContents
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus
from machtrace.images.debug_file import DebugFile
from machtrace.images.resolver import ImageResolver, in_memory
from machtrace.symbols.image_symbols import ImageSymbols


def open_image(
    files: ImageResolver, image: BinaryImage, memory: MemoryReader | None
) -> ImageSymbols | FrameStatus:
    """The names of an image, or why they cannot be had. Raises nothing.

    Args:
        files: where files are looked for.
        image: what is wanted.
        memory: of the process that has it loaded, if any.
    """
    binary = files.file(image)
    if not isinstance(binary, FrameStatus):
        source = binary.source
        return ImageSymbols(
            binary,
            others=lambda: twins(files, image, source),
            instead=lambda: _loaded(image, memory),
        )
    others, loaded = twins(files, image, None), _loaded(image, memory)
    if loaded is not None:
        return ImageSymbols(loaded, others=lambda: others)
    if others:
        return ImageSymbols(others[0], others=lambda: others[1:])
    # A file that would not do says more than memory that was not captured.
    return binary


def twins(
    files: ImageResolver, image: BinaryImage, source: str | None
) -> list[FileContents | ElfFileContents]:
    """The files that may have more symbols of an image than the one called ``source``."""
    found = files.files(image)
    others = [one.contents for one in (found.symbols, found.lines) if isinstance(one, DebugFile)]
    return list({one.source: one for one in others if one.source != source}.values())


def _loaded(
    image: BinaryImage, memory: MemoryReader | None
) -> MemoryContents | ElfMemoryContents | None:
    found = None if memory is None else in_memory(image, memory)
    return found if isinstance(found, MemoryContents | ElfMemoryContents) else None
