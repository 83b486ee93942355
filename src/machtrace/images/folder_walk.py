"""Going through a folder with all that is in it, however much and however tangled that is."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

ENTRIES_LIMIT = 2_000_000
"""Files and folders that one walk passes; above that it ends, and says so."""
_FIRST_OF_ALL = (".dSYM", ".xcarchive")
_FIRST_BY_NAME = frozenset({"dSYMs", "Products"})
_LEFT_OUT = frozenset({".git", ".hg", ".svn"})
"""Folders with nothing but the history of sources."""

_LOOKED_AT = 16
"""Entries that show whether a folder is a symbol store's."""

_LAYOUTS = (
    # A folder of the root, and what is in one: unified and .build-id, LLDB's, debuginfod's.
    (re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{14,}(\.debug)?")),
    (re.compile(r"[0-9A-F]{4}"), re.compile(r"[0-9A-F]{4}")),
    (re.compile(r"[0-9a-f]{32,}"), re.compile(r"debuginfo|executable")),
)


@dataclass(slots=True)
class FolderWalk:
    """One walk; what it met besides files is here when it has ended."""

    root: str
    stores: list[str] = field(default_factory=list)
    """Roots of symbol stores, where files are found by their identifiers: not gone through."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that may not be listed."""
    is_cut_short: bool = False
    """Whether there were more than :data:`ENTRIES_LIMIT` entries."""
    _room: int = field(default_factory=lambda: ENTRIES_LIMIT)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def files(self) -> Iterator[str]:
        """The paths of regular files, folders with symbols first, else the nearest first.

        Symbolic links are followed, and no folder is gone through twice.
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
        """What is in a folder, by name; nothing where it was gone through, or may not be."""
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
        """Those of ``folders`` that make ``folder`` a symbol store."""
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
            return any(name.fullmatch(entry.name) for entry in islice(listing, _LOOKED_AT))
    except OSError:
        return False


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link that leads round, or where nobody may look
        return False
