"""Which image files a folder holds, by identifier: made once for a folder, kept while in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock
from weakref import WeakValueDictionary

from machtrace.errors import MachtraceError
from machtrace.images.file_identity import identifiers_of
from machtrace.images.folder_walk import FolderWalk
from machtrace.images.store_layout import Identifier

FILES_LIMIT = 500_000
"""Files of one folder that are looked into; above that it is given up, and said."""
_NEVER_IMAGES = frozenset(
    {
        # What apps and their resources are full of.
        *(".png", ".jpg", ".jpeg", ".gif", ".webp", ".heic", ".svg", ".pdf", ".ttf", ".otf"),
        *(".car", ".nib", ".xib", ".strings", ".stringsdict", ".plist", ".json", ".yml", ".yaml"),
        *(".toml", ".xml", ".html", ".css", ".js", ".map", ".ts", ".tsx", ".txt", ".md", ".rst"),
        *(".wav", ".mp3", ".m4a", ".mp4", ".mov", ".caf", ".db", ".sqlite", ".csv", ".log"),
        # What sources and build folders are full of; object files have no identifier.
        *(".h", ".hh", ".hpp", ".c", ".cc", ".cpp", ".cxx", ".m", ".mm", ".swift", ".rs", ".go"),
        *(".py", ".pyc", ".pyi", ".rb", ".java", ".kt", ".sh", ".cmake", ".o", ".a", ".lib", ".d"),
        *(".modulemap", ".swiftinterface", ".swiftdoc", ".swiftmodule", ".tbd", ".lock"),
        *(".zip", ".gz", ".xz", ".bz2", ".zst", ".tar", ".ipa", ".dmg", ".pkg"),
    }
)
"""Suffixes of files that are not opened."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class FolderIndex:
    """The image files in a folder and all folders in it."""

    folder: str
    by_identifier: dict[Identifier, tuple[str, ...]]
    """Paths, folders with symbols first, else the nearest first."""
    by_name: dict[str, tuple[str, ...]]
    """The paths of the same files, by their last components."""
    stores: tuple[str, ...]
    """Symbol stores in it, whose files are not in this index."""
    files: int
    """How many were looked into."""
    malformed: int
    """How many of them only started like image files."""
    unreadable: int
    """How many files and folders could not be read."""
    is_cut_short: bool
    """Whether there was too much to look into all of it."""

    def __str__(self) -> str:
        """What there was, as one line says it."""
        parts = [_counted(self.files, "file"), _counted(len(self.by_identifier), "image")]
        if self.stores:
            parts.append(_counted(len(self.stores), "symbol store"))
        if self.malformed:
            parts.append(f"{self.malformed} malformed")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        return ", ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_indices: WeakValueDictionary[str, FolderIndex] = WeakValueDictionary()
_making = Lock()


def index_of(folder: str) -> FolderIndex:
    """The index of ``folder``; all who use one at the same time share it. Raises nothing."""
    key = os.path.realpath(folder)
    with _making:
        index = _indices.get(key)
        if index is None:
            index = _indices[key] = make_index(folder)
        return index


def make_index(folder: str) -> FolderIndex:
    """Look into all files below ``folder``, as far as the limits allow. Raises nothing."""
    walk = FolderWalk(folder)
    by_identifier: dict[Identifier, list[str]] = {}
    by_name: dict[str, list[str]] = {}
    files = malformed = unreadable = 0
    for path in walk.files():
        name = os.path.basename(path)  # noqa: PTH119 - thousands of them
        if os.path.splitext(name)[1].lower() in _NEVER_IMAGES:  # noqa: PTH122
            continue
        if files == FILES_LIMIT:
            walk.is_cut_short = True
            break
        files += 1
        try:
            identifiers = identifiers_of(path)
        except OSError:
            unreadable += 1
            continue
        except MachtraceError:
            malformed += 1
            continue
        for identifier in identifiers:
            by_identifier.setdefault(identifier, []).append(path)
        if identifiers:
            by_name.setdefault(name, []).append(path)
    return FolderIndex(
        folder=folder,
        by_identifier={key: tuple(paths) for key, paths in by_identifier.items()},
        by_name={key: tuple(paths) for key, paths in by_name.items()},
        stores=tuple(walk.stores),
        files=files,
        malformed=malformed,
        unreadable=unreadable + len(walk.unreadable),
        is_cut_short=walk.is_cut_short,
    )
