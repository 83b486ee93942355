"""The modules that frames are in, as images."""

from __future__ import annotations

import re

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.reported_image import ReportedImage
from machtrace.reports.identifiers import identifier
from machtrace.reports.backtraces.frame_lines_x import SanitizerFrameLine

_PROGRAM_BASE = 1 << 32
"""Where programs of macOS are linked to be; libraries are linked to be at 0."""
_FOLDERS = re.compile(r".*[/\\]")


class Modules:
    """The images of a report, in the order in which frames name them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], int] = {}
        self._images: list[ReportedImage] = []

    @property
    def images(self) -> tuple[ReportedImage, ...]:
        """Those that were named so far."""
        return tuple(self._images)

    def place(self, line: SanitizerFrameLine) -> tuple[int | None, ImageOffset | None]:
        """A frame's image, and where it is in it."""
        if line.path is None:
            return None, None
        offset = _from_header(line)
        key = line.path, line.arch
        if key not in self._found:
            self._found[key] = len(self._images)
            base = None
            if line.address is not None and offset is not None and line.address >= offset:
                base = Avma(line.address - offset)
            self._images.append(
                ReportedImage(
                    uuid=identifier(line.build_id, is_macho=line.arch is not None),
                    name=_FOLDERS.sub("", line.path),
                    path=line.path if _FOLDERS.match(line.path) else "",
                    arch=line.arch,
                    load_address=base,
                )
            )
        return self._found[key], offset


def _from_header(line: SanitizerFrameLine) -> ImageOffset | None:
    offset = line.offset
    if offset is None or offset == line.address:
        # A program that is loaded where it was linked to be: where its header is nobody says.
        return None
    if line.arch is not None and offset >= _PROGRAM_BASE:
        offset -= _PROGRAM_BASE
    return ImageOffset(offset) if offset < _PROGRAM_BASE else None
