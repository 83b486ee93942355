"""``LC_NOTE`` commands of cores: address bits, the main binary, lists of images.

``struct note_command`` (``mach-o/loader.h``) has an owner and a range of the file, whose format is
the owner's. Owners and formats are those of xnu (``osfmk/kdp/core_notes.h``) and lldb
(``ObjectFileMachO.cpp``). Numbers are little-endian, structs packed, and file offsets absolute.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Any
from uuid import UUID

from machtrace.errors import CoreFileError
from machtrace.formats.macho.load_commands import LoadCommand
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset

ALL_IMAGE_INFOS = "all image infos"
PROCESS_METADATA = "process metadata"
MAIN_BINARY = "main bin spec"
LOAD_BINARY = "load binary"
ADDRESSABLE_BITS = "addrable bits"

NOTE_COMMAND = Struct("<2I16s2Q")
"""``cmd``, ``cmdsize``, ``data_owner``, ``offset``, ``size``."""
ADDRESSABLE_BITS_3 = Struct("<2IQ")
"""``version``, ``addressing_bits``, unused."""
NOT_KNOWN = (1 << 64) - 1
"""The value of an unknown address, slide or offset."""

_VERSION = Struct("<I")
_ADDRESSABLE_BITS_4 = Struct("<3I")
_MAIN_BINARY_1 = Struct("<2IQ16s2I")
_MAIN_BINARY_2 = Struct("<2I2Q16s2I")
_POINTER_BITS = 64


@dataclass(frozen=True, slots=True)
class Note:
    """One LC_NOTE: its owner and its range in the file."""

    owner: str
    offset: FileOffset
    size: int
    """In bytes."""


class BinaryKind(Enum):
    """The kind of binary in a "main bin spec" note; the value is the note's number."""

    UNSPECIFIED = 0
    KERNEL = 1
    USER = 2
    """A process; the address is dyld's."""
    STANDALONE = 3
    USER_IMAGE_INFOS = 4
    """A process; the address is that of ``dyld_all_image_infos``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainBinary:
    """A "main bin spec" note."""

    kind: BinaryKind
    address: Avma | None
    slide: int | None
    """The slide: what was added to stated addresses."""
    uuid: UUID | None
    page_size: int | None
    """In bytes."""
    platform: int | None
    """A ``PLATFORM_`` constant (``mach-o/loader.h``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressableBits:
    """The address bits of a pointer, in the lower and the upper half of memory."""

    low: int
    high: int


def parse_note(command: LoadCommand, source: str) -> Note:
    """Return the owner and range of an LC_NOTE.

    Raises:
        CoreFileError: the command is too short.
    """
    if len(command.data) < NOTE_COMMAND.size:
        raise CoreFileError(
            f"LC_NOTE takes {NOTE_COMMAND.size} bytes, its cmdsize is {len(command.data)}",
            source=source,
            offset=command.offset,
        )
    _, _, owner, offset, size = NOTE_COMMAND.unpack_from(command.data)
    # Sixteen bytes without a NUL: "process metadata" fills them.
    return Note(text_of(owner), FileOffset(offset), size)


def parse_main_binary(file: memoryview, note: Note, source: str) -> MainBinary:
    """Parse a "main bin spec" note of ``file``, the whole core; versions 1 and 2.

    Raises:
        CoreFileError: it is truncated, or of another version.
    """
    (version,) = unpack_note(_VERSION, file, note, source)
    slide = NOT_KNOWN
    platform = 0
    match version:
        case 1:
            _, kind, address, uuid, log2_page, _ = unpack_note(_MAIN_BINARY_1, file, note, source)
        case 2:
            _, kind, address, slide, uuid, log2_page, platform = unpack_note(
                _MAIN_BINARY_2, file, note, source
            )
        case _:
            raise unknown_version(note, version, source)
    try:
        known_kind = BinaryKind(kind)
    except ValueError:
        known_kind = BinaryKind.UNSPECIFIED
    return MainBinary(
        kind=known_kind,
        address=known_address(address),
        slide=None if slide == NOT_KNOWN else slide,
        uuid=known_uuid(uuid),
        page_size=1 << log2_page if 0 < log2_page < _POINTER_BITS else None,
        platform=platform or None,
    )


def parse_addressable_bits(file: memoryview, note: Note, source: str) -> AddressableBits:
    """Parse an "addrable bits" note of ``file``, the whole core; versions 3 and 4.

    Raises:
        CoreFileError: it is truncated, of another version, or out of range.
    """
    (version,) = unpack_note(_VERSION, file, note, source)
    match version:
        case 3:
            _, low, _ = unpack_note(ADDRESSABLE_BITS_3, file, note, source)
            high = low
        case 4:
            _, low, high = unpack_note(_ADDRESSABLE_BITS_4, file, note, source)
        case _:
            raise unknown_version(note, version, source)
    if not (0 < low <= _POINTER_BITS and 0 < high <= _POINTER_BITS):
        raise CoreFileError(
            f"pointers with {low} and {high} bits of address", source=source, offset=note.offset
        )
    return AddressableBits(low=low, high=high)


def note_payload(file: memoryview, note: Note, source: str) -> memoryview:
    """Return the note's bytes.

    Raises:
        CoreFileError: they go beyond the end of the file.
    """
    if note.offset + note.size > len(file):
        raise CoreFileError(
            f"note {note.owner!r} of {note.size} bytes goes beyond the end of the file, "
            f"{len(file)} bytes",
            source=source,
            offset=note.offset,
        )
    return file[note.offset : note.offset + note.size]


def unpack_note(layout: Struct, file: memoryview, note: Note, source: str) -> tuple[Any, ...]:
    """Return the fields at the start of the note's bytes.

    Raises:
        CoreFileError: the note is shorter, or beyond the end of the file.
    """
    data = note_payload(file, note, source)
    if len(data) < layout.size:
        raise CoreFileError(
            f"note {note.owner!r} takes {layout.size} bytes, it has {len(data)}",
            source=source,
            offset=note.offset,
        )
    return layout.unpack_from(data)


def unknown_version(note: Note, version: int, source: str) -> CoreFileError:
    """Return the error for a note of an unknown version."""
    return CoreFileError(
        f"note {note.owner!r} is of version {version}, which is not known here",
        source=source,
        offset=note.offset,
    )


def known_address(value: int) -> Avma | None:
    """Return ``value``; None for the unknown value."""
    return None if value == NOT_KNOWN else Avma(value)


def known_uuid(value: bytes) -> UUID | None:
    """Return ``value``; None for zero."""
    return UUID(bytes=value) if any(value) else None


def text_of(field: bytes) -> str:
    """Return a C string up to its NUL or the end."""
    return field.partition(b"\0")[0].decode("utf-8", "replace")


IMAGE_INFOS_HEADER = Struct("<2IQ2I")
"""``version``, ``imgcount``, ``entries_fileoff``, ``entries_size``, unused."""
IMAGE_ENTRY = Struct("<Q16s2Q2I")
"""``filepath_offset``, ``uuid``, ``load_address``, ``seg_addrs_offset``, ``segment_count``,
currently executing."""
SEGMENT_ADDRESS = Struct("<16s2Q")
"""``segname``, ``vmaddr``, unused."""

_LOAD_BINARY_1 = Struct("<I16s2Q")
_PATH_LIMIT = 4096
"""Darwin's paths end after 1,024 bytes (``MAXPATHLEN``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedImage:
    """An image that a note lists."""

    path: str
    """The path; empty if absent."""
    uuid: UUID | None
    load_address: Avma | None
    """The address of the header."""
    slide: int | None = None
    """The slide: what was added to stated addresses."""
    segments: tuple[tuple[str, Avma], ...] = ()
    """Names and actual addresses of segments."""


def parse_image_infos(
    file: memoryview, note: Note, source: str
) -> tuple[tuple[NotedImage, ...], tuple[CoreFileError, ...]]:
    """Return the images of an "all image infos" note of ``file``, the core, and the errors.

    Entries within the file are returned even if others are truncated.
    """
    try:
        version, count, entries, stride, _ = unpack_note(IMAGE_INFOS_HEADER, file, note, source)
    except CoreFileError as error:
        return (), (error,)
    if version != 1:
        return (), (unknown_version(note, version, source),)
    stride = max(stride, IMAGE_ENTRY.size)
    room = max(0, len(file) - entries) // stride
    problems = []
    if count > room:
        problems.append(
            CoreFileError(
                f"note {note.owner!r} lists {count} images, {room} of them are in the file",
                source=source,
                offset=entries,
            )
        )
    images = []
    # Entries may share paths and segments; without sharing, all together fit the file.
    left = len(file)
    for index in range(min(count, room)):
        at = entries + index * stride
        path_at, uuid, address, segments_at, segment_count, _ = IMAGE_ENTRY.unpack_from(file, at)
        segments_end = segments_at + segment_count * SEGMENT_ADDRESS.size
        whole = not segment_count or (
            segments_end <= len(file) and segments_end - segments_at <= left
        )
        path = _path(file, path_at, left)
        left -= len(path) + (segment_count * SEGMENT_ADDRESS.size if whole else 0)
        if not whole or (path_at != NOT_KNOWN and path_at >= len(file)):
            problems.append(
                CoreFileError(
                    f"path or segments of image {index} are outside the file",
                    source=source,
                    offset=at,
                )
            )
        images.append(
            NotedImage(
                path=path,
                uuid=known_uuid(uuid),
                load_address=known_address(address),
                segments=_segments(file[segments_at:segments_end])
                if whole and segment_count
                else (),
            )
        )
    return tuple(images), tuple(problems)


def parse_load_binary(file: memoryview, note: Note, source: str) -> NotedImage:
    """Return the image of a "load binary" note, version 1, of ``file``, the whole core.

    Raises:
        CoreFileError: it is truncated, or of another version.
    """
    version, uuid, address, slide = unpack_note(_LOAD_BINARY_1, file, note, source)
    if version != 1:
        raise unknown_version(note, version, source)
    return NotedImage(
        path=_path(file[: note.offset + note.size], note.offset + _LOAD_BINARY_1.size, _PATH_LIMIT),
        uuid=known_uuid(uuid),
        load_address=known_address(address),
        slide=None if slide == NOT_KNOWN else slide,
    )


def _segments(data: memoryview) -> tuple[tuple[str, Avma], ...]:
    return tuple(
        (text_of(name), Avma(address)) for name, address, _ in SEGMENT_ADDRESS.iter_unpack(data)
    )


def _path(file: memoryview, offset: int, limit: int) -> str:
    return text_of(bytes(file[offset : offset + min(_PATH_LIMIT, limit)]))
