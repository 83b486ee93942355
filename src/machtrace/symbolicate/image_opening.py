"""Opening an image for its names: from its files, else from the memory of who has it loaded."""

from __future__ import annotations

from machtrace.elf.contents import ElfMemoryContents
from machtrace.macho.contents import MemoryContents
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.debug_file import DebugFile
from machtrace.symbolicate.image_source import ImageSource, in_memory
from machtrace.symbolicate.image_symbols import ImageSymbols


def open_image(
    files: ImageSource, image: BinaryImage, memory: MemoryReader | None
) -> ImageSymbols | FrameStatus:
    """The names of an image, or why they cannot be had. Raises nothing.

    Args:
        files: where files are looked for.
        image: what is wanted.
        memory: of the process that has it loaded, if any.
    """
    found = files.files(image)
    binary = found.binary
    others = [one.contents for one in (found.symbols, found.lines) if isinstance(one, DebugFile)]
    if isinstance(binary, FrameStatus):
        loaded = _loaded(image, memory)
        if loaded is None and not others:
            # A file that would not do says more than memory that was not captured.
            return found.status
        return ImageSymbols(others.pop(0) if loaded is None else loaded, others)
    distinct = {one.source: one for one in others if one.source != binary.source}
    return ImageSymbols(binary, list(distinct.values()), instead=lambda: _loaded(image, memory))


def _loaded(
    image: BinaryImage, memory: MemoryReader | None
) -> MemoryContents | ElfMemoryContents | None:
    found = None if memory is None else in_memory(image, memory)
    return found if isinstance(found, MemoryContents | ElfMemoryContents) else None
