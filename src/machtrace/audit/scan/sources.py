"""The source files of an image's functions, by its debug information."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.object_file import ObjectFile
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.image import BinaryImage, BuildId, ImageFormat


class SourcePaths:
    """Paths of source files in the debug information that the user gave; none by default."""

    def __init__(self, search: Sequence[str]) -> None:
        """Open nothing yet; ``search`` are files and folders."""
        self._search = search

    def of(self, contents: ObjectFile) -> Callable[[ImageOffset], str | None]:
        """Return a function from a function's offset in an image to its source file's path."""
        if not self._search:
            return lambda _: None
        # Readers of DWARF take a while to import.
        from machtrace.images.resolver import ImageResolver
        from machtrace.lines.debug_information import DebugInformation

        information = DebugInformation(ImageResolver.of(list(self._search)))
        image = _binary_image(contents)

        def source_of(offset: ImageOffset) -> str | None:
            frames = information.frames(image, offset)
            location = frames[-1].location if frames else None
            return None if location is None else location.path

        return source_of


def _binary_image(contents: ObjectFile) -> BinaryImage:
    image = contents.image
    start = image.header_svma
    if isinstance(contents, MachOFileContents):
        end = max(
            (section.address + section.size for section in contents.image.code_sections),
            default=start,
        )
        arch, kind = contents.image.arch, ImageFormat.MACHO
    else:
        end, arch, kind = start + contents.image.size, contents.image.arch, ImageFormat.ELF
    identifier = image.identifier
    return BinaryImage(
        path=contents.source,
        uuid=identifier if isinstance(identifier, UUID | BuildId) else None,
        arch=arch,
        format=kind,
        load_address=Avma(start),
        header_svma=Svma(start),
        size=end - start,
    )
