"""The output of lldb's ``bt``, with its usual ``frame-format`` and ``thread-format``.

Source: lldb, *Frame and Thread Format*.
"""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.address import Avma
from machtrace.model.cause import Cause
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.symbol import PythonFrame, SourceLocation
from machtrace.reports.log_lines import LINES, line_and_column, located
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import (
    CAUSE,
    PYTHON,
    frames_not_shown,
    gap_details,
    lost_frames_of,
    written,
)

MAX_LINE_LENGTH = 16384
_THREAD = re.compile(r"[ \t]*+(?P<chosen>\*?)[ \t]*+thread #(?P<number>[0-9]{1,9})(?P<rest>.*)")
_SHARED = re.compile(r"[0-9]{1,7} thread\(s\)(?P<numbers>(?: #[0-9]{1,9}){1,9999})")
"""The heading of ``thread backtrace unique``: the threads with one stack."""
_MAX_SHARED = 1 << 18
"""Frames that threads may have by sharing another one's stack."""
_FRAME = re.compile(
    r"[ \t]*+\*?[ \t]*+frame #(?P<number>[0-9]{1,9}): (?P<address>0x[0-9a-fA-F]{1,16})(?P<rest>.*)"
)
_QUEUE = re.compile(r"queue = '(?P<value>[^'\\]*+(?:\\.[^'\\]*+)*)'")
_NAME = re.compile(r"\bname = '(?P<value>[^'\\]*+(?:\\.[^'\\]*+)*)'")
_EXCEPTION = re.compile(r"(?P<type>EXC_[A-Z_]{1,40})(?: \((?P<codes>[^()]{0,400})\))?")
_SIGNAL = re.compile(r"signal (?P<name>SIG[A-Z0-9]{1,20})")
_ADDRESS = re.compile(r"\baddress=(?P<address>0x[0-9a-fA-F]{1,16})")
_ID = re.compile(r"\btid = (?P<value>0x[0-9a-fA-F]{1,16}|[0-9]{1,19})")
_STOP = "stop reason = "
_AT = " at "
_INTO = re.compile(r"(?P<name>.*\S) \+ (?P<offset>[0-9]{1,19})")
_MARKS = (" [opt]", " [artificial]", " [async]", " [hidden]", " [history]")
"""Marks behind a frame; an inlined call is marked before its name."""
_INLINED = " [inlined] "
_PYTHON = " [python] "
"""machtrace's own mark of a Python function, before the frame that runs it."""
_TRAP = re.compile(
    r"(?P<trap>ESR_EC_[A-Z0-9_]{1,40}) \(fault address: (?P<address>0x[0-9a-f]{1,16})\)"
)
_CODE = re.compile(r"=(0x[0-9a-f]{1,16}|[0-9]{1,19})\b")
_I386 = re.compile(r"code=(?P<name>EXC_I386_[A-Z]{1,20})")
_SIGNALLED = re.compile(
    r"signal (?P<name>SIG[A-Z0-9+-]{1,20}|[0-9]{1,4})"
    r"(?:: (?P<meaning>[a-z][a-z ,-]{1,80}))?(?: \(fault address: (?P<address>0x[0-9a-f]{1,16})\))?"
)
_EXAMINED = 1 << 18


def recognises(source: ReportSource) -> bool:
    """Return whether lldb's frames are near the beginning."""
    head = source.text[:_EXAMINED]
    return "frame #" in head and any(_FRAME.fullmatch(line) for line in _lines(head))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n") if len(line) <= MAX_LINE_LENGTH]


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    reader = _Reader()
    for line in source.text.split("\n"):
        reader.read(line.rstrip())
    return (reader.report(),)


class _Reader:
    def __init__(self) -> None:
        self._images: dict[str, int] = {}
        self._threads: list[ReportedThread] = []
        self._heading: re.Match[str] | None = None
        self._frames: list[ReportedFrame] = []
        self._other: list[JsonValue] = []
        self._before: list[JsonValue] = []
        self._indices: set[int] = set()
        self._stops: dict[bool, str] = {}
        """The first stop reason of a chosen thread, and of another."""
        self._gap: dict[str, JsonValue] = {}
        self._python: list[PythonFrame] = []
        self._beside = 0
        """The frames that were numbered but are not in the list: Python's, and those of the gap."""
        self._lines: list[JsonValue] = []
        """The lines of the thread."""
        self._shared: list[int] = []
        """The numbers of other threads with the same stack."""
        self._room = _MAX_SHARED
        self._is_sorted = True
        """Whether threads are listed by their numbers."""
        self._banner: tuple[int, Avma | None, list[JsonValue]] | None = None
        """The number, the address and the lines of a thread of which one frame is shown."""

    def read(self, line: str) -> None:
        short = len(line) <= MAX_LINE_LENGTH
        if short and (match := _FRAME.fullmatch(line)) is not None:
            if int(match["number"]) == 0 and self._frames:
                self._end()
            self._lines.append(line)
            if (python := _python_frame(match["rest"])) is not None:
                self._python.append(python)
                self._beside += 1
            else:
                self._frames.append(self._frame(match))
        elif short and (match := _SHARED.fullmatch(line)) is not None:
            self._end()
            self._is_sorted = False
            first, *self._shared = map(int, match["numbers"].replace("#", "").split())
            self._heading = _THREAD.fullmatch(f"thread #{first}")
            self._lines = [line]
        elif short and (match := _THREAD.fullmatch(line)) is not None:
            self._end()
            self._heading = match
            self._lines = [line]
        elif self._frames and not self._gap and (count := frames_not_shown(line)):
            self._gap = gap_details(self._frames, count)
            self._beside += count
        elif line.strip():
            in_thread = self._heading is not None or self._frames
            (self._other if in_thread else self._before).append(line)

    def _frame(self, match: re.Match[str]) -> ReportedFrame:
        image_name, function = _image_and_function(match["rest"].strip())
        details: dict[str, JsonValue] = {}
        function, marks = _split_marks(function)
        if marks:
            details["marks"] = marks
        number = int(match["number"])
        if number != len(self._frames) + self._beside:
            details["number"] = number
        if self._python:
            details[PYTHON] = written(tuple(self._python), tuple[PythonFrame, ...])
            self._python = []
        function, location = _split_location(function)
        has_place = location is not None and _INLINED in function
        into = None if has_place else _INTO.fullmatch(function)
        name, offset = (function, None) if into is None else (into["name"], int(into["offset"]))
        is_inline = _INLINED in name
        if is_inline:
            outer, _, name = name.partition(_INLINED)
            details["inlined into"] = outer
        is_called = self._is_called() if self._frames else number > 0
        adjustment = Adjustment.RETURN if is_called else Adjustment.EXACT
        return ReportedFrame(
            Avma(int(match["address"], 16)),
            self._image(image_name.strip()),
            None,
            adjustment,
            ReportedSymbol(name, offset) if name else None,
            location,
            is_inline,
            details,
        )

    def _is_called(self) -> bool:
        """Return whether the next frame made a call: all but the first, and calls inlined there."""
        return any(not frame.is_inline for frame in self._frames[-1:]) or any(
            frame.adjustment is Adjustment.RETURN for frame in self._frames[-1:]
        )

    def _image(self, name: str) -> int | None:
        return self._images.setdefault(name, len(self._images)) if name else None

    def _end(self) -> None:
        if self._heading is None and not self._frames:
            return
        rest = "" if self._heading is None else self._heading["rest"]
        number = None if self._heading is None else int(self._heading["number"])
        self._drop_banner(number)
        details: dict[str, JsonValue] = {LINES: self._other} if self._other else {}
        details |= self._gap
        described, _, stop = rest.partition(_STOP)
        if stop:
            details["stop reason"] = stop
            if (cause := _cause(stop)) is not None:
                details[CAUSE] = written(cause, Cause)
            if self._heading is not None:
                self._stops.setdefault(bool(self._heading["chosen"]), stop)
        if other := _other_attributes(described):
            details["heading"] = other
        index = len(self._threads) if not number else number - 1
        if number is not None and number != len(self._threads) + 1:
            details["number"] = number
        if index in self._indices:  # of another stop
            index = max(self._indices) + 1
        self._indices.add(index)
        name = _value(_ID, described) or ""
        thread_id = int(name, 16 if name.startswith("0x") else 10) if name else None
        self._threads.append(
            ReportedThread(
                index=index,
                id=thread_id,
                name=_value(_NAME, described),
                queue=_value(_QUEUE, described),
                crashed=bool(self._heading is not None and self._heading["chosen"]),
                frames=tuple(self._frames),
                details=details,
            )
        )
        self._end_shared()
        if len(self._frames) == 1 and number is not None:
            self._banner = number, self._frames[0].address, self._lines
        self._heading, self._frames, self._other = None, [], []
        self._gap, self._python, self._lines, self._beside = {}, [], [], 0

    def _end_shared(self) -> None:
        for number in self._shared:
            self._room -= len(self._frames)
            if self._room > 0 and number - 1 not in self._indices:
                self._indices.add(number - 1)
                self._threads.append(replace(self._threads[-1], index=number - 1, details={}))
        self._shared = []

    def _drop_banner(self, number: int | None) -> None:
        """Drop the one frame that lldb showed when the process stopped, if the stack follows it.

        Its lines are stored with those before the first thread.
        """
        address = self._frames[0].address if self._frames else None
        if self._banner is None or len(self._frames) <= 1 or not self._threads:
            return
        banner, its_address, lines = self._banner
        if (number, address) == (banner, its_address) and self._threads[-1].index == banner - 1:
            thread = self._threads.pop()
            self._indices.discard(thread.index)
            other = thread.details.get(LINES)
            self._before += lines + (other if isinstance(other, list) else [])
        self._banner = None

    def report(self) -> Report:
        self._end()
        details: dict[str, JsonValue] = {LINES: self._before} if self._before else {}
        if not self._is_sorted:
            self._threads.sort(key=lambda thread: thread.index)
        is_chosen = any(thread.crashed for thread in self._threads)
        stop = self._stops.get(is_chosen)
        return Report(
            kind=ReportKind.LLDB,
            exception=None if stop is None else _exception(stop),
            threads=tuple(self._threads),
            images=tuple(ReportedImage(name=name) for name in self._images),
            details=details,
            warnings=lost_frames_of(self._threads),
        )


def _value(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match["value"]


def _image_and_function(text: str) -> tuple[str, str]:
    """Return the image's name and what follows it: empty if no function is known."""
    image, tick, function = text.partition("`")
    if tick:
        return image, function
    image, inlined, function = text.partition(_INLINED)
    return image, inlined + function


def _split_location(text: str) -> tuple[str, SourceLocation | None]:
    """Split a function and its location, which follows the last *at* that can precede one.

    Searched from the end: a pattern that tries every *at* with every colon takes quadratic time.
    """
    numbers = line_and_column(text)
    at = -1 if numbers is None else text.rfind(_AT, 0, numbers.start())
    while numbers is not None and at > 0:
        file = text[at + len(_AT) : numbers.start()]
        if file and not file[0].isspace() and not text[at - 1].isspace():
            return text[:at], located(file, numbers)
        at = text.rfind(_AT, 0, at)
    return text, None


def _split_marks(text: str) -> tuple[str, str]:
    """Split a frame and the marks behind it."""
    marks: list[str] = []
    end = len(text)
    while (mark := next((one for one in _MARKS if text.endswith(one, 0, end)), None)) is not None:
        marks.append(mark.strip())
        end -= len(mark)
    return text[:end], " ".join(reversed(marks))


def _other_attributes(heading: str) -> str:
    """Return what else a heading states: old versions print the thread's location there."""
    for pattern in (_QUEUE, _NAME, _ID):
        heading = pattern.sub("", heading, count=1)
    return ", ".join(one for part in heading.split(", ") if (one := part.strip(" \t:,")))


def _python_frame(rest: str) -> PythonFrame | None:
    """Return the Python function of a frame that machtrace wrote; None for other frames."""
    _, mark, function = rest.partition(_PYTHON)
    if not mark:
        return None
    name, location = _split_location(function)
    return PythonFrame(name, location or SourceLocation(""))


def _cause(stop: str) -> Cause | None:
    """Return the cause that machtrace wrote; None for other words."""
    if (match := _TRAP.fullmatch(stop)) is not None:
        cause = Cause(trap=match["trap"], trap_address=Avma(int(match["address"], 16)))
    elif (match := _EXCEPTION.fullmatch(stop)) is not None:
        numbers = [int(one, 0) for one in _CODE.findall(match["codes"] or "")]
        name = _I386.search(match["codes"] or "")
        codes = (0, *numbers) if name is not None else numbers
        cause = Cause(
            exception=match["type"],
            exception_codes=tuple(codes),
            code_name=None if name is None else name["name"],
        )
    elif (match := _SIGNALLED.fullmatch(stop)) is not None:
        signal, address = match["name"], match["address"]
        cause = Cause(
            signal=signal if signal.startswith("SIG") else f"signal {signal}",
            meaning=match["meaning"] or "",
            address=None if address is None else Avma(int(address, 16)),
        )
    else:
        return None
    return cause if cause.lldb_text == stop else None


def _exception(stop: str) -> ReportedException | None:
    """Return the exception or signal that stopped a thread, if any."""
    match, signal = _EXCEPTION.match(stop), _SIGNAL.match(stop)
    if match is None:
        return None if signal is None else ReportedException(signal=signal["name"])
    codes = match["codes"]
    address = None if codes is None else _ADDRESS.search(codes)
    return ReportedException(
        type=match["type"],
        codes=codes,
        address=None if address is None else int(address["address"], 16),
    )
