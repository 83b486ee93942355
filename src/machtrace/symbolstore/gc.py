"""Files to remove from a symbol store: leftovers, unused files, and those beyond a size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from machtrace.atomic_write import UNFINISHED
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.images.store_layout import FileKind, identifier_text
from machtrace.symbolstore.store import StoredFile, SymbolStore, identifiers_of

_AT_WORK = 3600.0
"""The age in seconds up to which an unfinished file may still be being written."""

_FIRST_BYTE = re.compile("[0-9a-f]{2}")
_OTHER_BYTES = re.compile("(?:[0-9a-f]{2})+")
"""The digits of an identifier after its first byte: see
:func:`~machtrace.images.store_layout.unified_folder`."""
_META = re.compile(rf"(?:{'|'.join(kind.value for kind in FileKind)})(?:\.\w+)?\.meta")


class RemovalReason(Enum):
    """Why a file can be removed; the value is shown to users."""

    UNFINISHED = "unfinished write"
    """The leftover of a process that was killed."""
    NO_FILE = "meta without its file"
    MISPLACED = "its headers have another identifier"
    """The identifier in its headers is another one, or they are malformed."""
    AGE = "not used for long"
    SIZE = "beyond the size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A file that can be removed."""

    path: Path
    size: int
    """In bytes."""
    reason: RemovalReason
    stored: StoredFile | None = None
    """None if it is not an image's file."""


def check_is_store(store: SymbolStore) -> None:
    """Refuse to remove anything from a folder that holds something else.

    A store that is empty or does not exist is accepted; a folder with files and no image's folder
    is not.

    Raises:
        MachtraceError: it is not a store.
    """
    try:
        names = [path.name for path in store.root.iterdir() if not path.name.startswith(".")]
    except OSError:
        return  # reported when the folder is needed
    if names and not any(_is_images_folder(store.root / name) for name in names):
        raise MachtraceError(
            f"this folder is no symbol store: {store.root}",
            remedy="pass the folder that machtrace symbols add created",
        )


def _is_images_folder(path: Path) -> bool:
    """Whether a folder has the name of identifiers' first byte, and holds only those."""
    if not _FIRST_BYTE.fullmatch(path.name):
        return False
    try:
        return all(_OTHER_BYTES.fullmatch(one.name) and one.is_dir() for one in path.iterdir())
    except OSError:
        return False


def leftovers(store: SymbolStore, *, now: float) -> Iterator[Removal]:
    """Yield useless files: unfinished writes and metas without files.

    ``now`` is in seconds since the epoch; recent unfinished writes are skipped.

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
    """Yield files whose own headers contradict their path."""
    for stored in files:
        wanted = identifier_text(stored.identifier)
        if wanted not in {identifier_text(one) for one in identifiers_of(stored.path)}:
            yield Removal(
                path=stored.path, size=stored.size, reason=RemovalReason.MISPLACED, stored=stored
            )


def unused_since(files: list[StoredFile], moment: float) -> Iterator[Removal]:
    """Yield files that were neither stored nor, by the file system's times, read since ``moment``.

    ``moment`` is in seconds since the epoch.
    """
    for stored in sorted(files, key=lambda one: one.used):
        if stored.used < moment:
            yield Removal(
                path=stored.path, size=stored.size, reason=RemovalReason.AGE, stored=stored
            )


def beyond_size(files: list[StoredFile], limit: int) -> Iterator[Removal]:
    """Return the files to remove, longest unused first, to leave at most ``limit`` bytes."""
    total = sum(stored.size for stored in files)
    for stored in sorted(files, key=lambda one: one.used):
        if total <= limit:
            return
        total -= stored.size
        yield Removal(path=stored.path, size=stored.size, reason=RemovalReason.SIZE, stored=stored)


def remove(
    store: SymbolStore, removals: list[Removal], done: Callable[[Removal], object] = lambda _: None
) -> None:
    """Remove files from the store.

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
