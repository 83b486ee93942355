"""Open image files, mapped into memory, and match them to images by identifier."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.formats.object_file import ObjectFile, ObjectSlice, Signature, signature, sniff
from machtrace.frozen import dataclass
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.images.store_layout import Identifier
from machtrace.mapped_file import mapped_file
from machtrace.model.address import FileOffset
from machtrace.model.image import BinaryImage, ImageFormat


def open_image_file(path: str | PathLike[str]) -> memoryview:
    """Map the file at ``path`` read-only; the mapping lives as long as its bytes are in use.

    Raises:
        FileAccessError: there is no such file, it is a directory or a device, it is empty, or it
            may not be read.
    """
    try:
        # Checked before it is opened: opening a named pipe would wait for its other end.
        status = Path(path).stat()
        reason = _unfit(status.st_mode, status.st_size)
        if reason is None:
            with Path(path).open("rb") as file:
                return mapped_file(file.fileno())
    except FileNotFoundError:
        reason = "no such file"
    except PermissionError:
        reason = "no permission to read the file"
    except OSError as error:
        reason = (error.strerror or "the file cannot be read").lower()
    except ValueError as error:
        # A NUL in the path, or a file truncated between the check and the mapping.
        reason = f"the file cannot be mapped ({error})"
    raise FileAccessError(fspath(path), reason)


def _unfit(mode: int, size: int) -> str | None:
    if S_ISDIR(mode):
        return "this is a directory, not a file"
    if not S_ISREG(mode):
        return "not a regular file"
    return None if size else "the file is empty"


_LISTED = 4
"""Identifiers of a file that are listed if none matches."""
_ARCHIVE = b"ar"
"""Stands for an archive's magic."""
_WRAPPED = {
    _ARCHIVE: "a static library, which no process maps",
    b"PK\x03\x04": "a zip file; add it to the symbol store with: machtrace symbols add",
    b"\x1f\x8b": "compressed by gzip; decompress it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; decompress it first",
    b"MSCF": "a cabinet; unpack it first",
}
_MAX_MAGIC_LENGTH = 8


class OpenedFile:
    """A mapped file and the images in it; each image's header is parsed once."""

    def __init__(self, path: str) -> None:
        """Map the file.

        Raises:
            FileAccessError: see :func:`open_image_file`.
        """
        self.path = path
        self.data = open_image_file(path)
        """The whole file."""
        self._slices: tuple[ObjectSlice, ...] | None = None
        self._images: list[IdentifiedFile] = []

    @property
    def is_elf(self) -> bool:
        """Whether the file starts like an ELF file."""
        return signature(self.data) is Signature.ELF

    def images(self) -> Iterator[IdentifiedFile]:
        """The file's images: one, or those of a fat file. A slice is parsed when it is reached.

        Raises:
            FormatError, MemoryReadError: the file is not an image, or a slice is malformed.
        """
        if self._slices is None:
            self._slices = sniff(self.data, self.path)
        for number, part in enumerate(self._slices):
            if number == len(self._images):
                self._images.append(
                    IdentifiedFile(
                        file=self, contents=part.open(), data=part.data, slice_offset=part.offset
                    )
                )
            yield self._images[number]

    @property
    def identifiers(self) -> tuple[Identifier, ...]:
        """The identifiers of all images in the file; empty if it cannot be parsed."""
        try:
            identifiers = [image.identifier for image in self.images()]
        except (FormatError, MemoryReadError):
            return ()
        return tuple(identifier for identifier in identifiers if identifier is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdentifiedFile:
    """An image in a file: all of the file, or a slice of a fat one."""

    file: OpenedFile
    """The mapped file."""
    contents: ObjectFile
    data: memoryview
    """The bytes of ``contents``: of a fat file, only the slice."""
    slice_offset: FileOffset
    """The offset of ``data`` in the file."""

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path

    @property
    def identifier(self) -> Identifier | None:
        """The image's UUID or build-id."""
        return self.contents.image.identifier

    @property
    def arch_name(self) -> str:
        """The architecture's name, which may be one that is not supported."""
        return self.contents.image.header.arch_name

    @property
    def has_code(self) -> bool:
        """Whether it has the image's instructions, which debug files lack."""
        return self.contents.image.has_code


def open_identified(
    path: str,
    image: BinaryImage,
    record: SearchRecord,
    *,
    is_proven: bool = False,
    crc: int | None = None,
    opened: OpenedFile | None = None,
) -> IdentifiedFile | None:
    """Return the part of the file at ``path`` that is ``image``; None, and why in ``record``.

    Args:
        path: the file.
        image: the wanted image.
        record: takes the reason.
        is_proven: whether the file is the image's even if it has no identifier.
        crc: of an ELF file without a build-id, the CRC-32 that makes it the image's.
        opened: the file, if it is open already.
    """
    try:
        file = OpenedFile(path) if opened is None else opened
    except FileAccessError as error:
        missing = error.reason == "no such file"
        record.add(path, *((Outcome.NO_FILE,) if missing else (Outcome.UNREADABLE, error.reason)))
        return None
    may_guess = image.uuid is None and is_proven
    try:
        if image.format is ImageFormat.ELF:
            return _elf(file, path, image, record, may_guess=may_guess, crc=crc)
        return _macho(file, path, image, record, may_guess=may_guess)
    except (FormatError, MemoryReadError) as error:
        wrapped = _WRAPPED.get(_magic(file.data))
        if wrapped is None:
            record.add(path, Outcome.MALFORMED, str(error).removesuffix(f": {path} at 0x0"))
        else:
            record.add(path, Outcome.OTHER_FORMAT, wrapped)
        return None


def _elf(
    file: OpenedFile,
    path: str,
    image: BinaryImage,
    record: SearchRecord,
    *,
    may_guess: bool,
    crc: int | None,
) -> IdentifiedFile | None:
    if not file.is_elf and _magic(file.data) not in _WRAPPED:
        record.add(path, Outcome.OTHER_FORMAT, "not an ELF file")
        return None
    part = next(file.images())
    own = part.identifier
    if own is None and crc is not None:
        from machtrace.images.elf_debug import has_checksum

        if has_checksum(part.data, crc):
            return part
        record.add(path, Outcome.OTHER_CHECKSUM, f"{crc:#010x} wanted")
        return None
    if own == image.uuid and (may_guess or own is not None):
        return part
    record.add(path, Outcome.OTHER_IDENTIFIER, f"build-id {own}" if own else "no build-id")
    return None


def _macho(
    file: OpenedFile, path: str, image: BinaryImage, record: SearchRecord, *, may_guess: bool
) -> IdentifiedFile | None:
    if file.is_elf:
        from machtrace.formats.macho.fat import parse_slices

        parse_slices(file.data, path)  # raises the error that names what the file is not
    others = []
    matches: list[IdentifiedFile] = []
    for part in file.images():
        is_arch = part.contents.image.header.arch is image.arch
        uuid = part.identifier
        if (uuid == image.uuid and uuid is not None) or (may_guess and is_arch):
            if is_arch:
                return part
            matches.append(part)
        else:
            others.append(_slice_name(part))
    if matches:
        return matches[0]
    listed = ", ".join(others[:_LISTED])
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    record.add(path, Outcome.OTHER_IDENTIFIER, listed + more)
    return None


def _slice_name(part: IdentifiedFile) -> str:
    uuid = part.identifier
    return f"{part.arch_name} " + ("without a UUID" if uuid is None else str(uuid).upper())


def _magic(data: memoryview) -> bytes:
    if signature(data) is Signature.STATIC_LIBRARY:
        return _ARCHIVE
    start = bytes(data[:_MAX_MAGIC_LENGTH])
    return next((magic for magic in _WRAPPED if start.startswith(magic)), b"")
