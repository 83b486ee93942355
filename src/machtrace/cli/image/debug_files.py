"""``machtrace image --debug-files``: the files with an image's symbols and source lines."""

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
from machtrace.lines.debug_map import LinkedObjects, mapped_functions
from machtrace.lines.split.files import SplitFiles
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.model.text import counted, printable

_REASONS = {
    FrameStatus.MISSING_FILE: "none was found",
    FrameStatus.MISMATCHED_FILE: "only that of other builds was found",
    FrameStatus.MALFORMED_FILE: "only malformed files were found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesDescription:
    """The debug files of an image, and the files that were examined."""

    lines: str | None
    """The path of the file with its source lines; for a debug map, the image's path."""
    lines_are: str
    """How that file was found, or the reason why none was."""
    symbols: str | None
    """The path of a file with more symbols."""
    attempts: tuple[str, ...]
    """Every path that was tried, with the outcome."""


def describe_files(
    path: Path, described: ImageDescription, search: Sequence[str]
) -> FilesDescription:
    """Search for the debug files of an image in the file at ``path``. Raises nothing.

    Args:
        path: the file.
        described: the image.
        search: further files and folders to search.
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
    resolver = ImageResolver.of(search)
    files = resolver.files(image)
    attempts = list(files.attempts)
    if isinstance(files.lines, DebugFile):
        lines, lines_are = files.lines.path, files.lines.found_by.value
        units, tried = _split_units(files.lines, resolver, image)
        lines_are += units
        attempts += tried
    elif isinstance(files.lines, DebugMap):
        lines = files.lines.path
        lines_are = f"a debug map of {counted(len(files.lines.objects), 'object file')}"
        attempts += _unusable_objects(files.lines)
    else:
        lines, lines_are = None, _REASONS.get(files.lines, files.lines.value)
    return FilesDescription(
        lines=lines,
        lines_are=lines_are,
        symbols=None if files.symbols is None else files.symbols.path,
        attempts=tuple(map(str, attempts)),
    )


def _split_units(
    file: DebugFile, resolver: ImageResolver, image: BinaryImage
) -> tuple[str, Sequence[Attempt]]:
    """Return how many units that were split from a file were found, and in which files."""
    if image.format is not ImageFormat.ELF or file.contents.format is not ImageFormat.ELF:
        return "", ()
    record = SearchRecord()
    files = SplitFiles(file, resolver, image, record)
    if not files.skeletons:
        return "", record.attempts
    counts: dict[str, int] = {}
    for skeleton in files.skeletons:
        unit = files.unit(skeleton)
        if unit is not None:
            counts[unit.path] = counts.get(unit.path, 0) + 1
    for path, count in counts.items():
        record.add(path, Outcome.FOUND, counted(count, "split unit"))
    total = len(files.skeletons)
    return f"; {sum(counts.values())} of {counted(total, 'split unit')} found", record.attempts


def _unusable_objects(debug_map: DebugMap) -> Sequence[Attempt]:
    """Return the object files that are missing, or differ from those that were linked."""
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
    identifier = parse_identifier(described.identifier or "")
    if isinstance(identifier, UUID) and described.format == ImageFormat.ELF.value:
        return BuildId(identifier.bytes)
    return identifier


def files_text(files: FilesDescription) -> Iterator[str]:
    """Yield the description's lines of text."""
    where = f"{files.lines} ({files.lines_are})" if files.lines else files.lines_are
    yield f"  source lines           {printable(where)}"
    if files.symbols is not None:
        yield f"  more symbols           {printable(files.symbols)}"
    yield "  searched"
    for line in files.attempts:
        yield f"    {printable(line)}"
