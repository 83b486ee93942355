"""Notes: named records in ``PT_NOTE`` segments and ``SHT_NOTE`` sections (gABI, chapter 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from machtrace.formats.elf.structs import NT_GNU_BUILD_ID, ElfLayout
from machtrace.model.image import BuildId

_WIDE_ALIGNMENT = 8


class Note(NamedTuple):
    """One record."""

    owner: bytes
    """Without the final NUL."""
    type: int
    description: bytes


def read_notes(
    data: bytes | memoryview, layout: ElfLayout, *, alignment: int = 4
) -> Iterator[Note]:
    """Parse the notes in ``data``, up to a record that is cut short.

    ``alignment`` is the segment's. Only if it is 8 (``.note.gnu.property``) are records padded to 8
    bytes; every other producer pads to 4, even in 64-bit files, whatever the gABI states.
    """
    padding = _WIDE_ALIGNMENT if alignment == _WIDE_ALIGNMENT else 4
    at, head = 0, layout.note.size
    while at + head <= len(data):
        name_size, description_size, kind = layout.note.unpack_from(data, at)
        name_at = at + head
        # The name starts right after the three words; from there on offsets are padded.
        description_at = -(-(name_at + name_size) // padding) * padding
        end = description_at + description_size
        if end > len(data):
            return
        owner = bytes(data[name_at : name_at + name_size]).rstrip(b"\0")
        yield Note(owner, kind, bytes(data[description_at:end]))
        at = -(-end // padding) * padding


def build_id_in(
    data: bytes | memoryview, layout: ElfLayout, *, alignment: int = 4
) -> BuildId | None:
    """Return the ``NT_GNU_BUILD_ID`` in the notes ``data``."""
    for note in read_notes(data, layout, alignment=alignment):
        if note.type == NT_GNU_BUILD_ID and note.owner == b"GNU" and note.description:
            return BuildId(note.description)
    return None
