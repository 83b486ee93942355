"""The image files in a folder by identifier, indexed once for as long as the index is in use."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import islice
from threading import Lock
from uuid import UUID
from weakref import WeakValueDictionary

from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.header import parse_header
from machtrace.formats.macho.load_commands import LC_UUID, parse_load_commands
from machtrace.formats.macho.structs import UUID_COMMAND
from machtrace.formats.object_file import Signature, signature
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import Identifier
from machtrace.model.text import counted

ENTRIES_LIMIT = 2_000_000
"""Files and folders that one walk visits; beyond it the walk ends and the index is cut short."""
_FIRST_OF_ALL = (".dSYM", ".xcarchive")
_FIRST_BY_NAME = frozenset({"dSYMs", "Products"})
_LEFT_OUT = frozenset({".git", ".hg", ".svn"})
"""Folders with nothing but the history of sources."""

_SAMPLED = 16
"""Entries that are examined to recognise a symbol store's folder."""

_LAYOUTS = (
    # A folder of the root, and what is in one: unified and .build-id, LLDB's, debuginfod's.
    (re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{14,}(\.debug)?")),
    (re.compile(r"[0-9A-F]{4}"), re.compile(r"[0-9A-F]{4}")),
    (re.compile(r"[0-9a-f]{32,}"), re.compile(r"debuginfo|executable")),
)


@dataclass(slots=True)
class FolderWalk:
    """One walk; its attributes besides :meth:`files` are complete when it has ended."""

    root: str
    stores: list[str] = field(default_factory=list)
    """Roots of symbol stores, where files are found by their identifiers: not walked."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that may not be listed."""
    is_cut_short: bool = False
    """Whether there were more than :data:`ENTRIES_LIMIT` entries."""
    _room: int = field(default_factory=lambda: ENTRIES_LIMIT)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def files(self) -> Iterator[str]:
        """Yield the paths of regular files, folders with symbols first, else the nearest first.

        Symbolic links are followed, and no folder is walked twice.
        """
        symbols: deque[str] = deque()
        others = deque([self.root])
        while (symbols or others) and not self.is_cut_short:
            is_of_symbols = bool(symbols)
            folder = symbols.popleft() if symbols else others.popleft()
            entries = self._entries(folder)
            yield from (entry.path for entry in entries if _is(entry.is_file))
            folders = [entry for entry in entries if _is(entry.is_dir)]
            left_out = _LEFT_OUT | self._kept_by_identifier(folder, folders)
            for entry in folders:
                if entry.name not in left_out:
                    is_first = is_of_symbols or _comes_first(entry.name)
                    (symbols if is_first else others).append(entry.path)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Return a folder's entries by name; none if it was walked already or is unreadable."""
        entries: list[os.DirEntry[str]] = []
        try:
            status = os.stat(folder)  # noqa: PTH116 - thousands of them
            if (status.st_dev, status.st_ino) in self._seen:
                return []
            self._seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as listing:
                entries.extend(islice(listing, self._room + 1))
        except (OSError, ValueError):  # no such folder; a name that no folder can have
            self.unreadable.append(folder)
        self._room -= len(entries)
        self.is_cut_short = self._room < 0
        return sorted(entries, key=lambda entry: entry.name)

    def _kept_by_identifier(self, folder: str, folders: list[os.DirEntry[str]]) -> frozenset[str]:
        """Return those of ``folders`` that make ``folder`` a symbol store."""
        for outer, inner in _LAYOUTS:
            fitting = [entry for entry in folders if outer.fullmatch(entry.name)]
            if fitting and _holds(fitting[0].path, inner):
                is_build_id = os.path.basename(folder) == ".build-id"  # noqa: PTH119
                self.stores.append(os.path.dirname(folder) if is_build_id else folder)  # noqa: PTH120
                return frozenset(entry.name for entry in fitting)
        return frozenset()


def _comes_first(name: str) -> bool:
    return name.endswith(_FIRST_OF_ALL) or name in _FIRST_BY_NAME


def _holds(folder: str, name: re.Pattern[str]) -> bool:
    try:
        with os.scandir(folder) as listing:
            return any(name.fullmatch(entry.name) for entry in islice(listing, _SAMPLED))
    except OSError:
        return False


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link that leads round, or where nobody may look
        return False


_FIRST = 1 << 12
"""Bytes read of every file: enough for the load commands of most."""
_MAX_COMMANDS = 1 << 24
"""Bytes of load commands that are searched; those of the largest caches take some 100 KB."""


def identifiers_of(path: str) -> tuple[Identifier, ...]:
    """Return the identifiers of all images in a file; none if it is not an image file.

    Raises:
        OSError, FormatError: it cannot be read, or only starts like an image.
    """
    # A named pipe must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        start = os.read(descriptor, _FIRST)
        kind = signature(start)
        if kind is Signature.MACHO:
            return _thin(descriptor, start, path)
    finally:
        os.close(descriptor)
    if kind is Signature.ELF:
        build_id = ElfFileContents(open_image_file(path), path).image.build_id
        return () if build_id is None else (build_id,)
    if kind is Signature.FAT_MACHO:
        found = (_uuid(part.data, path) for part in parse_slices(open_image_file(path), path))
        return tuple(uuid for uuid in found if uuid is not None)
    return ()


def _thin(descriptor: int, start: bytes, path: str) -> tuple[UUID, ...]:
    header = parse_header(start, path)
    size = header.size + header.sizeofcmds
    if size > len(start):
        if size > _MAX_COMMANDS:
            raise FormatError(f"{size} bytes of load commands", source=path, offset=0)
        start += os.read(descriptor, size - len(start))
    uuid = _uuid(start, path)
    return () if uuid is None else (uuid,)


def _uuid(data: bytes | memoryview, path: str) -> UUID | None:
    header = parse_header(data, path)
    commands = parse_load_commands(
        header, memoryview(data)[header.size : header.size + header.sizeofcmds], path
    )
    for command in commands:
        if command.cmd == LC_UUID:
            return UUID(bytes=command.unpack(UUID_COMMAND, path).uuid)
    return None


FILES_LIMIT = 500_000
"""Files of one folder that are opened; beyond it the index is cut short."""
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
    """How many were opened."""
    malformed: int
    """How many of them only started like image files."""
    unreadable: int
    """How many files and folders could not be read."""
    is_cut_short: bool
    """Whether a limit left files out."""

    def __str__(self) -> str:
        """Return the counts as one line."""
        parts = [counted(self.files, "file"), counted(len(self.by_identifier), "image")]
        if self.stores:
            parts.append(counted(len(self.stores), "symbol store"))
        if self.malformed:
            parts.append(f"{self.malformed} malformed")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable")
        return ", ".join(parts)


_indices: WeakValueDictionary[str, FolderIndex] = WeakValueDictionary()
_making = Lock()


def index_of(folder: str) -> FolderIndex:
    """Return the index of ``folder``, which is shared as long as it is in use. Raises nothing."""
    key = os.path.realpath(folder)
    with _making:
        index = _indices.get(key)
        if index is None:
            index = _indices[key] = make_index(folder)
        return index


def make_index(folder: str) -> FolderIndex:
    """Index all files below ``folder``, within the limits. Raises nothing."""
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
