"""The images in a file's bytes, and the reasons why others cannot be stored."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import SHT_NOBITS, ElfType
from machtrace.formats.macho.fat import parse_rows
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.object_file import ObjectSlice, Signature, signature, sniff
from machtrace.formats.zip_archive import is_zip
from machtrace.frozen import dataclass
from machtrace.images.store_layout import FileKind, Identifier, unified_folder
from machtrace.model.image import ImageFormat

_KINDS = {
    FileType.EXECUTE: FileKind.EXECUTABLE,
    FileType.FVMLIB: FileKind.EXECUTABLE,
    FileType.PRELOAD: FileKind.EXECUTABLE,
    FileType.DYLIB: FileKind.EXECUTABLE,
    FileType.DYLINKER: FileKind.EXECUTABLE,
    FileType.BUNDLE: FileKind.EXECUTABLE,
    FileType.KEXT_BUNDLE: FileKind.EXECUTABLE,
    FileType.FILESET: FileKind.EXECUTABLE,
    FileType.GPU_EXECUTE: FileKind.EXECUTABLE,
    FileType.GPU_DYLIB: FileKind.EXECUTABLE,
    FileType.DSYM: FileKind.DEBUGINFO,
}


class SkipReason(Enum):
    """Why something was not stored; the value is shown in summaries."""

    NOT_AN_IMAGE = "no image"
    NO_IDENTIFIER = "without UUID or build-id"
    OBJECT_FILE = "object file"
    STATIC_LIBRARY = "static library"
    STUB = "stub library"
    CORE = "core"
    COLLISION = "other content under the same UUID"
    MALFORMED = "malformed"
    UNREADABLE = "unreadable"
    TOO_LARGE = "beyond a limit"
    TOO_DEEP = "too many archives in each other"
    ENCRYPTED = "encrypted archive member"
    LINK = "symbolic link out of the folder"

    @property
    def is_remarkable(self) -> bool:
        """Whether users want a line for each one in a folder."""
        return self not in (SkipReason.NOT_AN_IMAGE, SkipReason.OBJECT_FILE, SkipReason.STUB)

    @property
    def is_failure(self) -> bool:
        """Whether an image may have been lost, rather than that none exists."""
        return self in _FAILURES


_FAILURES = frozenset(
    {
        SkipReason.COLLISION,
        SkipReason.MALFORMED,
        SkipReason.UNREADABLE,
        SkipReason.TOO_LARGE,
        SkipReason.TOO_DEEP,
        SkipReason.ENCRYPTED,
    }
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was not stored."""

    source: str
    """The name for users; of an archive's member with the archive's name before it."""
    reason: SkipReason
    detail: str = ""
    """Facts beyond the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """One thin image: a file, or a slice of a fat one."""

    identifier: Identifier
    arch: str
    """As ``lipo`` prints it."""
    kind: FileKind
    format: ImageFormat
    data: memoryview
    """All bytes of the image."""


def may_hold_images(start: bytes) -> bool:
    """Whether a file that begins with ``start`` (8 bytes do) is worth unpacking."""
    return signature(start) is not None or is_zip(start)


def images_in(data: memoryview, source: str) -> tuple[list[ImageFile], list[Skipped]]:
    """Return the images in ``data``, and what could not be read. Raises nothing.

    Of a fat file, a malformed slice does not spoil the others.
    """
    kind = signature(data)
    if kind is Signature.STATIC_LIBRARY:
        return [], [_library(source)]
    if kind is None and not may_hold_images(bytes(data[:8])):
        return [], [Skipped(source, SkipReason.NOT_AN_IMAGE)]
    try:
        slices = sniff(data, source)
    except FormatError as error:
        if kind is Signature.FAT_MACHO and _is_fat_library(data, source):
            return [], [_library(source)]
        return [], [Skipped(source, SkipReason.MALFORMED, str(error))]
    names = [source if len(slices) == 1 else f"{source} ({part.arch_name})" for part in slices]
    found = [_image(part, name) for part, name in zip(slices, names, strict=True)]
    return (
        [one for one in found if isinstance(one, ImageFile)],
        [one for one in found if isinstance(one, Skipped)],
    )


def _library(source: str) -> Skipped:
    return Skipped(
        source, SkipReason.STATIC_LIBRARY, "its members are object files, which have no UUID"
    )


def _is_fat_library(data: memoryview, source: str) -> bool:
    """Whether the first slice of a fat file is an archive of object files."""
    try:
        first, *_ = parse_rows(data, source)
    except FormatError:
        return False
    return signature(data[first.offset : first.offset + 8]) is Signature.STATIC_LIBRARY


def _image(part: ObjectSlice, source: str) -> ImageFile | Skipped:
    try:
        file = replace(part, source=source).open()
    except (FormatError, MemoryReadError) as error:
        return Skipped(source, SkipReason.MALFORMED, str(error))
    if file.format is ImageFormat.ELF:
        return _elf(file.image, part.data, source)
    return _macho(file.image, part, source)


def _macho(image: MachOImage, part: ObjectSlice, source: str) -> ImageFile | Skipped:
    kind = _KINDS.get(image.header.filetype)
    if kind is None:
        return Skipped(source, _macho_reason(image.header.filetype))
    cut = _end(image, kind) - len(part.data)
    if cut > 0:
        return Skipped(source, SkipReason.MALFORMED, f"its last {cut} bytes are missing")
    if image.uuid is None or not image.uuid.int:
        return Skipped(
            source, SkipReason.NO_IDENTIFIER, f"a Mach-O {kind.value} for {part.arch_name}"
        )
    return ImageFile(
        identifier=image.uuid,
        arch=part.arch_name,
        kind=kind,
        format=ImageFormat.MACHO,
        data=part.data,
    )


def _macho_reason(filetype: FileType) -> SkipReason:
    if filetype is FileType.OBJECT:
        return SkipReason.OBJECT_FILE
    return SkipReason.CORE if filetype is FileType.CORE else SkipReason.STUB


def _end(image: MachOImage, kind: FileKind) -> int:
    """Return the end of the last segment in the file.

    A dSYM has only two segments in the file; the others state offsets in the binary.
    """
    segments = [
        segment
        for segment in image.segments
        if kind is FileKind.EXECUTABLE or segment.name in ("__DWARF", "__LINKEDIT")
    ]
    return max((one.fileoff + one.filesize for one in segments if one.filesize), default=0)


def _elf(image: ElfImage, data: memoryview, source: str) -> ImageFile | Skipped:
    if image.type is ElfType.CORE:
        return Skipped(source, SkipReason.CORE)
    if image.type is ElfType.RELOCATABLE:
        return Skipped(source, SkipReason.OBJECT_FILE)
    kind = FileKind.DEBUGINFO if _is_debug_file(image) else FileKind.EXECUTABLE
    reason = _elf_reason(image, kind, len(data))
    build_id = image.build_id
    if reason is not None or build_id is None:
        return Skipped(source, *(reason or _no_build_id(image, kind)))
    return ImageFile(
        identifier=build_id,
        arch=image.arch.value,
        kind=kind,
        format=ImageFormat.ELF,
        data=data,
    )


def _elf_reason(image: ElfImage, kind: FileKind, size: int) -> tuple[SkipReason, str] | None:
    """Return why it cannot be stored under its build-id; None if it can, or has none."""
    end = max((segment.offset + segment.file_size for segment in image.load_segments), default=0)
    if kind is FileKind.EXECUTABLE and end > size:
        return SkipReason.MALFORMED, f"its last {end - size} bytes are missing"
    if image.build_id is not None and unified_folder(image.build_id) is None:
        return SkipReason.NO_IDENTIFIER, "its build-id is too long or too short to be a name"
    return None if image.build_id and any(image.build_id.value) else _no_build_id(image, kind)


def _no_build_id(image: ElfImage, kind: FileKind) -> tuple[SkipReason, str]:
    return SkipReason.NO_IDENTIFIER, f"an ELF {kind.value} for {image.arch.value}"


def _is_debug_file(image: ElfImage) -> bool:
    """Whether ``objcopy --only-keep-debug`` made it: its code has addresses and no bytes."""
    code = [section for section in image.sections if section.is_executable and section.size]
    return bool(code) and all(one.type == SHT_NOBITS for one in code)
