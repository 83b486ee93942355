"""The image that a path stands for, or only a name in a report.

Lines of logs and of debuggers have no identifiers. A name suggests and does not prove: the file
that is used is reported, and none is if files of several builds or architectures match.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path

from machtrace.errors import AmbiguousImageError, ArgumentError, FileAccessError, MachtraceError
from machtrace.formats.object_file import linked_image
from machtrace.frozen import dataclass
from machtrace.images.dsym import is_dsym
from machtrace.images.open_file import IdentifiedFile, OpenedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.store_layout import Identifier
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, shown_identifier
from machtrace.model.symbol import FrameStatus

_GIVE_PATH = "pass the path of a Mach-O or an ELF file"
_REASONS = {
    FrameStatus.MISSING_FILE: "no file of this image was found",
    FrameStatus.MISMATCHED_FILE: "only files of other images were found",
    FrameStatus.MALFORMED_FILE: "the image's file is malformed",
}


def path_image(path: str | PathLike[str], arch: Arch | None) -> tuple[BinaryImage, IdentifiedFile]:
    """Return the image in the file at ``path``, as if loaded where it states, and its part of it.

    Args:
        path: a Mach-O or an ELF file.
        arch: the architecture of a fat file's image; None if it has only one.

    Raises:
        ArgumentError: it is not a path.
        FileAccessError: the file does not exist.
        FormatError: it is malformed.
        MachtraceError: the file has several images, or not that of ``arch``.
    """
    if not isinstance(path, str | PathLike):
        kind = type(path).__name__
        raise ArgumentError(f"an image is a path or a BinaryImage, not {kind}", remedy=_GIVE_PATH)
    if not fspath(path):
        raise ArgumentError("the image's path is empty", remedy=_GIVE_PATH)
    parts = list(OpenedFile(str(Path(path).absolute())).images())
    matches = [part for part in parts if arch is None or part.contents.image.header.arch is arch]
    if len(matches) != 1:
        raise _not_there(path, arch, ", ".join(part.arch_name for part in parts))
    part = matches[0]
    return linked_image(part.contents), part


def _not_there(path: str | PathLike[str], arch: Arch | None, names: str) -> MachtraceError:
    wanted = "one image" if arch is None else f"an image for {arch.value}"
    return MachtraceError(
        f"{fspath(path)} does not hold {wanted}, but those for {names}",
        remedy=f"choose an architecture: {names}",
    )


def no_file(image: BinaryImage, status: FrameStatus) -> FileAccessError:
    """Return the error for an image without names."""
    return FileAccessError(image.path or f"image {image.identifier}", _REASONS[status])


_MAX_FILES = 64
"""Files of one name that are opened; more are ambiguous."""

_LISTED = 4
"""Images that are listed in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImageFile:
    """The image that all files of a name are of."""

    identifier: Identifier
    arch: Arch
    format: ImageFormat
    path: str
    """One of the files."""


def find_by_name(name: str, arch: Arch | None, search_path: SearchPath) -> NamedImageFile | None:
    """Return the image that all given files called ``name`` are of; None if no such file exists.

    Args:
        name: the last component of the image's path.
        arch: the architecture that the report states: of fat files that slice.
        search_path: the user's files and folders.

    Raises:
        AmbiguousImageError: they are of several images.
    """
    images: dict[Identifier, NamedImageFile] = {}
    for number, path in enumerate(dict.fromkeys(_paths(name, search_path))):
        if number == _MAX_FILES:
            descriptions = [_description(image) for image in images.values()]
            raise AmbiguousImageError(name, [*descriptions[:_LISTED], "and others"])
        for image in _images(path, search_path):
            if arch is None or image.arch is arch:
                images.setdefault(image.identifier, image)
    if len(images) > 1:
        descriptions = [_description(image) for image in images.values()]
        more = [f"and {len(descriptions) - _LISTED} more"] if len(descriptions) > _LISTED else []
        raise AmbiguousImageError(name, [*descriptions[:_LISTED], *more])
    return next(iter(images.values()), None)


def _paths(name: str, search_path: SearchPath) -> Iterator[str]:
    for root in search_path.paths:
        if is_dsym(root):
            files = search_path.in_bundle(root)
        elif os.path.isdir(root):  # noqa: PTH112 - Path.is_dir raises where it may not look
            files = search_path.index(root).by_name.get(name, ())
        else:
            files = (root,)
        yield from (path for path in files if os.path.basename(path) == name)  # noqa: PTH119


def _images(path: str, search_path: SearchPath) -> Iterator[NamedImageFile]:
    """Yield those in a file that have identifiers; none if it cannot be read or parsed."""
    try:
        for part in search_path.open_given(path).images():
            arch = part.contents.image.header.arch
            if arch is not None and part.identifier is not None:
                yield NamedImageFile(
                    identifier=part.identifier, arch=arch, format=part.contents.format, path=path
                )
    except MachtraceError:
        return


def _description(one: NamedImageFile) -> str:
    return f"{one.path} ({one.arch.value} {shown_identifier(one.identifier)})"
