"""The image that a path names, for those who have a file and no process."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from machtrace.errors import ArgumentError, FileAccessError, MachtraceError
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.images.open_file import open_image_file

if TYPE_CHECKING:  # not needed for Mach-O
    from machtrace.formats.elf.contents import ElfFileContents

_ELF_MAGIC = b"\x7fELF"
_GIVE_PATH = "give the path of a Mach-O or an ELF file"
_REASONS = {
    FrameStatus.MISSING_FILE: "no file of this image was found",
    FrameStatus.MISMATCHED_FILE: "only files of other images were found",
    FrameStatus.MALFORMED_FILE: "the image's file is malformed",
}


def path_image(
    path: str | PathLike[str], arch: Arch | None
) -> tuple[BinaryImage, FileContents | ElfFileContents]:
    """The image in the file at ``path``, as if it were loaded where it says, and its contents.

    Args:
        path: a Mach-O or an ELF file.
        arch: which of a fat file's; None where there is only one.

    Raises:
        ArgumentError: it is no path.
        FileAccessError: there is no such file.
        FormatError: it is malformed.
        MachtraceError: the file has several images, or not that of ``arch``.
    """
    if not isinstance(path, str | PathLike):
        kind = type(path).__name__
        raise ArgumentError(f"an image is a path or a BinaryImage, not {kind}", remedy=_GIVE_PATH)
    if not fspath(path):
        raise ArgumentError("the image's path is empty", remedy=_GIVE_PATH)
    place = str(Path(path).absolute())
    data = open_image_file(place)
    if bytes(data[: len(_ELF_MAGIC)]) == _ELF_MAGIC:
        from machtrace.formats.elf.contents import ElfFileContents

        elf = ElfFileContents(data, place)
        if arch is not None and elf.image.arch is not arch:
            raise _not_there(path, arch, elf.image.arch.value)
        identifier, size = elf.image.build_id, elf.image.size
        return _image(elf, ImageFormat.ELF, identifier, size), elf
    machos = [FileContents(part.data, place) for part in parse_slices(data, place)]
    names = ", ".join(one.image.header.arch_name for one in machos)
    fitting = [one for one in machos if arch is None or one.image.header.arch is arch]
    if len(fitting) != 1:
        raise _not_there(path, arch, names)
    macho = fitting[0]
    text = macho.image.text_segment
    size = 0 if text is None else text.vmsize
    return _image(macho, ImageFormat.MACHO, macho.image.uuid, size), macho


def _not_there(path: str | PathLike[str], arch: Arch | None, names: str) -> MachtraceError:
    wanted = "one image" if arch is None else f"an image for {arch.value}"
    return MachtraceError(
        f"{fspath(path)} does not hold {wanted}, but those for {names}",
        remedy=f"choose an architecture: {names}",
    )


def no_file(image: BinaryImage, status: FrameStatus) -> FileAccessError:
    """The error that says why an image's names cannot be had."""
    return FileAccessError(image.path or f"image {image.identifier}", _REASONS[status])


def _image(
    contents: FileContents | ElfFileContents,
    kind: ImageFormat,
    identifier: UUID | BuildId | None,
    size: int,
) -> BinaryImage:
    image = contents.image
    return BinaryImage(
        path=contents.source,
        uuid=identifier,
        arch=image.arch,
        format=kind,
        load_address=Avma(image.header_svma),
        header_svma=image.header_svma,
        size=size,
        local_path=contents.source,
    )
