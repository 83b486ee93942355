"""The files to look at for symbols, in what a user names: files, bundles and whole folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from machtrace.symbolstore.contained_images import Skipped, SkipReason


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that may hold images."""

    path: Path
    size: int
    """In bytes."""
    is_named: bool
    """Whether the user named this very file, rather than a folder that it is in."""


def input_files(place: Path, *, follow_links: bool = False) -> Iterator[InputFile | Skipped]:
    """The regular files at or below ``place``, by name; and what could not be looked at.

    ``place`` itself may be a symbolic link. Below it, a link to a file in the same folder is passed
    over, since the file is found by itself; one that leads elsewhere is not followed, unless
    ``follow_links`` says so, and then only to files. Nothing but files and folders is opened.
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
