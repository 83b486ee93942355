"""Names for offsets in the images of reports: each image opened once, each name made once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.reported_frame import NameSource
from machtrace.model.reported_image import ReportedImage
from machtrace.model.symbol import Certainty, FrameStatus, InlineFrame, SourceLocation, Symbol
from machtrace.symbolicate.image_names import ImageNames
from machtrace.symbolicate.image_source import ImageSource
from machtrace.symbolicate.shown_names import as_apple_shows

_ARCHES = {arch.value: arch for arch in Arch}
_SOURCES: dict[Certainty, NameSource] = {
    certainty: NameSource(certainty.value)
    for certainty in Certainty
    if certainty is not Certainty.NONE
}
_LEAST = 0x1000
"""Bytes of an image whose size is not reported."""


class ReportCall(NamedTuple):
    """A function that an offset is in: itself, or inlined there."""

    name: str
    start: ImageOffset | None
    """Of the function; None of what is inlined."""
    source: NameSource
    location: SourceLocation | None
    others: tuple[str, ...] = ()
    """Further spellings and names of the same function."""


Calls = tuple[ReportCall, ...]
"""Innermost first; the function that holds the offset is the last. Empty where it has no name."""


class ReportNames:
    """Names in any number of images, which are found by their UUIDs."""

    def __init__(self, search: Sequence[str | Path] = ()) -> None:
        """Open nothing yet.

        Args:
            search: files and folders to look for images and debug files in.
        """
        self._source = ImageSource.of(search)
        self._images: dict[UUID, _NamedImage | FrameStatus] = {}

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """Why names or lines may be missing, as far as it was seen."""
        opened = (one for one in self._images.values() if isinstance(one, _NamedImage))
        return (
            *self._source.places.problems,
            *(problem for one in opened for problem in one.problems),
        )

    def status(self, image: ReportedImage) -> FrameStatus:
        """SYMBOLICATED where there is a file of the image; else why there is none."""
        opened = self._opened(image)
        return opened if isinstance(opened, FrameStatus) else FrameStatus.SYMBOLICATED

    def find(self, image: ReportedImage, offsets: Iterable[int]) -> dict[int, Calls]:
        """What is at each of the offsets (ImageOffset) in an image; nothing of one without a file.

        Raises nothing.
        """
        opened = self._opened(image)
        if isinstance(opened, FrameStatus):
            return {}
        wanted = sorted(offsets)
        return dict(zip(wanted, opened.find(wanted), strict=True))

    def _opened(self, image: ReportedImage) -> _NamedImage | FrameStatus:
        if image.uuid is None:
            return FrameStatus.UNKNOWN_IMAGE
        found = self._images.get(image.uuid)
        if found is None:
            wanted = _binary_image(image, image.uuid)
            status = self._source.files(wanted).status
            if status is FrameStatus.SYMBOLICATED:
                found = _NamedImage(ImageNames(wanted, source=self._source))
            else:
                found = status
            self._images[image.uuid] = found
        return found


def _binary_image(image: ReportedImage, uuid: UUID) -> BinaryImage:
    """The image as it was linked; its UUID tells which one, so that the rest only helps to look."""
    return BinaryImage(
        path=image.path or image.name,
        uuid=uuid,
        arch=_ARCHES.get(image.arch or "", Arch.ARM64),
        format=ImageFormat.MACHO,
        load_address=Avma(0),
        header_svma=Svma(0),
        size=image.size or _LEAST,
    )


class _NamedImage:
    """One image's names; those of a place in the source are made once."""

    def __init__(self, names: ImageNames) -> None:
        self._names = names
        self._calls: dict[tuple[int, int], Calls] = {}

    @property
    def problems(self) -> Sequence[MachtraceError]:
        return self._names.problems

    def find(self, offsets: Sequence[int]) -> Iterator[Calls]:
        for offset, found in zip(offsets, self._names.find(offsets), strict=True):
            calls = self._calls.get(found)
            if calls is None:
                calls = self._calls[found] = self._make(offset, found.function, found.location)
            yield calls

    def _make(self, offset: int, function: int, location: int) -> Calls:
        symbol = self._names.function(function)
        frames = () if location < 0 else self._names.calls(ImageOffset(offset))
        if not frames or frames[-1].location is None:
            return () if symbol is None or not symbol.is_named else (_of_symbol(symbol),)
        *inlined, outer = frames
        return (*map(_of_frame, inlined), _of_function(outer, symbol))


def _of_symbol(symbol: Symbol) -> ReportCall:
    return ReportCall(
        name=as_apple_shows(symbol.linkage_name, symbol.name),
        start=symbol.offset,
        source=_SOURCES[symbol.certainty],
        location=None,
        others=(symbol.name, symbol.linkage_name, *symbol.aliases),
    )


def _of_frame(frame: InlineFrame) -> ReportCall:
    return ReportCall(
        name=as_apple_shows(frame.linkage_name, frame.name) or "???",
        start=None,
        source=NameSource.DEBUG_INFORMATION,
        location=frame.location,
        others=(frame.name, frame.linkage_name),
    )


def _of_function(frame: InlineFrame, symbol: Symbol | None) -> ReportCall:
    call = _of_frame(frame)
    if symbol is None:
        return call
    named = symbol.is_named
    others = (symbol.name, symbol.linkage_name, *symbol.aliases) if named else ()
    name = call.name
    if name == "???" and named:
        name = as_apple_shows(symbol.linkage_name, symbol.name)
    return call._replace(name=name, start=symbol.offset, others=(*call.others, *others))
