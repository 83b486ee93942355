"""dyld's own list of images: ``struct dyld_all_image_infos`` (``mach-o/dyld_images.h``).

dyld keeps it in a section of its data called ``__all_image_info``; xnu finds it there
(``bsd/kern/mach_loader.c``: ``note_all_image_info_section``), and so does lldb.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from machtrace.errors import CoreFileError, MemoryReadError
from machtrace.formats.macho.contents import MemoryContents
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader

_SECTION = "__all_image_info"

# version, infoArrayCount, infoArray, notification, two bools, dyldImageLoadAddress
_INFOS_64 = Struct("<2I2Q8xQ")
_INFOS_32 = Struct("<2I2I4xI")
# imageLoadAddress, imageFilePath, imageFileModDate
_IMAGE_64 = Struct("<3Q")
_IMAGE_32 = Struct("<3I")

_IMAGE_LIMIT = 1 << 16
_VERSION_LIMIT = 1 << 10
_PATH_LIMIT = 1024
"""``MAXPATHLEN``."""
_PATH_STEP = 64


@dataclass(frozen=True, slots=True)
class DyldImage:
    """``struct dyld_image_info``."""

    load_address: Avma
    """Of its header."""
    path: str
    """Empty where it was not captured."""


@dataclass(frozen=True, slots=True)
class DyldImages:
    """What dyld had loaded."""

    images: tuple[DyldImage, ...]
    """In dyld's order: the program first. dyld itself may be missing."""
    dyld: Avma | None
    """Where dyld's own header is."""


def find_image_infos(dyld: MemoryContents) -> Avma | None:
    """Where dyld, as it is loaded, keeps its list; None where it has no such section."""
    for section in dyld.image.sections:
        if section.name == _SECTION:
            return Avma((section.address + dyld.slide) & ((1 << 64) - 1))
    return None


def read_dyld_images(
    memory: MemoryReader, infos: Avma, *, pointer_size: int, source: str
) -> DyldImages:
    """The list at ``infos``.

    Raises:
        MemoryReadError: the structure or the list was not captured.
        CoreFileError: there is no such structure, or dyld was about to change the list.
    """
    wide = pointer_size == 8  # noqa: PLR2004 (bytes)
    layout, image = (_INFOS_64, _IMAGE_64) if wide else (_INFOS_32, _IMAGE_32)
    version, count, array, _, dyld = layout.unpack(memory.read(infos, layout.size))
    if not 0 < version < _VERSION_LIMIT or count > _IMAGE_LIMIT:
        raise CoreFileError(
            f"no list of dyld's at {infos:#x}: version {version}, {count} images",
            source=source,
            offset=0,
        )
    if not array:
        # dyld takes the pointer away while it changes the list.
        raise CoreFileError(
            f"dyld was changing its list of images at {infos:#x}", source=source, offset=0
        )
    rows = image.iter_unpack(memory.read(Avma(array), count * image.size))
    return DyldImages(
        tuple(DyldImage(Avma(address), read_path(memory, path)) for address, path, _ in rows),
        Avma(dyld) if dyld else None,
    )


def read_path(memory: MemoryReader, address: int) -> str:
    """The path at ``address``, empty where there is none or it cannot be read.

    It is a C string at ``address``; what is behind it may not be there, so it is read in
    steps.
    """
    if not address:
        return ""
    text = b""
    step = _PATH_STEP
    while len(text) < _PATH_LIMIT and b"\0" not in text[-step:]:
        at = address + len(text)
        try:
            text += bytes(memory.read(Avma(at), step - at % step))
        except MemoryReadError:
            if step == 1:
                return ""
            step = 1
    return text.partition(b"\0")[0].decode("utf-8", "replace")
