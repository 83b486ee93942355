"""The "process metadata" note of a Mach-O core; see :mod:`machtrace.model.process_metadata`."""

from __future__ import annotations

from machtrace.errors import CoreFileError
from machtrace.formats.macho.core.notes import Note, note_payload
from machtrace.model.process_metadata import ProcessMetadata, metadata_of_json


def parse_process_metadata(file: memoryview, note: Note, source: str) -> ProcessMetadata:
    """What the note says, of ``file``, the whole core. Unknown keys are passed over.

    Raises:
        CoreFileError: it is cut short, or no JSON object.
    """
    metadata = metadata_of_json(bytes(note_payload(file, note, source)).rstrip(b"\0"))
    if metadata is None:
        raise CoreFileError(
            f"note {note.owner!r} is no JSON object", source=source, offset=note.offset
        )
    return metadata
