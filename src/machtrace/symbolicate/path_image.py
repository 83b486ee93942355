"""The image that a path names, for those who have a file and no process."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from machtrace.elf.contents import ElfFileContents
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.macho.contents import FileContents
from machtrace.macho.fat import parse_slices
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.image_file import open_image_file

_ELF_MAGIC = b"\x7fELF"
_REASONS = {
    FrameStatus.MISSING_FILE: "no file of this image was found",
    FrameStatus.MISMATCHED_FILE: "only files of other images were found",
    FrameStatus.MALFORMED_FILE: "the image's file is malformed",
}


def path_image(path: str | PathLike[str], arch: Arch | None) -> BinaryImage:
    """The image in the file at ``path``, as if it were loaded where it says.

    Args:
        path: a Mach-O or an ELF file.
        arch: which of a fat file's; None where there is only one.

    Raises:
        FileAccessError: there is no such file.
        FormatError: it is malformed.
        MachtraceError: the file has several images, or not that of ``arch``.
    """
    place = str(Path(path).absolute())
    data = open_image_file(place)
    if bytes(data[: len(_ELF_MAGIC)]) == _ELF_MAGIC:
        elf = ElfFileContents(data, place)
        return _image(elf, ImageFormat.ELF, place)
    machos = [FileContents(part.data, place) for part in parse_slices(data, place)]
    names = ", ".join(one.image.header.arch_name for one in machos)
    fitting = [one for one in machos if arch is None or one.image.header.arch is arch]
    if len(fitting) != 1:
        wanted = "one image" if arch is None else f"an image for {arch.value}"
        raise MachtraceError(
            f"{fspath(path)} does not hold {wanted}, but those for {names}",
            remedy=f"choose an architecture: {names}",
        )
    return _image(fitting[0], ImageFormat.MACHO, place)


def no_file(image: BinaryImage, status: FrameStatus) -> FileAccessError:
    """The error that says why an image's names cannot be had."""
    return FileAccessError(image.path or f"image {image.identifier}", _REASONS[status])


def _image(contents: FileContents | ElfFileContents, kind: ImageFormat, path: str) -> BinaryImage:
    macho = contents.image if isinstance(contents, FileContents) else None
    elf = contents.image if isinstance(contents, ElfFileContents) else None
    text = None if macho is None else macho.text_segment
    image = contents.image
    return BinaryImage(
        path=path,
        uuid=macho.uuid if macho is not None else elf.build_id if elf is not None else None,
        arch=image.arch,
        format=kind,
        load_address=Avma(image.header_svma),
        header_svma=image.header_svma,
        size=0 if text is None else text.vmsize,
        local_path=path,
    )
