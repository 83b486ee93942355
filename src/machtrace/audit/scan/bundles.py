"""The files of an app that matter to an audit: images, manifests, and lists of information.

An app is a folder, or an archive of one (``.ipa``, ``.zip``): the path of a file decides to which
bundle it belongs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from pathlib import Path, PurePosixPath

from machtrace.audit.scan.manifest import MANIFEST, MAX_BYTES
from machtrace.errors import FileAccessError, FormatError, MachtraceError
from machtrace.formats.elf.structs import MAGIC as ELF_MAGIC
from machtrace.formats.macho.header import MAGICS
from machtrace.formats.zip_archive import ZipError, ZipMember, ZipProblem, is_zip, read_members
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file

BUNDLES = (".app", ".appex", ".framework", ".xctest", ".bundle", ".xcarchive", ".watchapp")
"""The ends of the names of folders that are bundles."""
INFORMATION = "Info.plist"
_FAT_MAGICS = (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")
_MAGICS = frozenset({*MAGICS, *_FAT_MAGICS})
_ARCHIVE_MAGIC = b"!<arch>\n"
_MAGIC_SIZE = 8
_MAX_IMAGE_SIZE = 4 << 30
_MAX_FILES = 1_000_000


class PartKind(Enum):
    """The kind of a file."""

    IMAGE = auto()
    STATIC_LIBRARY = auto()
    MANIFEST = auto()
    INFORMATION = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One file."""

    path: str
    """Relative to the app, with slashes."""
    kind: PartKind
    data: memoryview


def read_parts(path: Path, *, with_elf: bool = False) -> Iterator[Part | MachtraceError]:
    """Yield the parts of an app, an archive of one, a folder, or a single image, by path.

    A file that cannot be read is yielded as its error. Images are Mach-O ones, and if ``with_elf``
    is set ELF ones.

    Raises:
        FileAccessError: there is no such file or folder.
        FormatError: a single file is neither an image nor an archive.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise FileAccessError(
            str(path), f"cannot scan: {getattr(error, 'strerror', None) or error}"
        ) from None
    magics = {*_MAGICS, ELF_MAGIC} if with_elf else _MAGICS
    if stat.S_ISDIR(mode):
        yield from _of_folder(path, magics)
        return
    data = open_image_file(path)
    if is_zip(data):
        yield from _of_archive(data, path.name, magics)
        return
    kind = _kind(path.name, bytes(data[:_MAGIC_SIZE]), magics)
    if kind not in (PartKind.IMAGE, PartKind.STATIC_LIBRARY):
        raise FormatError(
            "neither an app, an .ipa, nor a Mach-O",
            source=str(path),
            offset=0,
            remedy="give an .app, .ipa, .xcarchive, framework, Mach-O file, or a folder of them",
        )
    yield Part(path=path.name, kind=kind, data=data)


def bundle_of(path: str) -> str:
    """Return the innermost bundle that holds a file: a path, or empty for none."""
    folders = PurePosixPath(path).parts[:-1]
    for end in range(len(folders), 0, -1):
        if folders[end - 1].lower().endswith(BUNDLES):
            return "/".join(folders[:end])
    return ""


def _kind(name: str, magic: bytes, magics: AbstractSet[bytes]) -> PartKind | None:
    if name == MANIFEST:
        return PartKind.MANIFEST
    if name == INFORMATION:
        return PartKind.INFORMATION
    if magic == _ARCHIVE_MAGIC:
        return PartKind.STATIC_LIBRARY
    return PartKind.IMAGE if magic[:4] in magics and not _is_java(magic) else None


def _is_java(magic: bytes) -> bool:
    """Return whether a fat header's number of images is the version of a Java class instead."""
    return magic[:4] == _FAT_MAGICS[0] and int.from_bytes(magic[4:8], "big") > 20  # noqa: PLR2004


def _of_folder(root: Path, magics: AbstractSet[bytes]) -> Iterator[Part | MachtraceError]:
    count = 0
    # The name of the folder itself counts: it may be the bundle.
    start = root.resolve().name
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _MAX_FILES:
                yield FileAccessError(
                    str(root), f"more than {_MAX_FILES} files; not searched further"
                )
                return
            path = Path(folder, name)
            try:
                part = _read(path, magics)
            except MachtraceError as error:
                yield error
                continue
            if part is not None:
                kind, data = part
                inside = path.relative_to(root).as_posix()
                yield Part(path=f"{start}/{inside}", kind=kind, data=data)


def _read(path: Path, magics: AbstractSet[bytes]) -> tuple[PartKind, memoryview] | None:
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or _is_too_small(path.name, state.st_size):
            return None
        with path.open("rb") as file:
            magic = file.read(_MAGIC_SIZE)
    except OSError as error:
        raise FileAccessError(
            str(path), f"cannot read: {getattr(error, 'strerror', None) or error}"
        ) from None
    kind = _kind(path.name, magic, magics)
    if kind is None:
        return None
    return kind, open_image_file(path) if state.st_size else memoryview(b"")


def _is_too_small(name: str, size: int) -> bool:
    """Return whether a file of this size can be nothing that matters: an empty manifest is one."""
    return size < _MAGIC_SIZE and name not in (MANIFEST, INFORMATION)


def _of_archive(
    data: memoryview, source: str, magics: AbstractSet[bytes]
) -> Iterator[Part | MachtraceError]:
    try:
        members = read_members(data)
    except ZipError as error:
        raise FormatError(str(error), source=source, offset=0) from None
    files: dict[str, ZipMember] = {}
    for member in members:
        if not member.is_file:
            continue
        parts = PurePosixPath(member.name.replace("\\", "/")).parts
        path = "/".join(parts)
        if not parts or ".." in parts or parts[0] == "/":
            text = "its path leads out of the archive"
            yield FormatError(f"{member.name}: {text}", source=source, offset=0)
            continue
        if path in files:
            text = "the archive has several files of this path, and the last one is read"
            yield FormatError(f"{path}: {text}", source=source, offset=0)
        files[path] = member
    for path, member in sorted(files.items()):
        if _is_too_small(path.rpartition("/")[2], member.size):
            continue
        try:
            part = _unpacked(member, path, magics)
        except ZipError as error:
            yield FormatError(f"{member.name}: {error}", source=source, offset=0)
            continue
        if part is not None:
            yield part


def _unpacked(member: ZipMember, path: str, magics: AbstractSet[bytes]) -> Part | None:
    name = path.rpartition("/")[2]
    kind = _kind(name, member.start(_MAGIC_SIZE), magics)
    if kind is None:
        return None
    most = _MAX_IMAGE_SIZE if kind in (PartKind.IMAGE, PartKind.STATIC_LIBRARY) else MAX_BYTES
    if member.size > most:
        raise ZipError(ZipProblem.TOO_LARGE, f"it has {member.size:,} bytes, {most:,} are read")
    return Part(path=path, kind=kind, data=memoryview(b"".join(member.chunks())))
