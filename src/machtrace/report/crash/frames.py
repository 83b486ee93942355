"""Lines of frames: number, image, address, and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from machtrace.model.json_value import Details, JsonValue
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.symbol import SourceLocation
from machtrace.report.printable import printable

INLINED = " [inlined]"
"""What Apple's text has after a call that was inlined into the next line's."""
NUMBER = "number"
"""The detail of a frame whose number is not the one that would follow."""
PLACE = "place"
"""The detail of a frame with a place that is not a file's name and a line: ``(:-1)``."""
IMAGE = "image"
"""The detail of a frame whose image the text calls otherwise than the list of images does."""


def frame_lines(
    frames: Sequence[ReportedFrame],
    images: Sequence[ReportedImage],
    between: Mapping[int, Sequence[str]] | None = None,
    jumps: Mapping[int, int] | None = None,
    names: dict[int | None, str] | None = None,
) -> Iterator[str]:
    """A line a frame, innermost first.

    Args:
        frames: of one stack.
        images: of the report.
        between: lines that come before the frame of an index, or after the last one.
        jumps: the numbers of frames, by index, that are not one more than the number before.
        names: of images, by index; those that are missing are added, for the next stack.
    """
    names = {} if names is None else names
    between = between or {}
    jumps = jumps or {}
    last = len(frames) - 1 + sum(number - index for index, number in jumps.items())
    width = max(4, len(str(last)) + 1)
    number = 0
    for index, frame in enumerate(frames):
        if between and index in between:
            yield from between[index]
        if jumps:
            number = jumps.get(index, number)
        image, address, details = frame.image, frame.address, frame.details
        name = names.get(image) or _name(names, image, images)
        if details:
            number = _number(details, number)
            name = _said(frame) or name
        shown = "???" if address is None else f"{address:#x}"
        what = _what(frame, None if image is None else images[image])
        yield f"{str(number).ljust(width)}{name:<30s}\t{shown:>18s} {what}"
        number += 1
    if len(frames) in between:
        yield from between[len(frames)]


def _number(details: Details, usual: int) -> int:
    given = details.get(NUMBER)
    return given if type(given) is int and given >= 0 else usual


def _name(names: dict[int | None, str], image: int | None, images: Sequence[ReportedImage]) -> str:
    """The name of an image, made once."""
    name = "???" if image is None else printable(images[image].name) or "???"
    names[image] = name
    return name


def frame_text(frame: ReportedFrame, images: Sequence[ReportedImage]) -> str:
    """What is there, without the number and the image: an address, and a name or offset."""
    image = None if frame.image is None else images[frame.image]
    address = "???" if frame.address is None else f"{frame.address:#x}"
    return f"{address} {_what(frame, image)}"


def _what(frame: ReportedFrame, image: ReportedImage | None) -> str:
    symbol = frame.symbol
    if symbol is not None:
        name = symbol.name if symbol.name.isprintable() else printable(symbol.name)
        text = name if symbol.offset is None else f"{name} + {symbol.offset}"
    elif image is not None and frame.offset is not None and image.size:
        text = f"{image.load_address or 0:#x} + {frame.offset}"
    else:
        text = "???"
    if frame.location is not None or frame.details:
        text += _place(frame)
    return text + INLINED if frame.is_inline else text


def _said(frame: ReportedFrame) -> str:
    name = frame.details.get(IMAGE)
    return printable(name) if isinstance(name, str) else ""


def _place(frame: ReportedFrame) -> str:
    given: JsonValue = frame.details.get(PLACE)
    location = frame.location
    if isinstance(given, str) and (location is None or given.startswith(location.path)):
        return f" ({printable(given)})"
    return "" if location is None else f" ({printable(place_text(location))})"


def place_text(location: SourceLocation) -> str:
    """What is in the brackets: the file's name, and the line where there is one."""
    file = location.path.rpartition("/")[2]
    return file if location.line is None else f"{file}:{location.line}"
