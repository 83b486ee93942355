"""Images that a core lists in notes: "all image infos" and "load binary".

Formats: lldb's ``ObjectFileMachO.cpp`` (``all_image_infos_header``, ``image_entry``,
``segment_vmaddr``) and xnu's ``osfmk/kdp/core_notes.h`` (``load_binary_spec_note``).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from machtrace.errors import CoreFileError
from machtrace.formats.macho.core.notes import (
    NOT_KNOWN,
    Note,
    known_address,
    known_uuid,
    text_of,
    unknown_version,
    unpack_note,
)
from machtrace.model.address import Avma

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
    """Empty where the note has none."""
    uuid: UUID | None
    load_address: Avma | None
    """Of its header."""
    slide: int | None = None
    """What was added to the addresses its file states."""
    segments: tuple[tuple[str, Avma], ...] = ()
    """Names and actual addresses of its segments."""


def parse_image_infos(
    file: memoryview, note: Note, source: str
) -> tuple[tuple[NotedImage, ...], tuple[CoreFileError, ...]]:
    """The images of an "all image infos" note of ``file``, the whole core; and what was amiss.

    Entries that the file still holds are given even where others are cut off.
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
    # Entries may share their paths and segments; all together are no longer than the file.
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
    """The image of a "load binary" note, version 1, of ``file``, the whole core.

    Raises:
        CoreFileError: it is cut short, or of another version.
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
