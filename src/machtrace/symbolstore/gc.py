"""What can be taken out of a symbol store: leftovers, what is old, what is beyond a size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from machtrace.atomic_write import UNFINISHED
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.images.store_layout import FileKind, identifier_text
from machtrace.symbolstore.store import StoredFile, SymbolStore, identifiers_of

_AT_WORK = 3600.0
"""Seconds for which an unfinished file is left to the process that may be writing it."""

_FIRST_BYTE = re.compile("[0-9a-f]{2}")
_OTHER_BYTES = re.compile("(?:[0-9a-f]{2})+")
"""Of identifiers: see :func:`~machtrace.images.store_layout.unified_folder`."""
_META = re.compile(rf"(?:{'|'.join(kind.value for kind in FileKind)})(?:\.\w+)?\.meta")


class RemovalReason(Enum):
    """Why something can go; the value is how people are told."""

    UNFINISHED = "unfinished write"
    """Of a process that was killed."""
    NO_FILE = "meta without its file"
    MISPLACED = "not what its place says"
    """Its own headers have another identifier, or are damaged."""
    AGE = "not used for long"
    SIZE = "beyond the size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Something that can go."""

    path: Path
    size: int
    """In bytes."""
    reason: RemovalReason
    stored: StoredFile | None = None
    """None for what is no image's file."""


def check_is_store(store: SymbolStore) -> None:
    """Make sure that nothing is taken out of a folder that holds something else.

    A store that is empty or not there is one; a folder with files and no image's folder is none.

    Raises:
        MachtraceError: it is no store.
    """
    try:
        names = [path.name for path in store.root.iterdir() if not path.name.startswith(".")]
    except OSError:
        return  # what cannot be listed is told where it is needed
    if names and not any(_is_images_folder(store.root / name) for name in names):
        raise MachtraceError(
            f"this folder is no symbol store: {store.root}",
            remedy="give the folder that machtrace symbols add made",
        )


def _is_images_folder(path: Path) -> bool:
    """Whether a folder is called like the first byte of identifiers, and holds those alone."""
    if not _FIRST_BYTE.fullmatch(path.name):
        return False
    try:
        return all(_OTHER_BYTES.fullmatch(one.name) and one.is_dir() for one in path.iterdir())
    except OSError:
        return False


def leftovers(store: SymbolStore, *, now: float) -> Iterator[Removal]:
    """What is of no use to anybody: unfinished writes and metas without files.

    ``now`` is in seconds since the epoch; what may still be written is left alone.

    Raises:
        FileAccessError: the store cannot be listed.
    """
    folders = [store.root, *filter(_is_image_folder, store.folders())]
    for folder in folders:
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                reason = _leftover(path, now)
                if reason is not None:
                    yield Removal(path=path, size=path.stat().st_size, reason=reason)


def _is_image_folder(path: Path) -> bool:
    return bool(_FIRST_BYTE.fullmatch(path.parent.name) and _OTHER_BYTES.fullmatch(path.name))


def _leftover(path: Path, now: float) -> RemovalReason | None:
    if path.name.startswith(UNFINISHED):
        return RemovalReason.UNFINISHED if now - path.stat().st_mtime > _AT_WORK else None
    orphaned = bool(_META.fullmatch(path.name)) and not path.with_suffix("").exists()
    # A meta is written after its file, and removed after it.
    return RemovalReason.NO_FILE if orphaned and now - path.stat().st_mtime > _AT_WORK else None


def misplaced(files: list[StoredFile]) -> Iterator[Removal]:
    """Files whose own headers do not say what their place says."""
    for stored in files:
        wanted = identifier_text(stored.identifier)
        if wanted not in {identifier_text(one) for one in identifiers_of(stored.path)}:
            yield Removal(
                path=stored.path, size=stored.size, reason=RemovalReason.MISPLACED, stored=stored
            )


def unused_since(files: list[StoredFile], moment: float) -> Iterator[Removal]:
    """Files that were neither stored nor, as far as the file system tells, read since ``moment``.

    ``moment`` is in seconds since the epoch.
    """
    for stored in sorted(files, key=lambda one: one.used):
        if stored.used < moment:
            yield Removal(
                path=stored.path, size=stored.size, reason=RemovalReason.AGE, stored=stored
            )


def beyond_size(files: list[StoredFile], limit: int) -> Iterator[Removal]:
    """The files to remove, longest unused first, for the rest to have ``limit`` bytes at most."""
    total = sum(stored.size for stored in files)
    for stored in sorted(files, key=lambda one: one.used):
        if total <= limit:
            return
        total -= stored.size
        yield Removal(path=stored.path, size=stored.size, reason=RemovalReason.SIZE, stored=stored)


def remove(
    store: SymbolStore, removals: list[Removal], done: Callable[[Removal], object] = lambda _: None
) -> None:
    """Take them out of the store.

    Raises:
        FileAccessError: one cannot be removed; those before it are.
    """
    for removal in removals:
        if removal.stored is not None:
            store.remove(removal.stored)
        else:
            try:
                removal.path.unlink(missing_ok=True)
            except OSError as error:
                reason = error.strerror or "cannot be removed"
                raise FileAccessError(str(removal.path), reason) from error
            if removal.path.parent != store.root:
                with suppress(OSError):
                    removal.path.parent.rmdir()
        done(removal)
