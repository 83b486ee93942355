"""Where files are searched for: the user's paths, the system's debug files, and Spotlight.

Spotlight's importer for dSYM bundles and Xcode archives stores the UUIDs of all slices under
``com_apple_xcode_dsym_uuids`` (LLDB's *Symbols on macOS*). It finds files in indexed folders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from machtrace.errors import FileAccessError
from machtrace.frozen import dataclass
from machtrace.images.dsym import dwarf_files
from machtrace.images.open_file import OpenedFile
from machtrace.images.store_layout import Identifier

if TYPE_CHECKING:
    from machtrace.images.folder_index import FolderIndex

_PATIENCE = 10.0
"""Seconds; Spotlight answers in some tenths of one, or is busy."""
_MAX_ANSWERS = 64


def run_mdfind(query: str) -> bytes | None:
    """Return the output of ``mdfind`` for ``query``; None without Spotlight or an answer."""
    if sys.platform != "darwin":
        return None
    import subprocess
    from shutil import which

    program = which("mdfind")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the query is made of a UUID
            [program, "-0", query], capture_output=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@dataclass(frozen=True, slots=True)
class Spotlight:
    """A Mac's index of files."""

    run: Callable[[str], bytes | None] = run_mdfind
    """Returns the output of ``mdfind -0`` for a query."""

    def bundles(self, uuid: UUID) -> tuple[str, ...] | None:
        """Return the dSYM bundles and Xcode archives with ``uuid``; None without Spotlight."""
        printed = self.run(spotlight_query(uuid))
        return None if printed is None else paths_printed(printed)


def spotlight_query(uuid: UUID) -> str:
    """Return the query for ``mdfind``."""
    return f"com_apple_xcode_dsym_uuids == {str(uuid).upper()}"


def paths_printed(printed: bytes) -> tuple[str, ...]:
    """Return the absolute paths that ``mdfind -0`` printed, each followed by a NUL."""
    paths = (path.decode("utf-8", "surrogateescape") for path in printed.split(b"\0"))
    return tuple(path for path in paths if path.startswith("/"))[:_MAX_ANSWERS]


DEBUG_ROOTS = ("/usr/lib/debug",)
"""Where systems install debug files of ELF images (GDB's manual, "Separate Debug Files")."""


def path_names(search: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Return one path, or several, as strings."""
    paths = (search,) if isinstance(search, str | Path) else search
    return tuple(map(str, paths))


class SearchPath:
    """Files and folders in the order of the search, each indexed at most once.

    A folder may hold anything: binaries, dSYM bundles, .xcarchive bundles, symbol stores. It is
    indexed when an identifier is not found at the paths that are known for it; files that are added
    later are found by a new search path only.
    """

    def __init__(
        self,
        paths: Sequence[str] = (),
        *,
        debug_roots: Sequence[str] = DEBUG_ROOTS,
        spotlight: Spotlight | None = None,
    ) -> None:
        """Store the paths; none is opened.

        Args:
            paths: the user's: files, bundles, folders, roots of symbol stores.
            debug_roots: the system's folders with debug files of ELF images.
            spotlight: a Mac's index of files; None is this machine's, if it has one.
        """
        self.paths = tuple(paths)
        self.debug_roots = tuple(debug_roots)
        self.debuginfod_cache = debuginfod_cache()
        self.spotlight = Spotlight() if spotlight is None else spotlight
        self._indices: dict[str, FolderIndex] = {}
        self._bundles: dict[str, tuple[str, ...]] = {}
        self._opened: dict[str, OpenedFile] = {}

    @classmethod
    def of(cls, search: str | Path | Sequence[str | Path] = ()) -> SearchPath:
        """Return the search path for one path, or several, as a user gives them."""
        return cls([os.path.expanduser(path) for path in path_names(search)])  # noqa: PTH111

    @property
    def problems(self) -> list[FileAccessError]:
        """Errors of given paths that do not exist."""
        errors = []
        for path in self.paths:
            try:
                os.stat(path)  # noqa: PTH116 - as everything here
            except OSError as error:
                errors.append(FileAccessError(path, error.strerror or "cannot be read"))
            except ValueError as error:  # a name that no file can have
                errors.append(FileAccessError(path, str(error)))
        return errors

    def index(self, folder: str) -> FolderIndex:
        """Return the index of ``folder``, which is built at the first call."""
        index = self._indices.get(folder)
        if index is None:
            from machtrace.images.folder_index import index_of

            index = self._indices[folder] = index_of(folder)
        return index

    def in_bundle(self, bundle: str) -> tuple[str, ...]:
        """Return the DWARF files of a given dSYM bundle, which is listed once."""
        files = self._bundles.get(bundle)
        if files is None:
            files = self._bundles[bundle] = tuple(dwarf_files(bundle))
        return files

    def open_given(self, path: str) -> OpenedFile:
        """Return a given file, which is opened once for all images.

        Raises:
            FileAccessError: it cannot be read.
        """
        file = self.opened(path)
        if file is None:
            file = OpenedFile(path)
            self.add_opened(file)
        return file

    def add_opened(self, file: OpenedFile) -> None:
        """Retain a file that was opened already."""
        self._opened[os.path.abspath(file.path)] = file  # noqa: PTH100

    def opened(self, path: str) -> OpenedFile | None:
        """Return a file that :meth:`open_given` opened."""
        return self._opened.get(os.path.abspath(path)) if self._opened else None  # noqa: PTH100

    def identifiers(self, path: str) -> tuple[Identifier, ...]:
        """Return those of a given file; empty if they cannot be read."""
        try:
            return self.open_given(path).identifiers
        except FileAccessError:  # opening it as an image's records the reason
            return ()


def debuginfod_cache() -> str:
    """Return the folder where debuginfod's clients store files (*debuginfod_find_debuginfo(3)*)."""
    folder = os.environ.get("DEBUGINFOD_CACHE_PATH")
    if folder:
        return folder
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return os.path.join(caches, "debuginfod_client")  # noqa: PTH118
