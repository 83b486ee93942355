"""Finding the file with an image's debug information, by identity: never another image's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from machtrace.elf.contents import ElfFileContents
from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.macho.contents import FileContents
from machtrace.macho.fat import parse_slices
from machtrace.model.address import FileOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.debug_file import DebugFile, FoundBy, has_dwarf
from machtrace.symbolicate.image_file import open_image_file
from machtrace.symbolicate.search_places import SearchPlaces
from machtrace.symbolicate.search_record import Outcome, SearchRecord


def find_debug_file(image: BinaryImage, places: SearchPlaces) -> DebugFile | FrameStatus:
    """The file that has the image's debug information, or why there is none. Raises nothing."""
    record = SearchRecord()
    for path, found_by in _candidates(image, places):
        found = _open(path, image, found_by, record)
        if found is not None and has_dwarf(found.contents):
            return found
    return record.status


def _candidates(image: BinaryImage, places: SearchPlaces) -> Iterator[tuple[Path, FoundBy]]:
    for place in places.paths:
        yield place, FoundBy.GIVEN
    for path in filter(None, (image.local_path, image.path)):
        yield Path(f"{path}.dSYM/Contents/Resources/DWARF") / image.name, FoundBy.BESIDE
        yield Path(path), FoundBy.ITSELF


def _open(
    path: Path, image: BinaryImage, found_by: FoundBy, record: SearchRecord
) -> DebugFile | None:
    try:
        data = open_image_file(path)
        if image.format is ImageFormat.ELF:
            elf = ElfFileContents(data, str(path))
            if image.uuid is not None and elf.image.build_id == image.uuid:
                return DebugFile(contents=elf, data=data, path=str(path), found_by=found_by)
        else:
            for part in parse_slices(data, str(path)):
                macho = FileContents(part.data, str(path))
                if image.uuid is not None and macho.image.uuid == image.uuid:
                    return DebugFile(
                        contents=macho,
                        data=part.data,
                        slice_offset=FileOffset(part.offset),
                        path=str(path),
                        found_by=found_by,
                    )
    except FileAccessError as error:
        record.add(str(path), Outcome.NO_FILE, error.reason)
    except (FormatError, MemoryReadError) as error:
        record.add(str(path), Outcome.MALFORMED, str(error))
    else:
        record.add(str(path), Outcome.OTHER_IDENTIFIER)
    return None
