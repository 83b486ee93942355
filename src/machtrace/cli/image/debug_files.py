"""``machtrace image --debug-files``: which files have an image's symbols and source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from machtrace.cli.image.description import ImageDescription
from machtrace.errors import MachOError
from machtrace.frozen import dataclass
from machtrace.images.debug_file import DebugFile
from machtrace.images.debug_map import DebugMap
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.images.store_layout import Identifier, parse_identifier
from machtrace.lines.debug_map.functions import mapped_functions
from machtrace.lines.debug_map.objects import LinkedObjects
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.model.text import printable

_REASONS = {
    FrameStatus.MISSING_FILE: "none was found",
    FrameStatus.MISMATCHED_FILE: "only that of other builds was found",
    FrameStatus.MALFORMED_FILE: "only malformed files were found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesDescription:
    """The debug files of an image, and the files that were examined."""

    lines: str | None
    """The path of what has its source lines; of a debug map that of the image."""
    lines_are: str
    """How that was found, or why nothing was."""
    symbols: str | None
    """The path of a file with more symbols."""
    attempts: tuple[str, ...]
    """Every place, with what came of it."""


def describe_files(
    path: Path, described: ImageDescription, search: Sequence[str]
) -> FilesDescription:
    """Look for the files of an image in the file at ``path``. Raises nothing.

    Args:
        path: the file.
        described: the image.
        search: where to look besides.
    """
    try:
        arch = Arch(described.arch)
    except ValueError:
        return FilesDescription(
            lines=None, lines_are=f"not looked for, of {described.arch}", symbols=None, attempts=()
        )
    image = BinaryImage(
        path=str(path.absolute()),
        uuid=_identifier(described),
        arch=arch,
        format=ImageFormat(described.format),
        load_address=Avma(0),
        header_svma=Svma(0),
        size=described.size,
        local_path=str(path.absolute()),
    )
    files = ImageResolver.of(search).files(image)
    attempts = list(files.attempts)
    if isinstance(files.lines, DebugFile):
        lines, lines_are = files.lines.path, files.lines.found_by.value
    elif isinstance(files.lines, DebugMap):
        lines, count = files.lines.path, len(files.lines.objects)
        lines_are = f"a debug map of {count} object files"
        attempts += _unusable_objects(files.lines)
    else:
        lines, lines_are = None, _REASONS.get(files.lines, files.lines.value)
    return FilesDescription(
        lines=lines,
        lines_are=lines_are,
        symbols=None if files.symbols is None else files.symbols.path,
        attempts=tuple(map(str, attempts)),
    )


def _unusable_objects(debug_map: DebugMap) -> Sequence[Attempt]:
    """The object files that are missing, or are not as they were."""
    record = SearchRecord()
    try:
        functions = mapped_functions(debug_map.contents)
    except MachOError as error:
        record.add(debug_map.path, Outcome.MALFORMED, str(error))
        return record.attempts
    files = LinkedObjects(debug_map, record)
    for number, linked in enumerate(debug_map.objects):
        files.open(linked, partial(functions.names_of, number))
    return record.attempts


def _identifier(described: ImageDescription) -> Identifier | None:
    found = parse_identifier(described.identifier or "")
    if isinstance(found, UUID) and described.format == ImageFormat.ELF.value:
        return BuildId(found.bytes)
    return found


def files_text(found: FilesDescription) -> Iterator[str]:
    """As lines for people."""
    where = f"{found.lines} ({found.lines_are})" if found.lines else found.lines_are
    yield f"  source lines           {printable(where)}"
    if found.symbols is not None:
        yield f"  more symbols           {printable(found.symbols)}"
    yield "  searched"
    for line in found.attempts:
        yield f"    {printable(line)}"
