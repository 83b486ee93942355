"""Object files of every format: what a file's first bytes announce, and the images in it.

A format's modules are imported for its images only: most processes have images of one format.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.structs import MAGIC as ELF_MAGIC
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus

if TYPE_CHECKING:
    from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
    from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
    from machtrace.formats.macho.fat import FatSlice

ObjectFile: TypeAlias = "MachOFileContents | ElfFileContents"
"""An image in a file."""
LoadedObject: TypeAlias = "MachOMemoryContents | ElfMemoryContents"
"""An image in a target's memory."""
ObjectContents: TypeAlias = "ObjectFile | LoadedObject"
"""An image's bytes; ``format`` and ``is_loaded`` discriminate between the four classes."""


class Signature(Enum):
    """A kind of file, by its first bytes."""

    MACHO = auto()
    FAT_MACHO = auto()
    ELF = auto()
    STATIC_LIBRARY = auto()

    @property
    def has_images(self) -> bool:
        """Whether :func:`sniff` returns images of such a file."""
        return self is not Signature.STATIC_LIBRARY


def signature(start: bytes | memoryview) -> Signature | None:
    """Return what a file's first 8 bytes announce, or None; nothing is parsed."""
    if bytes(start[: len(ELF_MAGIC)]) == ELF_MAGIC:
        return Signature.ELF
    from machtrace.formats.macho.fat import is_fat
    from machtrace.formats.macho.header import is_macho

    if is_macho(start):
        return Signature.MACHO
    if is_fat(start):
        return Signature.FAT_MACHO
    from machtrace.formats.macho.static_archive import is_static_archive

    return Signature.STATIC_LIBRARY if is_static_archive(start) else None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectSlice:
    """One image of a file, whose headers are not parsed yet: one bad slice spoils no other."""

    format: ImageFormat
    arch_name: str
    """The architecture, as ``lipo`` prints it."""
    data: memoryview
    """The image's bytes: of a fat file, only the slice."""
    source: str
    """The name in errors."""
    fat: FatSlice | None
    """The slice of a Mach-O, also of a thin one."""

    @property
    def offset(self) -> FileOffset:
        """The image's offset in the file."""
        return FileOffset(0) if self.fat is None else self.fat.offset

    def open(self) -> ObjectFile:
        """Parse the headers.

        Raises:
            FormatError: they are malformed.
        """
        if self.format is ImageFormat.ELF:
            from machtrace.formats.elf.contents import ElfFileContents

            return ElfFileContents(self.data, self.source)
        from machtrace.formats.macho.contents import MachOFileContents

        return MachOFileContents(self.data, self.source)


def sniff(data: bytes | memoryview, source: str) -> tuple[ObjectSlice, ...]:
    """Return the images in a file: an ELF, a Mach-O, or the slices of a fat Mach-O in its order.

    Raises:
        FormatError: the file is none of these, or its first header is malformed.
    """
    view = memoryview(data)
    if signature(view) is Signature.ELF:
        from machtrace.formats.elf.headers import read_header

        arch = read_header(view, source).arch.value
        return (ObjectSlice(ImageFormat.ELF, arch, view, source, None),)
    from machtrace.formats.macho.fat import parse_slices

    return tuple(
        ObjectSlice(ImageFormat.MACHO, part.arch_name, part.data, source, part)
        for part in parse_slices(view, source)
    )


def linked_image(file: ObjectFile, *, path: str | None = None) -> BinaryImage:
    """Return the image in ``file`` as if it were loaded at the address it was linked for.

    Args:
        file: the image's contents, whose source is its path on this machine.
        path: the image's path; None if that is the file's.

    Raises:
        MachOError: the architecture is unknown.
    """
    image = file.image
    return BinaryImage(
        path=file.source if path is None else path,
        uuid=image.identifier,
        arch=image.arch,
        format=file.format,
        load_address=Avma(image.header_svma),
        header_svma=image.header_svma,
        size=image.size,
        local_path=file.source,
    )


def in_memory(image: BinaryImage, memory: MemoryReader) -> LoadedObject | FrameStatus:
    """Return the image as the target has it loaded, or why it cannot be read. Raises nothing."""
    source = image.path or f"image at {image.load_address:#x}"
    try:
        if image.format is ImageFormat.ELF:
            from machtrace.formats.elf.contents import ElfMemoryContents

            return ElfMemoryContents(memory, image.load_address, source)
        from machtrace.formats.macho.contents import MachOMemoryContents

        return MachOMemoryContents(memory, image.load_address, source)
    except MemoryReadError:
        return FrameStatus.MISSING_FILE
    except FormatError:
        return FrameStatus.MALFORMED_FILE
