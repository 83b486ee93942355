"""Where files are looked for: what a user said, and where the system keeps debug files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.images.dsym import dwarf_files
from machtrace.images.spotlight import Spotlight
from machtrace.images.store_layout import Identifier

if TYPE_CHECKING:  # imported where a folder is looked through
    from machtrace.images.folder_index import FolderIndex

DEBUG_ROOTS = ("/usr/lib/debug",)
"""Where systems install debug files of ELF images (GDB's manual, "Separate Debug Files")."""


class SearchPath:
    """Files and folders in the order in which they are asked, each looked through at most once.

    A folder may hold anything: binaries, dSYM bundles, .xcarchive bundles, symbol stores. It is
    looked through when it is first asked for an identifier that is not at a place known for it;
    files that come into it later are found by new places only.
    """

    __slots__ = (
        "_bundles",
        "_identifiers",
        "_indices",
        "debug_roots",
        "debuginfod_cache",
        "paths",
        "spotlight",
    )

    def __init__(
        self,
        paths: Sequence[str] = (),
        *,
        debug_roots: Sequence[str] = DEBUG_ROOTS,
        spotlight: Spotlight | None = None,
    ) -> None:
        """Remember the places; none is looked at.

        Args:
            paths: what the user gave: files, bundles, folders, roots of symbol stores.
            debug_roots: where the system has debug files of ELF images.
            spotlight: a Mac's index of files; None is this machine's, if it has one.
        """
        self.paths = tuple(paths)
        self.debug_roots = tuple(debug_roots)
        self.debuginfod_cache = debuginfod_cache()
        self.spotlight = Spotlight() if spotlight is None else spotlight
        self._indices: dict[str, FolderIndex] = {}
        self._bundles: dict[str, tuple[str, ...]] = {}
        self._identifiers: dict[str, tuple[Identifier, ...] | None] = {}

    @classmethod
    def of(cls, search: str | Path | Sequence[str | Path] = ()) -> SearchPath:
        """From paths as a user gives them: one, or several."""
        places = (search,) if isinstance(search, str | Path) else search
        return cls([os.path.expanduser(path) for path in places])  # noqa: PTH111

    @property
    def problems(self) -> list[FileAccessError]:
        """Those places that the user gave and that are not there."""
        found = []
        for path in self.paths:
            try:
                os.stat(path)  # noqa: PTH116 - as everything here
            except OSError as error:
                found.append(FileAccessError(path, error.strerror or "cannot be read"))
            except ValueError as error:  # a name that no file can have
                found.append(FileAccessError(path, str(error)))
        return found

    def index(self, folder: str) -> FolderIndex:
        """What ``folder`` holds; the first time, all of it is looked through."""
        index = self._indices.get(folder)
        if index is None:
            from machtrace.images.folder_index import index_of

            index = self._indices[folder] = index_of(folder)
        return index

    def in_bundle(self, bundle: str) -> tuple[str, ...]:
        """The DWARF files of a given dSYM bundle; it is listed once."""
        files = self._bundles.get(bundle)
        if files is None:
            files = self._bundles[bundle] = tuple(dwarf_files(bundle))
        return files

    def identifiers(self, path: str) -> tuple[Identifier, ...] | None:
        """Those of a given file, which is looked into once; None where they cannot be read."""
        if path not in self._identifiers:
            from machtrace.images.file_identity import identifiers_of

            try:
                self._identifiers[path] = identifiers_of(path) or None
            except (OSError, ValueError, MachtraceError):  # whoever opens it says which
                self._identifiers[path] = None
        return self._identifiers[path]


def debuginfod_cache() -> str:
    """Where debuginfod's clients keep what they downloaded (*debuginfod_find_debuginfo(3)*)."""
    given = os.environ.get("DEBUGINFOD_CACHE_PATH")
    if given:
        return given
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return os.path.join(caches, "debuginfod_client")  # noqa: PTH118
