"""The layouts of symbol stores and symbol servers: paths of an image's files by identifier.

Every function returns a path relative to the store's root, with ``/`` between its parts, or None if
the layout has no path for such a file. Nothing is opened: these are the conventions of

* *unified*: ``symsorter``'s and Symbolicator's (``symbolicator-sources``, ``paths.rs``);
* *LLDB*: "File Mapped UUID Directories" of LLDB's *Symbols on macOS*, which Apple's DebugSymbols
  framework reads; binaries beside the dSYMs with ``.app``, as Symbolicator has them;
* *build-id*: GDB's *Separate Debug Files*, below ``.build-id``;
* *debuginfod*: elfutils' *debuginfod(8)*;
* *SSQP*: "SSQP Key Conventions" of ``dotnet/symstore``.

The default store is in the platform's folder for a user's data.
"""

from __future__ import annotations

import os
import sys
from enum import Enum, StrEnum
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from machtrace.model.image import BuildId

Identifier: TypeAlias = UUID | BuildId
"""The identifier of an image's contents: LC_UUID, or NT_GNU_BUILD_ID."""

_UUID_BYTES = 16
_MIN_BYTES = 2
_MAX_BYTES = 64
"""The longest identifier in a path: SHA-512's. A folder's name has 255 bytes at most."""


class FileKind(Enum):
    """A kind of file of an image; the value is its name in the unified layout."""

    EXECUTABLE = "executable"
    """The loaded file: a program, a library, a bundle."""
    DEBUGINFO = "debuginfo"
    """The file for debuggers: the DWARF file of a dSYM, an ELF ``.debug`` file."""


class ExportLayout(StrEnum):
    """Layouts that a store can be exported in."""

    LLDB = "lldb"
    """For ``DBGFileMappedPaths``: of Mach-O files only."""
    BUILD_ID = "build-id"
    """For GDB's and LLDB's debug file directories: of ELF files only."""
    DEBUGINFOD = "debuginfod"
    """To be served as ``/buildid``: of ELF files only."""
    SSQP = "ssqp"
    UNIFIED = "unified"


def identifier_text(identifier: Identifier) -> str:
    """Return lower-case hex without dashes, the key of files."""
    return identifier.hex


def parse_identifier(text: str) -> Identifier | None:
    """Return the identifier that a user wrote, dashes and case aside; None if invalid.

    32 digits are a UUID, any other even number a build-id. A UUID and a build-id of the same bytes
    have the same path in each layout.
    """
    digits = text.strip().strip("<>{}").replace("-", "")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        return None
    if len(digits) != 2 * len(value) or not _MIN_BYTES <= len(value) <= _MAX_BYTES:
        return None
    return UUID(bytes=value) if len(value) == _UUID_BYTES else BuildId(value)


def unified_path(identifier: Identifier, kind: FileKind) -> str | None:
    """Return ``ab/cdef…/executable``."""
    folder = unified_folder(identifier)
    return None if folder is None else f"{folder}/{kind.value}"


def unified_folder(identifier: Identifier) -> str | None:
    """Return ``ab/cdef…``: the folder with all files of an image."""
    text = _key(identifier)
    return None if text is None else f"{text[:2]}/{text[2:]}"


def lldb_path(identifier: Identifier, kind: FileKind) -> str | None:
    """Return ``ABCD/ABCD/ABCD/ABCD/ABCD/ABCDABCDABCD``, and ``….app`` of a binary.

    The former is a symbolic link to the DWARF file in a dSYM bundle.
    """
    text = identifier_text(identifier).upper()
    if len(text) != 2 * _UUID_BYTES:
        return None
    groups = [text[at : at + 4] for at in range(0, 20, 4)]
    ending = "" if kind is FileKind.DEBUGINFO else ".app"
    return "/".join([*groups, text[20:] + ending])


def build_id_path(identifier: Identifier, kind: FileKind) -> str | None:
    """Return ``.build-id/ab/cdef….debug``, or without ``.debug`` for a binary."""
    text = _key(identifier)
    if text is None:
        return None
    ending = ".debug" if kind is FileKind.DEBUGINFO else ""
    return f".build-id/{text[:2]}/{text[2:]}{ending}"


def debuginfod_path(identifier: Identifier, kind: FileKind) -> str | None:
    """Return ``abcdef…/debuginfo``; on a server, below ``/buildid``."""
    text = _key(identifier)
    return None if text is None else f"{text}/{kind.value}"


def ssqp_path(
    identifier: Identifier, kind: FileKind, name: str, *, is_macho: bool | None = None
) -> str | None:
    """Return ``name/mach-uuid-abcdef…/name``; ``_.dwarf/mach-uuid-sym-…/_.dwarf`` of DWARF.

    ELF's have ``elf-buildid-`` and ``_.debug``. All is lower-case, as SSQP requires. Without
    ``is_macho`` a UUID is taken for a Mach-O's; a build-id of 16 bytes reads the same.
    """
    text = _key(identifier)
    if text is None:
        return None
    is_macho = isinstance(identifier, UUID) if is_macho is None else is_macho
    label = "mach-uuid" if is_macho else "elf-buildid"
    if kind is FileKind.DEBUGINFO:
        fixed = "_.dwarf" if is_macho else "_.debug"
        return f"{fixed}/{label}-sym-{text}/{fixed}"
    file = plain_name(name)
    return None if file is None else f"{file.lower()}/{label}-{text}/{file.lower()}"


def plain_name(path: str) -> str | None:
    """Return the last component of ``path`` if it can name a file, whatever a target stated."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return None if name in ("", ".", "..") or "\0" in name else name


def _key(identifier: Identifier) -> str | None:
    text = identifier_text(identifier)
    return text if 2 * _MIN_BYTES <= len(text) <= 2 * _MAX_BYTES else None


class UserFolder(Enum):
    """A folder for a user's files: its name on a Mac, and elsewhere by the XDG Base Directories."""

    DATA = ("Application Support", "XDG_DATA_HOME", ".local/share")
    CACHE = ("Caches", "XDG_CACHE_HOME", ".cache")
    """Files that can be rebuilt."""

    def path(self) -> Path:
        """Return this package's folder in it; on Windows all are in ``%LOCALAPPDATA%``."""
        of_macos, variable, else_ = self.value
        home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
        if sys.platform == "darwin":
            outer = home / "Library" / of_macos
        elif sys.platform == "win32":
            outer = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
        else:
            outer = Path(os.environ.get(variable) or home / else_)
        return outer / "machtrace"


STORE_VARIABLE = "MACHTRACE_SYMBOLS"
"""The environment variable with the folder of the default store."""


def default_store_path() -> Path:
    """Return the folder of the default store.

    ``$MACHTRACE_SYMBOLS``, else the platform's folder for a user's data: Application Support on a
    Mac, ``%LOCALAPPDATA%`` on Windows, ``$XDG_DATA_HOME`` or ``~/.local/share`` elsewhere.
    """
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return UserFolder.DATA.path() / "symbols"
