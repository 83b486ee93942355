"""Which paths may hold the debug file of an ELF image."""

from __future__ import annotations

import os
from collections.abc import Iterator

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.model.image import BinaryImage
from machtrace.images.candidates import Candidate
from machtrace.images.debug_file import FoundBy
from machtrace.images.elf_debug import debug_link, linked_paths
from machtrace.images.identified_file import IdentifiedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.images.store_layout import FileKind, build_id_path, debuginfod_path


def elf_debug_files(
    image: BinaryImage, places: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Where the system has debug files by build-id, and where debuginfod's clients keep them."""
    if image.uuid is None:
        return
    named = [(root, build_id_path(image.uuid, FileKind.DEBUGINFO)) for root in places.debug_roots]
    named.append((places.debuginfod_cache, debuginfod_path(image.uuid, FileKind.DEBUGINFO)))
    for root, inside in named:
        if inside is None:
            continue
        path = os.path.join(root, inside)  # noqa: PTH118
        if os.path.exists(path):  # noqa: PTH110
            yield Candidate(path, FoundBy.BUILD_ID)
        else:
            record.add(path, Outcome.NO_FILE)


def linked_debug_files(
    binary: IdentifiedFile, places: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Where the file that the binary names in ``.gnu_debuglink`` would be."""
    if not isinstance(binary.contents, ElfFileContents):
        return
    link = debug_link(binary.contents)
    if link is None:
        return
    folders = [place for place in places.paths if os.path.isdir(place)]  # noqa: PTH112
    for path in linked_paths(binary.path, link, (*folders, *places.debug_roots)):
        # A link may name the binary itself, which was looked at.
        if os.path.realpath(path) == os.path.realpath(binary.path):
            continue
        if os.path.exists(path):  # noqa: PTH110
            yield Candidate(path, FoundBy.DEBUG_LINK, crc=link.crc)
        else:
            record.add(path, Outcome.NO_FILE)
