"""Forms with files, whose bodies are files themselves: they may be larger than the memory."""

from __future__ import annotations

import mmap
from pathlib import Path

from machtrace.server.bodies import PartExtent, file_name, part_extents
from machtrace.server.limits import BAD_REQUEST, RefusedError

_MAX_PARTS = 50
_MAX_TEXT_LENGTH = 200


def read_form_files(
    body: Path, content_type: str, file_field: str, text_field: str = ""
) -> tuple[str, list[Path]]:
    """Return a text of a form, and its files, each in a folder of its own beside the body.

    Args:
        body: the body of the request, as a file.
        content_type: its type, with the boundary.
        file_field: the name of the parts that are files.
        text_field: the name of the part with the text.

    Raises:
        RefusedError: the body is malformed.
        OSError: a file cannot be written.
    """
    text = ""
    files: list[Path] = []
    with body.open("rb") as file:
        if not body.stat().st_size:
            raise RefusedError(BAD_REQUEST, "a form without parts")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for part in part_extents(data, content_type, _MAX_PARTS):
                if part.name == text_field and text_field:
                    text = data[part.begin : min(part.end, part.begin + _MAX_TEXT_LENGTH)].decode(
                        "latin-1"
                    )
                elif part.name == file_field and part.end > part.begin:
                    files.append(_copied(body, part, len(files)))
    return text.strip(), files


def _copied(body: Path, part: PartExtent, number: int) -> Path:
    folder = body.parent / str(number)
    folder.mkdir()
    path = folder / (file_name(part.file) or "symbols")
    left = part.end - part.begin
    with body.open("rb") as source, path.open("xb") as target:
        source.seek(part.begin)
        while left:
            piece = source.read(min(left, 1 << 20))
            target.write(piece)
            left -= len(piece)
    return path
