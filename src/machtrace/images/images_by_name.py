"""Images that a report only names: the one file of that name that the user gave.

Lines of logs and of debuggers have no identifiers. A name suggests and does not prove: what is
taken is told, and nothing is where files of several builds or architectures would do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.errors import AmbiguousImageError, MachtraceError
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat, shown_identifier
from machtrace.images.dsym import is_dsym
from machtrace.images.open_file import open_image_file
from machtrace.images.search_path import SearchPath
from machtrace.images.store_layout import Identifier

_ELF_START = b"\x7fELF"
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
        for one in _images(path):
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


def _images(path: str) -> Iterator[NamedImageFile]:
    """Those in a file that have identifiers; none where it cannot be read, or is no image file."""
    try:
        data = open_image_file(path)
        if bytes(data[: len(_ELF_START)]) == _ELF_START:
            image = ElfFileContents(data, path).image
            arch, build_id = image.header.arch, image.build_id
            if build_id is not None:
                yield NamedImageFile(
                    identifier=build_id, arch=arch, format=ImageFormat.ELF, path=path
                )
            return
        for part in parse_slices(data, path):
            macho = FileContents(part.data, path).image
            if macho.header.arch is not None and macho.uuid is not None:
                yield NamedImageFile(
                    identifier=macho.uuid,
                    arch=macho.header.arch,
                    format=ImageFormat.MACHO,
                    path=path,
                )
    except MachtraceError:
        return


def _told(one: NamedImageFile) -> str:
    return f"{one.path} ({one.arch.value} {shown_identifier(one.identifier)})"
