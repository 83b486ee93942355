"""Opening image files: mapped into memory, so that only what is looked at is read.

Opening a file as an image's: by its identifier, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.fat import FatSlice, parse_slices
from machtrace.formats.macho.header import FileType
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.mapped_file import mapped_file
from machtrace.model.address import FileOffset
from machtrace.model.image import BinaryImage, ImageFormat


def open_image_file(path: str | PathLike[str]) -> memoryview:
    """The bytes of the file at ``path``, read-only; the mapping lives as long as they do.

    Raises:
        FileAccessError: there is no such file, it is a directory or a device, it is empty, or it
            may not be read.
    """
    try:
        # Looked at before it is opened: opening a named pipe would wait for its other end.
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
        # A NUL in the path, or a file that lost its contents between the look and the mapping.
        reason = f"the file cannot be mapped ({error})"
    raise FileAccessError(fspath(path), reason)


def _unfit(mode: int, size: int) -> str | None:
    if S_ISDIR(mode):
        return "this is a directory, not a file"
    if not S_ISREG(mode):
        return "not a regular file"
    return None if size else "the file is empty"


_ELF_MAGIC = b"\x7fELF"
_LISTED = 4
"""Identifiers of a file that are told where none is the right one."""
_WRAPPED = {
    b"PK\x03\x04": "a zip file; add it to the symbol store with: machtrace symbols add",
    b"\x1f\x8b": "compressed by gzip; decompress it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; decompress it first",
    b"!<arch>\n": "a static library, which no process maps",
    b"MSCF": "a cabinet; unpack it first",
}
_LONGEST_MAGIC = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdentifiedFile:
    """A file, or a slice of a fat one, that is an image's."""

    path: str
    contents: FileContents | ElfFileContents
    data: memoryview
    """The bytes of ``contents``: of a fat file, only the slice."""
    slice_offset: FileOffset
    """Where in the file at ``path`` ``data`` begins."""

    @property
    def has_code(self) -> bool:
        """Whether it has the image's instructions, which debug files have not."""
        if isinstance(self.contents, FileContents):
            return self.contents.image.header.filetype is not FileType.DSYM
        text = self.contents.image.section(".text")
        return text is None or text.has_bytes


def open_identified(
    path: str,
    image: BinaryImage,
    record: SearchRecord,
    *,
    is_proven: bool = False,
    crc: int | None = None,
) -> IdentifiedFile | None:
    """The part of the file at ``path`` that is ``image``, or None, and why in ``record``.

    Args:
        path: where to look.
        image: what is wanted.
        record: takes what there was.
        is_proven: whether the file is the image's even where no identifier tells.
        crc: of an ELF file without a build-id, the CRC-32 that makes it the image's.
    """
    try:
        data = open_image_file(path)
    except FileAccessError as error:
        missing = error.reason == "no such file"
        record.add(path, *((Outcome.NO_FILE,) if missing else (Outcome.UNREADABLE, error.reason)))
        return None
    may_guess = image.uuid is None and is_proven
    try:
        if image.format is ImageFormat.ELF:
            return _elf(data, path, image, record, may_guess=may_guess, crc=crc)
        return _macho(data, path, image, record, may_guess=may_guess)
    except (FormatError, MemoryReadError) as error:
        wrapped = _WRAPPED.get(_magic(data))
        if wrapped is None:
            record.add(path, Outcome.MALFORMED, str(error).removesuffix(f": {path} at 0x0"))
        else:
            record.add(path, Outcome.OTHER_FORMAT, wrapped)
        return None


def _elf(
    data: memoryview,
    path: str,
    image: BinaryImage,
    record: SearchRecord,
    *,
    may_guess: bool,
    crc: int | None,
) -> IdentifiedFile | None:
    if bytes(data[: len(_ELF_MAGIC)]) != _ELF_MAGIC and _magic(data) not in _WRAPPED:
        record.add(path, Outcome.OTHER_FORMAT, "not an ELF file")
        return None
    contents = ElfFileContents(data, path)
    own = contents.image.build_id
    found = IdentifiedFile(path=path, contents=contents, data=data, slice_offset=FileOffset(0))
    if own is None and crc is not None:
        from machtrace.images.elf_debug import has_checksum

        if has_checksum(data, crc):
            return found
        record.add(path, Outcome.OTHER_CHECKSUM, f"{crc:#010x} wanted")
        return None
    if own == image.uuid and (may_guess or own is not None):
        return found
    record.add(path, Outcome.OTHER_IDENTIFIER, f"build-id {own}" if own else "no build-id")
    return None


def _macho(
    data: memoryview, path: str, image: BinaryImage, record: SearchRecord, *, may_guess: bool
) -> IdentifiedFile | None:
    others = []
    fitting: list[IdentifiedFile] = []
    for part in parse_slices(data, path):
        contents = FileContents(part.data, path)
        uuid, header = contents.image.uuid, contents.image.header
        is_arch = header.arch is image.arch
        if (uuid == image.uuid and uuid is not None) or (may_guess and is_arch):
            found = IdentifiedFile(
                path=path, contents=contents, data=part.data, slice_offset=part.offset
            )
            if is_arch:
                return found
            fitting.append(found)
        else:
            others.append(_named(part, contents))
    if fitting:
        return fitting[0]
    listed = ", ".join(others[:_LISTED])
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    record.add(path, Outcome.OTHER_IDENTIFIER, listed + more)
    return None


def _named(part: FatSlice, contents: FileContents) -> str:
    uuid = contents.image.uuid
    return f"{part.arch_name} " + ("without a UUID" if uuid is None else str(uuid).upper())


def _magic(data: memoryview) -> bytes:
    start = bytes(data[:_LONGEST_MAGIC])
    return next((magic for magic in _WRAPPED if start.startswith(magic)), b"")
