"""Paths that may hold an image's files, cheap ones first; nothing is opened here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from machtrace.images.debug_file import FoundBy
from machtrace.images.dsym import beside, dwarf_files, is_dsym, named_in
from machtrace.images.open_file import IdentifiedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.images.store_layout import (
    FileKind,
    Identifier,
    build_id_path,
    debuginfod_path,
    default_store_path,
    lldb_path,
    unified_path,
)
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat

_LAYOUTS = (unified_path, lldb_path, build_id_path, debuginfod_path)
_OF_THE_SYSTEM = ("/usr/lib/", "/System/")
"""Images without dSYMs, of which every process has hundreds; Spotlight is slow."""
_LISTED = 3
"""Other builds of an image that are listed if none matches."""


class Candidate(NamedTuple):
    """A path to try."""

    path: str
    found_by: FoundBy
    is_proven: bool = False
    """Whether the file is the image's even if it has no identifier."""
    crc: int | None = None
    """The CRC-32 that identifies a file without an identifier."""


def given(image: BinaryImage, search_path: SearchPath, record: SearchRecord) -> Iterator[Candidate]:
    """Yield the files that the user gave, and files by the image's name in given folders."""
    for root in search_path.paths:
        if not os.path.isdir(root):  # noqa: PTH112 - Path.is_dir raises where it may not look
            yield from _given_file(root, image, search_path, record)
        elif is_dsym(root):
            for path in search_path.in_bundle(root):
                yield from _given_file(path, image, search_path, record)
        elif image.path:
            for path in dict.fromkeys((image.name, image.path.lstrip("/"))):
                found = os.path.join(root, path)  # noqa: PTH118
                yield Candidate(found, FoundBy.NAME, is_proven=True)


def _given_file(
    path: str, image: BinaryImage, search_path: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Yield a given file unless it is another image's, of which there may be hundreds."""
    identifiers = () if image.uuid is None else search_path.identifiers(path)
    if not identifiers or image.uuid in identifiers:
        name = os.path.basename(path)  # noqa: PTH119
        yield Candidate(path, FoundBy.GIVEN, is_proven=name == image.name)
    else:
        listed = [
            str(identifier).upper() if isinstance(identifier, UUID) else str(identifier)
            for identifier in identifiers
        ]
        record.add(path, Outcome.OTHER_IDENTIFIER, ", ".join(listed[:_LISTED]))


def stored(image: BinaryImage, search_path: SearchPath, kind: FileKind) -> Iterator[Candidate]:
    """Yield the paths in the user's store, and in given folders as if they were stores."""
    if image.uuid is not None:
        for root in (*search_path.paths, str(default_store_path())):
            yield from in_store(root, image.uuid, image.arch, kind)


def in_store(root: str, identifier: Identifier, arch: Arch, kind: FileKind) -> Iterator[Candidate]:
    """Yield the paths that any layout of symbol stores has for a file, if they exist."""
    for layout in _LAYOUTS:
        inside = layout(identifier, kind)
        if inside is not None:
            path = os.path.join(root, inside)  # noqa: PTH118
            # Of two architectures with one UUID a store of ours names the second.
            yield from _file_or_bundle(f"{path}.{arch.value}", FoundBy.STORE)
            yield from _file_or_bundle(path, FoundBy.STORE)


def on_this_machine(image: BinaryImage) -> Iterator[Candidate]:
    """Yield the paths where the target has the image, if that is this machine."""
    if image.local_path is not None:
        yield Candidate(image.local_path, FoundBy.ITSELF, is_proven=True)
    if image.path.startswith("/"):
        yield Candidate(image.path, FoundBy.ITSELF)


def bundles(
    image: BinaryImage, search_path: SearchPath, binaries: Iterable[str], record: SearchRecord
) -> Iterator[Candidate]:
    """Yield dSYMs by the image's name: in given folders, and beside its ``binaries``."""
    for root in search_path.paths:
        if os.path.isdir(root) and image.path:  # noqa: PTH112
            for bundle in named_in(root, image.path):
                yield from _file_or_bundle(bundle, FoundBy.NAME)
    own = (candidate.path for candidate in on_this_machine(image))
    existing = filter(os.path.exists, dict.fromkeys((*binaries, *own)))
    for path in dict.fromkeys(path for binary in existing for path in beside(binary)):
        there = list(_file_or_bundle(path, FoundBy.BESIDE))
        if not there:
            record.add(path, Outcome.NO_FILE)
        yield from there


def indexed(
    image: BinaryImage, search_path: SearchPath, record: SearchRecord, kind: FileKind
) -> Iterator[Candidate]:
    """Yield the files with the image's identifier in the indices of the given folders."""
    if image.uuid is None:
        return
    for root in search_path.paths:
        if not os.path.isdir(root):  # noqa: PTH112
            continue
        index = search_path.index(root)
        matches = index.by_identifier.get(image.uuid, ())
        for path in matches:
            yield Candidate(path, FoundBy.IDENTIFIER)
        for store in index.stores:
            if store != root:
                yield from in_store(store, image.uuid, image.arch, kind)
        if not matches:
            others = index.by_name.get(image.name, ()) if image.name else ()
            others_text = (
                f"; {image.name} of other builds: {', '.join(others[:_LISTED])}" if others else ""
            )
            record.add(root, Outcome.NO_MATCH, f"{index}{others_text}")
        if index.is_cut_short:
            record.add(root, Outcome.CUT_SHORT, str(index))


def spotlighted(
    image: BinaryImage, search_path: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Yield the files that a Mac's Spotlight has for the image's UUID."""
    if not isinstance(image.uuid, UUID) or image.path.startswith(_OF_THE_SYSTEM):
        return
    paths = search_path.spotlight.bundles(image.uuid)
    if paths is None:
        return
    if not paths:
        record.add("Spotlight", Outcome.NO_MATCH)
    for path in paths:
        if is_dsym(path) or not os.path.isdir(path):  # noqa: PTH112
            yield from _file_or_bundle(path, FoundBy.SPOTLIGHT)
        else:  # an archive, or an application that is indexed with what it holds
            for inside in search_path.index(path).by_identifier.get(image.uuid, ()):
                yield Candidate(inside, FoundBy.SPOTLIGHT)


def _file_or_bundle(path: str, found_by: FoundBy) -> Iterator[Candidate]:
    if os.path.isdir(path):  # noqa: PTH112
        yield from _in_bundle(path, found_by)
    elif os.path.exists(path):  # noqa: PTH110
        yield Candidate(path, found_by)


def _in_bundle(bundle: str, found_by: FoundBy) -> Iterator[Candidate]:
    for path in dwarf_files(bundle):
        yield Candidate(path, found_by)


def elf_debug_files(
    image: BinaryImage, search_path: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Yield debug files by build-id: the system's, and those that debuginfod's clients cached."""
    if image.uuid is None:
        return
    named = [
        (root, build_id_path(image.uuid, FileKind.DEBUGINFO)) for root in search_path.debug_roots
    ]
    named.append((search_path.debuginfod_cache, debuginfod_path(image.uuid, FileKind.DEBUGINFO)))
    for root, inside in named:
        if inside is None:
            continue
        path = os.path.join(root, inside)  # noqa: PTH118
        if os.path.exists(path):  # noqa: PTH110
            yield Candidate(path, FoundBy.BUILD_ID)
        else:
            record.add(path, Outcome.NO_FILE)


def linked_debug_files(
    binary: IdentifiedFile, search_path: SearchPath, record: SearchRecord
) -> Iterator[Candidate]:
    """Yield the paths of the file that the binary names in ``.gnu_debuglink``."""
    if binary.contents.format is not ImageFormat.ELF:
        return
    from machtrace.images.elf_debug import debug_link, linked_paths

    link = debug_link(binary.contents)
    if link is None:
        return
    folders = [root for root in search_path.paths if os.path.isdir(root)]  # noqa: PTH112
    for path in linked_paths(binary.path, link, (*folders, *search_path.debug_roots)):
        # A link may name the binary itself, which was tried.
        if os.path.realpath(path) == os.path.realpath(binary.path):
            continue
        if os.path.exists(path):  # noqa: PTH110
            yield Candidate(path, FoundBy.DEBUG_LINK, crc=link.crc)
        else:
            record.add(path, Outcome.NO_FILE)
