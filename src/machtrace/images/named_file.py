"""The image that a path names, for those who have a file and no process.

Images that a report only names: the one file of that name that the user gave.

Lines of logs and of debuggers have no identifiers. A name suggests and does not prove: what is
taken is told, and nothing is where files of several builds or architectures would do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from machtrace.errors import AmbiguousImageError, ArgumentError, FileAccessError, MachtraceError
from machtrace.formats.object_file import linked_image
from machtrace.images.dsym import is_dsym
from machtrace.images.open_file import IdentifiedFile, OpenedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.store_layout import Identifier
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, shown_identifier
from machtrace.model.symbol import FrameStatus

_GIVE_PATH = "give the path of a Mach-O or an ELF file"
_REASONS = {
    FrameStatus.MISSING_FILE: "no file of this image was found",
    FrameStatus.MISMATCHED_FILE: "only files of other images were found",
    FrameStatus.MALFORMED_FILE: "the image's file is malformed",
}


def path_image(path: str | PathLike[str], arch: Arch | None) -> tuple[BinaryImage, IdentifiedFile]:
    """Return the image in the file at ``path``, as if loaded where it states, and its part of it.

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
    """The error that says why an image's names cannot be had."""
    return FileAccessError(image.path or f"image {image.identifier}", _REASONS[status])


_MOST_FILES = 64
"""Files of one name that are looked into; who gave more has not said which."""

_TOLD = 4
"""Images that are told of at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImageFile:
    """Which image the files of a name are of."""

    identifier: Identifier
    arch: Arch
    format: ImageFormat
    path: str
    """One of the files."""


def find_by_name(name: str, arch: Arch | None, places: SearchPath) -> NamedImageFile | None:
    """The image that all given files called ``name`` are of; None where there is no such file.

    Args:
        name: the last component of the image's path.
        arch: the report's, if it says so: of fat files that slice.
        places: what the user gave; nothing else is looked at.

    Raises:
        AmbiguousImageError: they are of several images.
    """
    found: dict[Identifier, NamedImageFile] = {}
    for number, path in enumerate(dict.fromkeys(_paths(name, places))):
        if number == _MOST_FILES:
            told = [_told(one) for one in found.values()]
            raise AmbiguousImageError(name, [*told[:_TOLD], "and others"])
        for one in _images(path, places):
            if arch is None or one.arch is arch:
                found.setdefault(one.identifier, one)
    if len(found) > 1:
        told = [_told(one) for one in found.values()]
        more = [f"and {len(told) - _TOLD} more"] if len(told) > _TOLD else []
        raise AmbiguousImageError(name, [*told[:_TOLD], *more])
    return next(iter(found.values()), None)


def _paths(name: str, places: SearchPath) -> Iterator[str]:
    for place in places.paths:
        if is_dsym(place):
            files = places.in_bundle(place)
        elif os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises where it may not look
            files = places.index(place).by_name.get(name, ())
        else:
            files = (place,)
        yield from (path for path in files if os.path.basename(path) == name)  # noqa: PTH119


def _images(path: str, places: SearchPath) -> Iterator[NamedImageFile]:
    """Yield those in a file that have identifiers; none if it cannot be read or parsed."""
    try:
        for part in places.open_given(path).images():
            arch = part.contents.image.header.arch
            if arch is not None and part.identifier is not None:
                yield NamedImageFile(
                    identifier=part.identifier, arch=arch, format=part.contents.format, path=path
                )
    except MachtraceError:
        return


def _told(one: NamedImageFile) -> str:
    return f"{one.path} ({one.arch.value} {shown_identifier(one.identifier)})"
