"""Lines of frames: number, image, address, and symbol.

Also elided recursion: ``recursionInfoArray`` of an .ips file states between which frames of the
whole stack some were omitted, how often the function in ``keyFrame`` occurred, and the
``originalLength``. Texts have a line after each shown frame of that function, and one for the
omitted ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

from machtrace.model.report import Details, JsonValue, ReportedFrame, ReportedImage, ReportedThread
from machtrace.model.symbol import SourceLocation
from machtrace.model.text import INLINED, MAX_IMAGE_NAME_LENGTH
from machtrace.reports.crash.lines import shown

NUMBER = "number"
"""The detail of a frame whose number is not consecutive."""
PLACE = "place"
"""The detail of a frame with a location that is not a file name and line: ``(:-1)``."""
UNUSUAL = "given"
"""The detail of a frame without a name: the unusual text after its address."""
IMAGE = "image"
"""The detail of a frame whose image name differs from the listed one."""

OMITTED = "omitted"
"""The detail of a frame that stands for omitted ones: how many, or null."""

_USUAL = 512
"""Most stacks have no more frames."""


def frame_lines(
    frames: Sequence[ReportedFrame],
    images: Sequence[ReportedImage],
    between: Mapping[int, Sequence[str]] | None = None,
    jumps: Mapping[int, int] | None = None,
    names: dict[int | None, str] | None = None,
) -> list[str]:
    """Return a line for each frame, innermost first.

    Args:
        frames: of one stack.
        images: of the report.
        between: lines before the frame of an index, or after the last.
        jumps: non-consecutive frame numbers, by index.
        names: of images, by index; missing ones are added, for the next stack.
    """
    names = {} if names is None else names
    between = between or {}
    jumps = jumps or {}
    width = max(4, len(str(_last_number(frames, jumps))) + 1)
    numbers = _numbers(width)
    lines: list[str] = []
    add = lines.append
    number = 0
    # One loop with the usual case inlined: there are very many frames.
    for index, frame in enumerate(frames):
        address, image, _, _, symbol, location, is_inline, details = frame
        if between and index in between:
            lines += between[index]
        if jumps:
            number = jumps.get(index, number)
        column = names.get(image) or _name(names, image, images)
        if details or symbol is None:
            number = printed_number(details, number)
            column = _reported_image(frame) or column
            shown_name = _description(frame, None if image is None else images[image])
        else:
            shown_name, into, _ = symbol
            if not shown_name.isprintable():
                shown_name = shown(shown_name)
            if into is not None:
                shown_name = f"{shown_name} + {into}"
            if location is not None:
                file, line = _file(location.path), location.line
                shown_name = (
                    f"{shown_name} ({file})" if line is None else f"{shown_name} ({file}:{line})"
                )
            if is_inline:
                shown_name += INLINED
        place = "???" if address is None else hex(address)
        start = numbers[number] if number < _USUAL else f"{number:<{width}}"
        add(f"{start}{column}{place:>18} {shown_name}")
        number += 1
    if len(frames) in between:
        lines += between[len(frames)]
    return lines


@lru_cache(8)
def _numbers(width: int) -> list[str]:
    """Return the column of numbers of most stacks."""
    return [f"{number:<{width}}" for number in range(_USUAL)]


def _last_number(frames: Sequence[ReportedFrame], jumps: Mapping[int, int]) -> int:
    """Return the highest number, which sets the column's width."""
    numbers = [
        number + len(frames) - index
        for index, frame in enumerate(frames)
        if frame[7] and (number := printed_number(frame.details, 0))
    ]
    numbers += [number + len(frames) - index for index, number in jumps.items()]
    return max([len(frames), *numbers]) - 1


def printed_number(details: Details, usual: int) -> int:
    """Return the number that a frame had in its text; ``usual`` if it was consecutive."""
    number = details.get(NUMBER)
    return number if type(number) is int and number >= 0 else usual


class NumberGap(NamedTuple):
    """Frames that a text does not have, by the numbers that it prints."""

    after: int
    """The number of frames before them."""
    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def numbered(frames: Iterable[ReportedFrame]) -> Iterator[tuple[int, ReportedFrame]]:
    """Yield frames with their numbers: consecutive ones, but over frames that a text has lost."""
    number = 0
    for frame in frames:
        number = max(number, printed_number(frame.details, number))
        yield number, frame
        number += 1


def number_gaps(frames: Iterable[ReportedFrame]) -> Iterator[NumberGap]:
    """Yield the gaps in the printed numbers of a stack's frames."""
    expected = 0
    is_stated = False
    for place, frame in enumerate(frames):
        if frame.details:
            number = printed_number(frame.details, expected)
            if number > expected and not is_stated:
                yield NumberGap(place, expected, number - 1)
            expected = number
        expected += 1
        is_stated = OMITTED in frame.details


def lost_frames(where: str, gaps: Iterable[NumberGap]) -> Iterator[str]:
    """Yield a warning if a stack has gaps; ``where`` is how it is called."""
    shown = [*islice(gaps, _MAX_GAPS + 1)]
    if shown:
        is_one = len(shown) == 1 and shown[0].first == shown[0].last
        parts = [*map(str, shown[:_MAX_GAPS]), *(["…"] if len(shown) > _MAX_GAPS else [])]
        yield f"{where}: no frame{'' if is_one else 's'} {', '.join(parts)} in the text"


_MAX_GAPS = 12
"""Gaps that a warning lists."""


def _name(names: dict[int | None, str], image: int | None, images: Sequence[ReportedImage]) -> str:
    """Return the column of an image's name, cached."""
    name = "???" if image is None else shown(images[image].name[:MAX_IMAGE_NAME_LENGTH])
    if image is not None and not name:
        uuid = images[image].uuid
        name = "???" if uuid is None else str(uuid)
    names[image] = column = f"{name:<30s}\t"
    return column


def frame_text(frame: ReportedFrame, images: Sequence[ReportedImage]) -> str:
    """Return address and name or offset: a line without number and image."""
    image = None if frame.image is None else images[frame.image]
    address = "???" if frame.address is None else f"{frame.address:#x}"
    return f"{address} {_description(frame, image)}"


def _description(frame: ReportedFrame, image: ReportedImage | None) -> str:
    # Unpacked at once, and simple where it can be: there are very many.
    _, _, offset, _, symbol, location, is_inline, details = frame
    if symbol is not None:
        name, into, _ = symbol
        text = name if name.isprintable() else shown(name)
        if into is not None:
            text = f"{text} + {into}"
    elif details and isinstance(label := details.get(UNUSUAL), str):
        text = shown(label)
    elif image is not None and offset is not None and image.size != 0:
        text = f"{image.load_address or 0:#x} + {offset}"
    else:
        text = "???"
    if details:
        text += _place(frame)
    elif location is not None:
        text = f"{text} ({_file_and_line(location.path, location.line)})"
    return text + INLINED if is_inline else text


@lru_cache(4096)
def _file(path: str) -> str:
    """Return a file's base name; cached."""
    return shown(path.rpartition("/")[2])


def _reported_image(frame: ReportedFrame) -> str:
    name = frame.details.get(IMAGE)
    return f"{shown(name):<30s}\t" if isinstance(name, str) and name else ""


def _place(frame: ReportedFrame) -> str:
    given_location: JsonValue = frame.details.get(PLACE)
    location = frame.location
    if isinstance(given_location, str) and (
        location is None or given_location.startswith(location.path)
    ):
        return f" ({shown(given_location)})"
    return "" if location is None else f" ({place_text(location)})"


@lru_cache(1 << 14)
def _file_and_line(path: str, line: int | None) -> str:
    """Return a file's base name and the line; cached."""
    file = shown(path.rpartition("/")[2])
    return file if line is None else f"{file}:{line}"


def place_text(location: SourceLocation) -> str:
    """Return the text in brackets: the file's base name, and the line if known."""
    return _file_and_line(location.path, location.line)


_RECURSION = "recursionInfoArray"
_DASHES = "--------"
ELIDED = "ELIDED"
"""The word for omitted frames in a line between frames."""
_Place: TypeAlias = tuple[int, int]
"""An image, and the offset in it."""


def elided(
    thread: ReportedThread, images: Sequence[ReportedImage]
) -> tuple[dict[int, list[str]], dict[int, int]]:
    """Return the lines before frames, and the non-consecutive frame numbers."""
    between: dict[int, list[str]] = {}
    jumps: dict[int, int] = {}
    entries = thread.details.get(_RECURSION)
    skipped = 0
    places = _places(thread.frames) if isinstance(entries, list) else {}
    labelled: set[_Place] = set()
    for entry in entries if isinstance(entries, list) else ():
        gap = _gap(entry, len(thread.frames) + skipped)
        if gap is None:
            continue
        hottest, coldest, depth, key = gap
        at = hottest - skipped
        if at in jumps or not 0 <= at <= len(thread.frames):
            continue
        skipped += coldest - hottest + 1
        jumps[at] = coldest + 1
        its_places = places.get(key, [])
        left_out = depth - len(its_places)
        if key not in labelled:  # another omitted part of the same recursion has the same levels
            labelled.add(key)
            _levels(its_places, at, depth, between)
        known = frame_text(thread.frames[its_places[0]], images) if its_places else "???"
        between.setdefault(at, []).extend(
            [_DASHES, f"{_DASHES} {ELIDED} {left_out} LEVELS OF RECURSION THROUGH {known}", _DASHES]
        )
    return between, jumps


def _places(frames: Sequence[ReportedFrame]) -> dict[_Place, list[int]]:
    """Map each code location to its indices in a stack."""
    places: dict[_Place, list[int]] = {}
    for index, frame in enumerate(frames):
        if frame.image is not None and frame.offset is not None:
            places.setdefault((frame.image, frame.offset), []).append(index)
    return places


def _gap(entry: JsonValue, most: int) -> tuple[int, int, int, _Place] | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("keyFrame"), dict):
        return None
    frame = entry["keyFrame"]
    numbers = (entry.get("hottestElided"), entry.get("coldestElided"), entry.get("depth"))
    place = (frame.get("imageIndex"), frame.get("imageOffset")) if isinstance(frame, dict) else ()
    known = [entry for entry in (*numbers, *place) if type(entry) is int]
    if len(known) != 5:  # noqa: PLR2004 - all of them
        return None
    hottest, coldest, depth, index, offset = known
    is_right = 0 < hottest <= min(coldest, most)
    return (hottest, coldest, depth, (index, offset)) if is_right else None


def _levels(places: list[int], at: int, depth: int, between: dict[int, list[str]]) -> None:
    """Add a line after each frame of the function: before the omitted ones, and after."""
    before = bisect_left(places, at)
    for level, index in enumerate(places):
        left = depth - level if level < before else len(places) - level
        between.setdefault(index + 1, []).append(f"{_DASHES} RECURSION LEVEL {left}")
