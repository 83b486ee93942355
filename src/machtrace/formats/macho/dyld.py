"""dyld's list of images, and its other facts (``mach-o/dyld_images.h``).

``struct dyld_all_image_infos`` is in a section of dyld's data called ``__all_image_info``, where
xnu (``bsd/kern/mach_loader.c``: ``note_all_image_info_section``) and lldb find it. Fields that its
version lacks are None. Only the structure of 64-bit processes is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from struct import Struct
from uuid import UUID

from machtrace.errors import CoreFileError, MemoryReadError
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import SharedCache

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
    """The address of the header."""
    path: str
    """The path; empty if it was not captured."""


@dataclass(frozen=True, slots=True)
class DyldImages:
    """The images that dyld has loaded."""

    images: tuple[DyldImage, ...]
    """In dyld's order, the program first; dyld itself may be missing."""
    dyld: Avma | None
    """The address of dyld's own header."""


def find_image_infos(dyld: MachOMemoryContents) -> Avma | None:
    """Return the address of the list in a loaded dyld; None without the section."""
    for section in dyld.image.sections:
        if section.name == _SECTION:
            return Avma((section.address + dyld.slide) & ((1 << 64) - 1))
    return None


def read_dyld_images(
    memory: MemoryReader, infos: Avma, *, pointer_size: int, source: str
) -> DyldImages:
    """Return the list at ``infos``.

    Raises:
        MemoryReadError: the structure or the list was not captured.
        CoreFileError: the structure is invalid, or dyld was changing the list.
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
        # dyld clears the pointer while it changes the list.
        raise CoreFileError(
            f"dyld was changing its list of images at {infos:#x}", source=source, offset=0
        )
    rows = image.iter_unpack(memory.read(Avma(array), count * image.size))
    return DyldImages(
        tuple(DyldImage(Avma(address), read_path(memory, path)) for address, path, _ in rows),
        Avma(dyld) if dyld else None,
    )


def read_path(memory: MemoryReader, address: int) -> str:
    """Return the C string at ``address``; empty if it cannot be read.

    The memory after it may be missing, so it is read in steps.
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


_VERSION = Struct("<2I")  # version, infoArrayCount
_UUIDS = Struct("<2Q")  # uuidArrayCount, uuidArray
_UUIDS_AT, _UUIDS_SINCE = 88, 8
_CACHE_UUID_AT = 160  # since version 13
_LATER = Struct("<3Q")  # sharedCacheBaseAddress, infoArrayChangeTimestamp, dyldPath
_LATER_AT, _LATER_SINCE = 176, 15
_UUID_ROW = Struct("<Q16s")
_UUID_LIMIT = 1 << 16
_NO_UUID = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DyldProcess:
    """dyld's facts of its process."""

    version: int
    images: DyldImages
    uuids: Mapping[int, UUID] = field(default_factory=dict)
    """UUIDs by load address, of images outside the shared cache."""
    shared_cache: SharedCache | None = None
    """The shared cache, if the process has one and dyld states its address."""
    changed_at: int | None = None
    """``infoArrayChangeTimestamp``, which changes with the list; None if absent."""
    dyld_path: str = ""
    """dyld's own path; empty if absent."""


def read_dyld_process(memory: MemoryReader, infos: Avma, *, source: str) -> DyldProcess:
    """Return the structure at ``infos``.

    Raises:
        MemoryReadError: the structure or the list of images cannot be read.
        CoreFileError: the structure is invalid, or dyld was changing the list.
    """
    images = read_dyld_images(memory, infos, pointer_size=8, source=source)
    version, count = _VERSION.unpack(memory.read(infos, _VERSION.size))
    if count != len(images.images):
        raise CoreFileError(
            f"dyld changed its list of images at {infos:#x} meanwhile", source=source, offset=0
        )
    base, changed_at, path = _later(memory, infos, version)
    return DyldProcess(
        version=version,
        images=images,
        uuids=_uuids(memory, infos, version),
        shared_cache=_shared_cache(memory, infos, base),
        changed_at=changed_at,
        dyld_path=read_path(memory, path),
    )


def change_time(memory: MemoryReader, infos: Avma) -> int | None:
    """Return the current ``infoArrayChangeTimestamp``; None if the structure lacks it.

    Raises:
        MemoryReadError: the structure cannot be read.
    """
    version, _ = _VERSION.unpack(memory.read(infos, _VERSION.size))
    return _later(memory, infos, version)[1]


def shared_cache(memory: MemoryReader, infos: Avma) -> SharedCache | None:
    """Return the shared cache; None if the process has none or dyld does not state it.

    Raises:
        MemoryReadError: the structure cannot be read.
    """
    version, _ = _VERSION.unpack(memory.read(infos, _VERSION.size))
    return _shared_cache(memory, infos, _later(memory, infos, version)[0])


def _later(memory: MemoryReader, infos: Avma, version: int) -> tuple[int, int | None, int]:
    if version < _LATER_SINCE:
        return 0, None, 0
    base, changed_at, path = _LATER.unpack(memory.read(Avma(infos + _LATER_AT), _LATER.size))
    return base, changed_at, path


def _uuids(memory: MemoryReader, infos: Avma, version: int) -> dict[int, UUID]:
    """Return the images' UUIDs; unreadable ones are in the images' headers, too."""
    if version < _UUIDS_SINCE:
        return {}
    try:
        count, array = _UUIDS.unpack(memory.read(Avma(infos + _UUIDS_AT), _UUIDS.size))
        if not array or count > _UUID_LIMIT:
            return {}
        rows = memory.read(Avma(array), count * _UUID_ROW.size)
    except MemoryReadError:
        return {}
    return {
        address: UUID(bytes=raw)
        for address, raw in _UUID_ROW.iter_unpack(rows)
        if address and raw != _NO_UUID
    }


def _shared_cache(memory: MemoryReader, infos: Avma, base: int) -> SharedCache | None:
    if not base:
        return None
    raw = bytes(memory.read(Avma(infos + _CACHE_UUID_AT), len(_NO_UUID)))
    return SharedCache(Avma(base), None if raw == _NO_UUID else UUID(bytes=raw))
