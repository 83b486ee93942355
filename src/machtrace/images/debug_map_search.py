"""Finding the object files that a Mach-O's debug map names."""

from __future__ import annotations

import os

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.tables.stabs import object_stabs
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.identified_file import IdentifiedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Outcome, SearchRecord

_TOLD = 8
"""Object files that are told one by one where all are missing."""


def usable_debug_map(
    binary: IdentifiedFile, places: SearchPath, record: SearchRecord
) -> DebugMap | None:
    """The debug map of ``binary`` where it has one and any of its object files is there."""
    if not isinstance(binary.contents, FileContents):
        return None
    try:
        stabs = object_stabs(binary.contents)
    except (FormatError, MemoryReadError) as error:
        record.add(binary.path, Outcome.MALFORMED, str(error))
        return None
    if not stabs:
        return None
    found = DebugMap(
        path=binary.path,
        contents=binary.contents,
        objects=tuple(LinkedObject.parse(*stab) for stab in stabs),
        folders=tuple(place for place in places.paths if os.path.isdir(place)),  # noqa: PTH112
    )
    if _any_is_there(found):
        record.add(binary.path, Outcome.FOUND, f"a debug map of {len(stabs)} object files")
        return found
    for one in found.objects[:_TOLD]:
        record.add(str(one), Outcome.NO_FILE, "an object file of the debug map")
    if len(stabs) > _TOLD:
        record.add(f"{len(stabs) - _TOLD} more object files", Outcome.NO_FILE)
    return None


def _any_is_there(debug_map: DebugMap) -> bool:
    """Whether any object file or archive exists; most are in few folders, or in none."""
    folders: dict[str, bool] = {}
    for path in dict.fromkeys(path for one in debug_map.objects for path in debug_map.paths(one)):
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in folders:
            folders[folder] = os.path.isdir(folder)  # noqa: PTH112
        if folders[folder] and os.path.isfile(path):  # noqa: PTH113
            return True
    return False
