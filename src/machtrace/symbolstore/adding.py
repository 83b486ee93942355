"""Add files, bundles, folders and archives to a symbol store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TypeAlias

from machtrace.errors import FileAccessError
from machtrace.formats.zip_archive import is_zip
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import FileKind, Identifier, identifier_text
from machtrace.symbolstore.archive import Unpacker, UnpackLimits
from machtrace.symbolstore.contained_images import (
    ImageFile,
    Skipped,
    SkipReason,
    images_in,
)
from machtrace.symbolstore.store import PutResult, SymbolStore


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that may hold images."""

    path: Path
    size: int
    """In bytes."""
    is_named: bool
    """Whether the user named this very file, rather than a folder that it is in."""


def input_files(place: Path, *, follow_links: bool = False) -> Iterator[InputFile | Skipped]:
    """Yield the regular files at or below ``place``, by name, and what could not be read.

    ``place`` itself may be a symbolic link. Below it, a link to a file in the same folder is
    skipped, since the file is found by itself; other links are not followed, unless
    ``follow_links`` is set, and then only to files. Nothing but files and folders is opened.
    """
    try:
        status = place.stat()
    except (OSError, ValueError) as error:
        yield _unreadable(place, error)
        return
    if S_ISREG(status.st_mode):
        yield InputFile(place, status.st_size, is_named=True)
    elif S_ISDIR(status.st_mode):
        yield from _below(place, _Tree(os.path.realpath(place), follow_links=follow_links))
    else:
        yield Skipped(str(place), SkipReason.UNREADABLE, "neither a file nor a folder")


@dataclass(frozen=True, slots=True)
class _Tree:
    root: str
    """Its real path."""
    follow_links: bool

    def holds(self, path: str) -> bool:
        return path == self.root or path.startswith(os.path.join(self.root, ""))  # noqa: PTH118


def _below(folder: Path, tree: _Tree) -> Iterator[InputFile | Skipped]:
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        folders: list[Path] = []
        try:
            with os.scandir(here) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield _unreadable(here, error)
            continue
        for entry in ordered:
            try:
                if entry.is_symlink():
                    yield from _linked(Path(entry.path), tree)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    yield InputFile(Path(entry.path), size, is_named=False)
            except OSError as error:
                yield _unreadable(Path(entry.path), error)
        waiting += reversed(folders)


def _linked(link: Path, tree: _Tree) -> Iterator[InputFile | Skipped]:
    target = os.path.realpath(link)
    if tree.holds(target):
        return
    if not tree.follow_links:
        yield Skipped(str(link), SkipReason.LINK, f"to {target}")
        return
    status = link.stat()
    if S_ISREG(status.st_mode):
        yield InputFile(link, status.st_size, is_named=False)


def _unreadable(path: Path, error: OSError | ValueError) -> Skipped:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Skipped(str(path), SkipReason.UNREADABLE, (reason or "cannot be read").lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An image that is in the store now."""

    source: str
    """Its origin, as the user would name it."""
    identifier: Identifier
    arch: str
    kind: FileKind
    path: Path
    """In the store."""
    size: int
    """In bytes."""
    is_new: bool
    """Whether the store did not have it before."""


AddOutcome: TypeAlias = Stored | Skipped


class SymbolAdder:
    """Adds files to ``store``; one limit covers all archives in them."""

    def __init__(
        self,
        store: SymbolStore,
        limits: UnpackLimits | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """``progress`` receives numbers of processed bytes, the size of each file in all."""
        self._store = store
        self._unpacker = Unpacker(limits or UnpackLimits(), store.root)
        self._progress = progress

    def add(self, file: InputFile) -> Iterator[AddOutcome]:
        """Store the images in ``file``; yield the outcome of each, and of what is no image.

        Raises:
            FileAccessError: the store cannot be written.
        """
        reported = 0

        def progress(size: int) -> None:
            nonlocal reported
            size = min(size, file.size - reported)
            reported += size
            self._progress(size)

        yield from self._add(file.path, str(file.path), file.path.name, progress, depth=0)
        progress(file.size)

    def _add(
        self,
        path: Path,
        label: str,
        name: str,
        progress: Callable[[int], object],
        *,
        depth: int,
    ) -> Iterator[AddOutcome]:
        try:
            data = open_image_file(path)
        except FileAccessError as error:
            is_empty = error.reason == "the file is empty"
            reason = SkipReason.NOT_AN_IMAGE if is_empty else SkipReason.UNREADABLE
            yield Skipped(label, reason, error.reason)
            return
        if is_zip(data):
            del data
            for member in self._unpacker.members(path, label, depth=depth + 1, progress=progress):
                if isinstance(member, Skipped):
                    yield member
                else:
                    yield from self._add(
                        member.path, member.label, member.name, lambda _: None, depth=depth + 1
                    )
            return
        images, skipped = images_in(data, label)
        yield from skipped
        for image in images:
            scratch = path if depth and len(image.data) == len(data) else None
            yield self._put(image, label, name, scratch, progress)

    def _put(
        self,
        image: ImageFile,
        label: str,
        name: str,
        scratch: Path | None,
        progress: Callable[[int], object],
    ) -> AddOutcome:
        result, path = self._store.put(image, name, scratch=scratch, progress=progress)
        if result is PutResult.COLLISION:
            detail = f"{identifier_text(image.identifier)} for {image.arch} is {path}"
            return Skipped(label, SkipReason.COLLISION, detail)
        return Stored(
            source=label,
            identifier=image.identifier,
            arch=image.arch,
            kind=image.kind,
            path=path,
            size=len(image.data),
            is_new=result is PutResult.ADDED,
        )
