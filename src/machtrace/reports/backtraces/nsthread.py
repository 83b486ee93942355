"""Lines of ``+[NSThread callStackSymbols]`` and of ``backtrace_symbols``.

Sources: apple-oss-distributions/Libc ``gen/backtrace.c`` for Apple's lines, glibc's manual
(*Backtraces*) for the others. A new stack begins where the numbering restarts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NO_DETAILS,
    Adjustment,
    Details,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.symbol import SourceLocation
from machtrace.model.text import INLINED
from machtrace.reports.backtraces.numbered_lines import Likeness, in_stacks
from machtrace.reports.crash.frame_lines import (
    MISSING,
    parse_label,
    spaced_columns,
    unusual_label,
)
from machtrace.reports.crash.frames import NUMBER, PLACE
from machtrace.reports.images import uuid_of
from machtrace.reports.log_lines import LINES
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import frames_not_shown, gap_details, lost_frames_of

MAX_LINE_LENGTH = 16384
MAX_TEXT_LENGTH = 1 << 22
"""Characters of a line that holds a whole array."""
_QUOTES = 2
IMAGE_WIDTH = 35
"""Width of the image name's column in Apple's lines."""

_APPLE = re.compile(
    r"(?P<number>[0-9]{1,6})(?:[ \t]++|(?<=[0-9]{4}))(?P<image>\S(?:.{0,1000}?\S)?)[ \t]++"
    r"(?P<address>0x[0-9a-fA-F]{1,16})[ \t]++(?P<name>\S.{0,12000}+)"
)
"""The part before the offset, which is found from the end: nothing is backtracked. A number of four
digits leaves no space."""
_OFFSET = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,19}")
_BLANKS = " \t"
_GLIBC = re.compile(
    r"(?P<image>[^()\[\]\s][^()\[\]]{0,4000})"
    r"(?:\((?P<name>[^()+]*)(?:\+(?P<offset>0x[0-9a-fA-F]{1,16}))?\))?"
    r" ?\[(?P<address>0x[0-9a-fA-F]{1,16})\]"
)
_BARE = re.compile(r"\[(?P<address>0x[0-9a-fA-F]{1,16})\]")
_EXECINFO = re.compile(
    r"(?P<address>0x[0-9a-fA-F]{1,16}) <(?P<name>[^<>]{1,12000}(?:<[^+]{0,12000})?)"
    r"\+(?P<offset>0x[0-9a-fA-F]{1,16}|[0-9]{1,19})> at (?P<image>\S.{0,4000})"
)
"""Lines of libexecinfo, which musl systems use in place of glibc's: FreeBSD, ``backtrace_fmt``."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class StackLine(NamedTuple):
    """A parsed line."""

    number: int | None
    """The frame's, from 0; None if lines are not numbered."""
    image: str
    """The image's name, possibly truncated; empty if unknown."""
    address: int
    symbol: str | None
    symbol_offset: int | None
    image_offset: int | None
    """From the image's header, if the line has it in place of a symbol."""
    uuid: UUID | None
    """The image's UUID, which replaces a redacted name."""
    location: SourceLocation | None = None
    is_inline: bool = False
    details: Details = NO_DETAILS
    likeness: Likeness = Likeness.USUAL
    is_in_columns: bool = False
    """Whether an unusual line has Apple's columns."""


def read_line(text: str) -> StackLine | None:
    """Parse a line, or return None; it may be in quotes and brackets of a printed array."""
    if len(text) > MAX_LINE_LENGTH:
        return None
    whole = text = text.strip()
    if (match := _BARE.fullmatch(text.rstrip(","))) is not None:
        return StackLine(None, "", int(match["address"], 16), None, None, None, None)
    text = text.removeprefix("(").removeprefix("[").strip(" \t\"',)]")
    text = text if not text.count("[") > text.count("]") else text + "]"
    if text[:1].isdecimal():
        line = _apple(text)
        if line is not None:
            return line
    match = _GLIBC.fullmatch(text) or _EXECINFO.fullmatch(text)
    if match is not None:
        return _glibc(match)
    return _unusual(_unwrapped(whole)) if text[:1].isdecimal() else None


def read_lines(text: str) -> tuple[StackLine, ...]:
    """Return the stack lines in a line: several if an array was printed or text was quoted.

    Swift prints ``["0   App …", "1   App …"]``; JSON escapes line ends and tabs as letters.
    """
    if text.count('"') < _QUOTES or len(text) > MAX_TEXT_LENGTH:
        line = read_line(text)
        return () if line is None else (line,)
    pieces = text.replace("\\t", " ").replace("\\n", '"').replace('\\"', '"').split('"')
    return tuple(one for piece in pieces if (one := read_line(piece)) is not None)


def _apple(text: str) -> StackLine | None:
    before, plus, last = text.rpartition("+")
    digits = last.strip(_BLANKS)
    head = before.rstrip(_BLANKS)
    if not plus or len(head) == len(before) or len(digits) == len(last):
        return None
    match = _APPLE.fullmatch(head) if _OFFSET.fullmatch(digits) is not None else None
    if match is None:
        return None
    image, name, offset = match["image"], match["name"], _number(digits)
    is_inline = not offset and name.endswith(INLINED)
    name = name.removesuffix(INLINED) if is_inline else name
    uuid = UUID(name) if _UUID.fullmatch(name) else None
    # Without a symbol, the image's own name is repeated, whole or truncated like its column.
    is_image = (
        uuid is not None or name == image or (len(image) == IMAGE_WIDTH and name.startswith(image))
    )
    address, is_known = int(match["address"], 16), name != "???"
    if is_image and uuid is None:
        image = name
    elif name.startswith("0x") and _OFFSET.fullmatch(name) is not None:
        # Crash reports: the image's load address, and the offset from it.
        is_image = int(name, 16) + offset == address
        is_known = image != "???" and not (is_image and offset == address)
    return StackLine(
        number=int(match["number"]),
        image="" if image == "???" else image,
        address=address,
        symbol=None if is_image or not is_known else name,
        symbol_offset=offset if is_known and not is_image and not is_inline else None,
        image_offset=offset if is_image and is_known else None,
        uuid=uuid if uuid is not None and uuid.int else None,
        is_inline=is_inline,
    )


def _unwrapped(text: str) -> str:
    """Strip the quotation marks of an array's item, and brackets that it does not open."""
    text = text.removeprefix("(").removeprefix("[").lstrip(_AROUND)
    brackets = {mark: text.count(mark) - text.count(opened) for opened, mark in ("()", "[]")}
    end = len(text)
    while end:
        last = text[end - 1]
        if brackets.get(last, 0) > 0:
            brackets[last] -= 1
        elif last not in _AROUND:
            break
        end -= 1
    return text[:end]


def _unusual(text: str) -> StackLine | None:
    """Parse a number, an image and an address, whatever follows; None without them."""
    glued = _GLUED.match(text)
    columns = spaced_columns(text if glued is None else f"{glued[0]} {text[glued.end() :]}")
    if columns is None:
        return None
    number, name, address, rest = columns
    label = parse_label(rest, ReportedImage(name=name))
    if label.symbol is not None and _NUMBER.fullmatch(label.symbol.name) is not None:
        label = label._replace(symbol=None)
    uuid = _MISSING_UUID.fullmatch(rest)
    details: dict[str, JsonValue] = {}
    if label.place is not None:
        details[PLACE] = label.place
    elif label.symbol is None and label.location is None:
        details |= unusual_label(rest, is_placed=False)
    likeness, is_in_columns = _likeness(text, name, rest)
    if MISSING.fullmatch(rest) is not None or (
        label.location is not None and label.symbol is not None and None not in label.symbol
    ):
        likeness = Likeness.USUAL
    return StackLine(
        number=number,
        image="" if name == "???" else name,
        address=address,
        symbol=None if label.symbol is None else label.symbol.name,
        symbol_offset=None if label.symbol is None else label.symbol.offset,
        image_offset=None,
        uuid=None if uuid is None else uuid_of(uuid["digits"]),
        location=label.location,
        is_inline=label.is_inline,
        details=details or NO_DETAILS,
        likeness=likeness,
        is_in_columns=is_in_columns,
    )


_AROUND = " \t\"',"
_GLUED = re.compile(r"[0-9]{4,6}(?=[^0-9 \t])")
_MISSING_UUID = re.compile(r"\(Missing UUID (?P<digits>[0-9A-Fa-f-]{32,36})\)")
_NUMBER = re.compile(r"[0-9][0-9a-fA-F]*|0x[0-9a-fA-F]+")
_DEBUGGER = re.compile(r"\((?:LWP|Thread|process) ")
"""The text behind ``2 Thread 0x7ffff7d89700`` in gdb's list of threads."""
_LIKELY_DIGITS = 8
_WIDE_NUMBER = 3
_GAPS = ("  ", "\t")


def _likeness(text: str, name: str, rest: str) -> tuple[Likeness, bool]:
    """Return how much an unusual line is like a frame's, and whether it has Apple's columns."""
    before, _, digits = text[: len(text) - len(rest)].rstrip().rpartition("0x")
    is_wide = text[:_WIDE_NUMBER].isdecimal()  # which leaves one space or none
    is_in_columns = before.endswith(_GAPS) and (
        is_wide or text.lstrip("0123456789").startswith(_GAPS)
    )
    is_number = all(_NUMBER.fullmatch(word) for word in name.split())
    is_address = len(digits) >= _LIKELY_DIGITS and not is_number and not _DEBUGGER.match(rest)
    if not is_address:
        return Likeness.COLUMNS if is_in_columns else Likeness.POOR, is_in_columns
    first, *more = rest.split(maxsplit=1) or [""]
    has_name = _NUMBER.fullmatch(first) is None or "".join(more).startswith("+ ")
    is_likely = has_name and (is_in_columns or " " not in name)
    return Likeness.LIKELY if is_likely else Likeness.ADDRESS, is_in_columns


def _glibc(match: re.Match[str]) -> StackLine:
    name = match["name"] or None
    offset = None if match["offset"] is None else _number(match["offset"])
    return StackLine(
        number=None,
        image=match["image"],
        address=int(match["address"], 16),
        symbol=name,
        symbol_offset=None if name is None else offset,
        image_offset=offset if name is None else None,
        uuid=None,
    )


def _number(digits: str) -> int:
    """Parse hexadecimal after ``0x``, else decimal, leading zeros allowed."""
    return int(digits, 16 if digits.startswith("0x") else 10)


_EXAMINED = 200
"""Lines among which one must be a stack's."""
_ARRAY = " \t()[]\"',"
_MAX_HEAD_LENGTH = 1 << 18


def recognises(source: ReportSource) -> bool:
    """Return whether stack lines are near the beginning."""
    head = source.text[:_MAX_HEAD_LENGTH].split("\n", _EXAMINED)[:_EXAMINED]
    stacks = in_stacks((line, read_lines(line)) for line in head)
    return any(frames for _, frames in stacks.lines)


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report; other lines are stored with the thread that follows them."""
    reader = _Reader(below=_MIN_ADDRESS if _CRASHLYTICS in source.text[:_MAX_HEAD_LENGTH] else 0)
    lines, warnings = in_stacks((line, read_lines(line)) for line in source.text.split("\n"))
    whole = _whole_names(stack_line.image for _, stack_lines in lines for stack_line in stack_lines)
    for line, stack_lines in lines:
        if (count := frames_not_shown(line)) and reader.skip(count):
            continue
        for stack_line in stack_lines:
            reader.add(stack_line._replace(image=whole.get(stack_line.image) or stack_line.image))
        if len(stack_lines) > 1:
            reader.store_surroundings(line)
        elif not stack_lines and line.strip(_ARRAY):
            reader.store(line)
    return (reader.report(warnings),)


def _whole_names(names: Iterable[str]) -> dict[str, str | None]:
    """Map truncated names to the whole names that other lines have."""
    whole: dict[str, str | None] = {}
    for name in names:
        if len(name) > IMAGE_WIDTH and "/" not in name:
            cut = name[:IMAGE_WIDTH]
            whole[cut] = name if whole.get(cut, name) == name else None
    return whole


_CRASHLYTICS = "# Crashlytics - Stack trace"
"""In front of lines with offsets in images in place of addresses."""
_MIN_ADDRESS = 1 << 32


class _Reader:
    def __init__(self, *, below: int) -> None:
        """Take the number below which addresses are offsets."""
        self._below = below
        self._images: dict[tuple[str, UUID | None], int] = {}
        self._all_images: list[ReportedImage] = []
        self._threads: list[ReportedThread] = []
        self._frames: list[ReportedFrame] = []
        self._other: list[JsonValue] = []
        self._next: list[JsonValue] = []
        self._gap: dict[str, JsonValue] = {}
        self._number = -1
        """The last printed number."""

    def skip(self, count: int) -> bool:
        """Note that frames of the stack are missing; return False outside of a stack."""
        if not self._frames or self._gap:
            return False
        self._gap = gap_details(self._frames, count)
        self._number += count
        return True

    def add(self, line: StackLine) -> None:
        begins = bool(self._next) if line.number is None else self._is_earlier(line)
        if self._frames and begins:
            self._end()
        if not self._frames:
            self._other, self._next = self._next, []
        index = self._image(line)
        address, into = line.address, line.image_offset
        is_offset = index is not None and address < self._below
        into = address if is_offset else into
        offset = None if into is None or index is None else ImageOffset(into)
        symbol = None
        if line.symbol is not None:
            symbol = ReportedSymbol(line.symbol, line.symbol_offset)
        details = line.details
        if line.number not in (None, expected := self._number + 1):
            details = {**details, NUMBER: line.number}
        self._number = expected if line.number is None else line.number
        self._frames.append(
            ReportedFrame(
                None if is_offset else Avma(address),
                index,
                offset,
                Adjustment.RETURN,
                symbol,
                line.location,
                line.is_inline,
                details,
            )
        )

    def _is_earlier(self, line: StackLine) -> bool:
        """Return whether a line's number is not above the last; that of an inlined call can be."""
        number, last = line.number or 0, self._frames[-1] if self._frames else None
        is_same = last is not None and line.address in (last.address, last.offset)
        return not number or number < self._number + (not is_same)

    def store(self, line: str) -> None:
        self._next.append(line)

    def store_surroundings(self, line: str) -> None:
        """Store what surrounds the stack of a line that is an array."""
        before, _, rest = line.partition('"')
        behind = rest.rpartition('"')[2]
        self._other += [one for one in (before.strip(_ARRAY), behind.strip(_ARRAY)) if one]

    def _image(self, line: StackLine) -> int | None:
        """Return the image's index; only some lines have its UUID."""
        if not line.image and line.uuid is None:
            return None
        base = None
        if line.image_offset is not None and line.image_offset <= line.address:
            base = Avma(line.address - line.image_offset)
        index = self._images.get((line.image, line.uuid))
        if index is None and line.uuid is not None:  # an earlier line may have had the name alone
            index = self._images.get((line.image, None)) if line.image else None
            if index is not None and self._all_images[index].uuid is not None:
                index = None
        if index is None:
            index = len(self._all_images)
            path = line.image if "/" in line.image else ""
            self._all_images.append(ReportedImage(name=line.image.rpartition("/")[2], path=path))
        self._images[line.image, line.uuid] = index
        self._images.setdefault((line.image, None), index)
        known = self._all_images[index]
        self._all_images[index] = replace(
            known,
            uuid=known.uuid or line.uuid,
            load_address=base if known.load_address is None else known.load_address,
        )
        return index

    def _with_offset(self, frame: ReportedFrame) -> ReportedFrame:
        """Return the frame with its offset, if another line revealed the image's load address."""
        base = None if frame.image is None else self._all_images[frame.image].load_address
        if frame.offset is not None or frame.address is None or base is None:
            return frame
        if frame.address < base:
            return frame
        return frame._replace(offset=ImageOffset(frame.address - base))

    def _end(self) -> None:
        details: dict[str, JsonValue] = {LINES: self._other} if self._other else {}
        self._threads.append(
            ReportedThread(
                index=len(self._threads), frames=tuple(self._frames), details=details | self._gap
            )
        )
        self._frames, self._other, self._gap, self._number = [], [], {}, -1

    def report(self, warnings: tuple[str, ...]) -> Report:
        if self._frames:
            self._end()
        threads = [
            replace(thread, frames=tuple(map(self._with_offset, thread.frames)))
            for thread in self._threads
        ]
        details: dict[str, JsonValue] = {LINES: self._next} if self._next else {}
        return Report(
            kind=ReportKind.CALL_STACK_SYMBOLS,
            threads=tuple(threads),
            images=tuple(self._all_images),
            details=details,
            warnings=(*lost_frames_of(threads), *warnings),
        )
