"""A folder with images and their debug files, by identifier.

The layout is Symbolicator's *unified* one, which its ``symsorter`` writes::

    82/d13d98219e3040b62a07a297007a7c/executable         the program or library, one slice of it
    82/d13d98219e3040b62a07a297007a7c/executable.meta    its name, arch and format, as JSON
    82/d13d98219e3040b62a07a297007a7c/debuginfo          the DWARF file of its dSYM

Two images of one UUID and two architectures, which linkers do not make and scripts do, are stored
beside each other: the second as ``executable.arm64e``. Files are written under another name and
renamed when they are whole; existing files are never replaced. So any number of processes may add
to a store and read from it at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from stat import S_ISREG

from machtrace.atomic_write import same_bytes, settle, write_new
from machtrace.errors import FileAccessError
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import (
    FileKind,
    Identifier,
    default_store_path,
    parse_identifier,
    plain_name,
    unified_folder,
)
from machtrace.model.arch import Arch
from machtrace.symbolstore.contained_images import ImageFile, images_in

_META_LIMIT = 1 << 16
"""Bytes of a ``meta`` file that are read; real ones have a hundred."""

_OTHER_ARCH_NAMES = {"x86": "i386"}
"""The names of ``symsorter`` for architectures that have another name here."""


@dataclass(frozen=True, slots=True)
class StoredMeta:
    """The facts about a stored file besides its path."""

    name: str | None = None
    arch: str | None = None


def meta_path(path: Path) -> Path:
    """Return the path of the ``meta`` beside a stored file."""
    return path.with_name(f"{path.name}.meta")


def write_meta(path: Path, image: ImageFile, name: str) -> None:
    """Write the ``meta`` of ``image``, stored at ``path``, unless it exists.

    Raises:
        OSError: it cannot be written.
    """
    document = {
        "name": plain_name(name) or name,
        "arch": image.arch,
        "file_format": image.format.value,
    }
    text = json.dumps(document).encode("utf-8", "backslashreplace")
    write_new(meta_path(path), memoryview(text), None)


def read_meta(path: Path) -> StoredMeta:
    """Return the ``meta`` of the file at ``path``, or the architecture in its own headers."""
    try:
        with meta_path(path).open("rb") as file:
            document = json.loads(file.read(_META_LIMIT))
    except (OSError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return StoredMeta(arch=_own_arch(path))
    name, arch = document.get("name"), document.get("arch")
    return StoredMeta(
        name if isinstance(name, str) else None,
        _OTHER_ARCH_NAMES.get(arch, arch) if isinstance(arch, str) else _own_arch(path),
    )


def identifiers_of(path: Path) -> list[Identifier]:
    """Return the identifiers in the headers of the file at ``path``; none if it is not an image."""
    return [image.identifier for image in _images(path)]


def _own_arch(path: Path) -> str | None:
    images = _images(path)
    return images[0].arch if len(images) == 1 else None


def _images(path: Path) -> list[ImageFile]:
    try:
        return images_in(open_image_file(path), str(path))[0]
    except FileAccessError:
        return []


class PutResult(Enum):
    """The outcome for a file to store."""

    ADDED = "added"
    PRESENT = "already there"
    COLLISION = "collision"
    """Other content exists under the same identifier; it was left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file in a store."""

    path: Path
    identifier: Identifier
    kind: FileKind
    arch: str | None
    """None if neither its name nor its ``meta`` states it."""
    name: str | None
    """Its original name."""
    size: int
    """In bytes."""
    added: float
    """The time when it was stored, in seconds since the epoch."""
    used: float
    """The time when it was last read by the file system's times, or was stored."""


class SymbolStore:
    """A symbol store in the folder ``root``, which need not exist yet."""

    def __init__(self, root: str | Path | None = None) -> None:
        """``root``: None for the default store."""
        self.root = default_store_path() if root is None else Path(root)
        """The folder."""

    def find(
        self,
        identifier: Identifier,
        arch: Arch | str | None = None,
        kind: FileKind = FileKind.DEBUGINFO,
    ) -> Path | None:
        """Return the file of an image; None if the store has none. Raises nothing.

        No folder is listed: two paths are checked. With ``arch``, a file that is known to be of
        another is not returned. Readers of the file should still compare its UUID.
        """
        folder = unified_folder(identifier)
        if folder is None:
            return None
        plain = self.root / folder / kind.value
        if arch is None:
            return plain if _is_file(plain) else None
        wanted = arch.value if isinstance(arch, Arch) else arch
        beside = plain.with_name(f"{kind.value}.{wanted}")
        if _is_file(beside):
            return beside
        if not _is_file(plain):
            return None
        return plain if read_meta(plain).arch in (None, wanted) else None

    def put(
        self,
        image: ImageFile,
        name: str,
        *,
        scratch: Path | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[PutResult, Path]:
        """Store ``image``; return the outcome and the path of it, or of the existing file.

        ``name`` is its original name, of which the last component is stored. ``scratch`` is a file
        in the store's folder that holds just the image, and may be renamed. ``progress`` receives
        numbers of bytes as they are written.

        Raises:
            FileAccessError: the store cannot be written.
        """
        folder = unified_folder(image.identifier)
        if folder is None:
            raise FileAccessError(str(self.root), "an identifier of this length has no path in")
        plain = self.root / folder / image.kind.value
        for path in (plain, plain.with_name(f"{plain.name}.{image.arch}")):
            try:
                if scratch is None:
                    is_new = write_new(path, image.data, progress)
                else:
                    is_new = settle(scratch, path)
                if is_new or same_bytes(path, image.data):
                    write_meta(path, image, name)  # which an interruption may have left out
                    return PutResult.ADDED if is_new else PutResult.PRESENT, path
            except OSError as error:
                place = str(error.filename or path)
                refused = FileAccessError(place, error.strerror or "cannot be written")
                refused.remedy = "name a writable folder with --store, or in MACHTRACE_SYMBOLS"
                raise refused from error
            if path is plain and read_meta(path).arch in (None, image.arch):
                break
        return PutResult.COLLISION, path

    def files(self) -> Iterator[StoredFile]:
        """Yield all files of the store, in the order of their identifiers.

        Raises:
            FileAccessError: the store's folder exists and cannot be listed.
        """
        for folder in self.folders():
            identifier = parse_identifier(folder.parent.name + folder.name)
            if identifier is not None:
                for name in _names(folder):
                    stored = _stored(folder / name, identifier)
                    if stored is not None:
                        yield stored

    def files_of(self, identifier: Identifier) -> list[StoredFile]:
        """Yield the files of one image."""
        relative = unified_folder(identifier)
        if relative is None:
            return []
        folder = self.root / relative
        found = (_stored(folder / name, identifier) for name in _names(folder))
        return [one for one in found if one is not None]

    def folders(self) -> Iterator[Path]:
        """Yield the folders that hold images' files, in order.

        Raises:
            FileAccessError: the store's folder exists and cannot be listed.
        """
        try:
            first = sorted(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise FileAccessError(str(self.root), error.strerror or "cannot be listed") from error
        for start in first:
            if len(start) == 2:  # noqa: PLR2004 - a byte in hex
                yield from (self.root / start / rest for rest in _names(self.root / start))

    def remove(self, stored: StoredFile) -> None:
        """Remove a file from the store.

        Raises:
            FileAccessError: it cannot be removed.
        """
        try:
            stored.path.unlink(missing_ok=True)
            meta_path(stored.path).unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or "cannot be removed"
            raise FileAccessError(str(stored.path), reason) from error
        for folder in (stored.path.parent, stored.path.parent.parent):
            with suppress(OSError):
                folder.rmdir()  # which refuses where there is anything left


def _stored(path: Path, identifier: Identifier) -> StoredFile | None:
    """Return the stored file at ``path``; None if it is not an image's file."""
    word, _, arch = path.name.partition(".")
    kind = next((kind for kind in FileKind if kind.value == word), None)
    if kind is None or arch == "meta" or arch.endswith(".meta"):
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    if not S_ISREG(status.st_mode):
        return None
    meta = read_meta(path)
    return StoredFile(
        path=path,
        identifier=identifier,
        kind=kind,
        arch=meta.arch or arch or None,
        name=meta.name,
        size=status.st_size,
        added=status.st_mtime,
        used=max(status.st_mtime, status.st_atime),
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False
