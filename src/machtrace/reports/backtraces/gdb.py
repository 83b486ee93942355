"""The output of gdb's ``bt``, ``bt full`` and ``thread apply all bt``.

Sources: *Debugging with GDB*, *Backtraces* and *Print Settings*; output of gdb 13. Lines that a
terminal wrapped are joined first. A frame: ``#1  0x1234 in name (argument=5) at file.c:6``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from machtrace.model.address import Avma
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.log_lines import LINES, file_name, log_lines
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import lost_frames_of

MAX_LINE_LENGTH = 16384
_FRAME = re.compile(
    r"#(?P<number>[0-9]{1,9})[ \t]++(?:(?P<address>0x[0-9a-fA-F]{1,16}) in )?(?!0x)(?P<rest>.*+)"
)
# A string or character literal among the arguments may contain brackets. An unterminated one takes
# the rest: searching an end from each quote would take quadratic time.
_BRACKET = re.compile(
    r"""[()]|\\.|"(?=(?P<text>(?:[^"\\]|\\.)*))(?P=text)\\?(?:"|\Z)|'(?:\\[^']{1,8}|[^'\\])'"""
)
_AT = re.compile(r" at (?P<file>\S.*):(?P<line>[0-9]{1,9})")
# Builds by some distributions print *at* before the library, and no line number.
_FROM = re.compile(r" (?:from|at) (?P<path>\S.*)")
SIGNAL_HANDLER = "<signal handler called>"
"""The name of the frame between a handler and what the signal interrupted."""
_UNKNOWN = "??"


class GdbFrameLine(NamedTuple):
    """A parsed frame line."""

    number: int
    address: int | None
    """An Avma. None for the first frame if its pc is at the start of a line, and for frames that
    the one before is inlined into.
    """
    name: str | None
    arguments: str
    """With their brackets."""
    image: str | None
    """The image's path."""
    location: SourceLocation | None


def parse_frame_line(line: str) -> GdbFrameLine | None:
    """Parse a frame's line, its wrapped continuations joined; None if it is not a frame."""
    match = _FRAME.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    parts = _parts(match["rest"])
    if parts is None and match["address"] is not None:
        parts = _truncated_parts(match["rest"])
    if parts is None:
        return None
    name, arguments, after = parts
    place = _AT.fullmatch(after)
    source = _FROM.fullmatch(after) if place is None else None
    address = match["address"]
    return GdbFrameLine(
        int(match["number"]),
        None if address is None else int(address, 16),
        None if name in ("", _UNKNOWN) else name,
        arguments,
        None if source is None else source["path"],
        None if place is None else SourceLocation(place["file"], int(place["line"]) or None),
    )


def _parts(text: str) -> tuple[str, str, str] | None:
    """Return name, arguments and the rest: the first brackets before nothing but a location."""
    if text == SIGNAL_HANDLER:
        return text, "", ""
    opened: list[int] = []
    for bracket in _BRACKET.finditer(text):
        # Names have brackets too, as operator() and templates of C++: the arguments' pair is the
        # first that closes at the outermost level, after a space, before a location or the end.
        if bracket[0] == "(":
            opened.append(bracket.start())
        elif bracket[0] == ")" and opened:
            start = opened.pop()
            end = bracket.end()
            is_last = end == len(text) or text.startswith((" at ", " from "), end)
            if is_last and not opened and text[start - 1 : start] == " ":
                return text[: start - 1], text[start:end], text[end:]
    return None


def _truncated_parts(text: str) -> tuple[str, str, str] | None:
    """Return the same if a Python printer truncated the arguments, leaving them unclosed."""
    start, end = text.find(" ("), text.rfind(")") + 1
    after = text[end:]
    if start < 0 or end <= start or (after and not after.startswith((" at ", " from "))):
        return None
    return text[:start], text[start + 1 : end], after


_MARK = re.compile(r"([ \t]*+)#[0-9]{1,9}[ \t]++(?:0x|<signal|[^ ]++ \()")
_WRAPPED = re.compile(r"(?: {3,4}|\t)\S.*")
_WHOLE = re.compile(r"(?:\)|:[0-9]{1,9})\Z")
"""How a frame ends: a tab-indented line below it is separate, unless it is a location."""
_PLACES = ("\tat ", "\tfrom ", "\t(")
_LINE_DIGITS = 10
_MAX_QUESTION_LENGTH = 256
_PAGER = re.compile(r"--+Type <(?:return|RET)> .*--")
"""gdb's pagination prompt, which may interrupt a frame."""
_FRAME_START = re.compile(r"#[0-9]{1,9}[ \t]+(?:0x[0-9a-fA-F]{1,16} in(?: |\Z)|<signal|\S.* \()")


def joined_lines(text: str) -> Iterator[str]:
    """Yield the lines; those that gdb wrapped at the terminal's width are joined."""
    joined = ""
    for line in log_lines(text, _MARK):
        if joined[:1] == "#" and _PAGER.fullmatch(line[:_MAX_QUESTION_LENGTH]) is not None:
            yield line
            continue
        if (
            joined[:1] == "#"
            and len(joined) + len(line) <= MAX_LINE_LENGTH
            and _continues(joined, line)
        ):
            joined += " " + line.lstrip()
            continue
        if joined:
            yield joined
        joined = line
    if joined:
        yield joined


def _continues(joined: str, line: str) -> bool:
    """Return whether a line continues the one before it."""
    if _WRAPPED.fullmatch(line) is None or _FRAME_START.match(joined) is None:
        return False
    is_whole = _WHOLE.search(joined, max(0, len(joined) - _LINE_DIGITS)) is not None
    return line[0] == " " or not is_whole or line.startswith(_PLACES)


_THREAD = re.compile(
    r"Thread (?P<number>[0-9]{1,9}) \((?:Thread 0x[0-9a-fA-F]{1,16} )?"
    r"\(?(?:LWP|process|Thread) (?P<id>[0-9]{1,19})\)?(?: \"(?P<name>.*)\")?\):.*"
)
_STOPPED = re.compile(
    r"(?:Program|Thread (?P<number>[0-9]{1,9})(?: \".*\")?) (?:terminated with|received) signal "
    r"(?P<signal>SIG[A-Z0-9]{1,20}|\?|[0-9]{1,3}), (?P<what>.{1,200}?)\.?"
)
_CURRENT = re.compile(r"\[Current thread is (?P<number>[0-9]{1,9}) .*")
_CORE = re.compile(r"Core was generated by `(?P<command>.*?)'?\.")
_KDE = "[KCrash Handler]"
_WORDS = ("#0 ", _KDE)
"""How a stack begins: KDE omits the frames of its signal handler."""
_EXAMINED = 1 << 18
_MAX_NAME_LENGTH = 4096


def recognises(source: ReportSource) -> bool:
    """Return whether gdb's frames are near the beginning."""
    head = source.text[:_EXAMINED]
    if not any(word in head for word in _WORDS):
        return False
    return any(parse_frame_line(line) is not None for line in joined_lines(head) if line[:1] == "#")


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    reader = _Reader()
    for line in joined_lines(source.text):
        reader.read(line)
    return (reader.report(),)


def _is_of_kde(thread: ReportedThread) -> bool:
    """Return whether KDE states that it leaves out the frames of its handler."""
    lines = thread.details.get(LINES)
    return isinstance(lines, list) and any(line in (_KDE, f" {_KDE}") for line in lines)


class _Reader:
    def __init__(self) -> None:
        self._images: dict[str, int] = {}
        self._threads: list[ReportedThread] = []
        self._heading: re.Match[str] | None = None
        self._frames: list[ReportedFrame] = []
        self._other: list[JsonValue] = []
        self._before: list[JsonValue] = []
        self._first: str | None = None
        self._stopped: re.Match[str] | None = None
        self._current: int | None = None
        self._command: str | None = None

    def read(self, line: str) -> None:
        head = line[:_MAX_NAME_LENGTH]
        if line[:1] == "#" and (frame := parse_frame_line(line)) is not None:
            if frame.number == 0 and self._frames:
                if line == self._first:
                    self._end_stop_location()
                else:
                    self._end()
            if not (self._threads or self._frames or self._heading):
                self._first = line
            self._frames.append(self._frame(frame))
        elif head.startswith("Thread ") and (match := _THREAD.fullmatch(head)) is not None:
            self._end_stop_location()
            self._heading = match
        else:
            self._note(head)
            in_thread = self._heading is not None or self._frames
            (self._other if in_thread else self._before).append(line)

    def _note(self, line: str) -> None:
        """Parse gdb's own messages about the program; they are retained as text, too."""
        if (match := _STOPPED.fullmatch(line)) is not None:
            self._stopped = match
            if match["number"] is not None:
                self._current = int(match["number"])
        elif (match := _CURRENT.fullmatch(line)) is not None:
            self._current = int(match["number"])
        elif (match := _CORE.fullmatch(line)) is not None:
            self._command = match["command"].partition(" ")[0].rpartition("/")[2] or None

    def _frame(self, line: GdbFrameLine) -> ReportedFrame:
        details: dict[str, JsonValue] = {}
        if line.number != len(self._frames):
            details["number"] = line.number
        if line.arguments not in ("", "()"):
            details["arguments"] = line.arguments
        address = None if line.address is None else Avma(line.address)
        adjustment = Adjustment.RETURN if self._is_called() else Adjustment.EXACT
        if address is None and adjustment is Adjustment.RETURN and line.name != SIGNAL_HANDLER:
            # The frame before is inlined into this one and shares its image.
            before = self._frames[-1]
            address, adjustment = before.address, before.adjustment
            self._frames[-1] = before._replace(is_inline=True)
        return ReportedFrame(
            address,
            None if line.image is None else self._images.setdefault(line.image, len(self._images)),
            None,
            adjustment,
            None if line.name is None else ReportedSymbol(line.name, None),
            line.location,
            is_inline=False,
            details=details,
        )

    def _is_called(self) -> bool:
        """Return whether the next frame made a call: not the first, nor one that a signal hit."""
        if not self._frames:
            return False
        symbol = self._frames[-1].symbol
        return symbol is None or symbol.name != SIGNAL_HANDLER

    def _end_stop_location(self) -> None:
        """End the stack that precedes the threads.

        A single first frame is the stop location that gdb shows by itself; its thread follows, or
        starts with the same line.
        """
        if self._heading is None and len(self._frames) == 1 and not self._threads:
            self._before += [*([] if self._first is None else [self._first]), *self._other]
            self._frames, self._other = [], []
        self._end()

    def _end(self) -> None:
        heading = self._heading
        if heading is None and not self._frames:
            return
        details: dict[str, JsonValue] = {LINES: self._other} if self._other else {}
        number = None if heading is None else int(heading["number"])
        if number is not None and number != len(self._threads) + 1:
            details["number"] = number
        self._threads.append(
            ReportedThread(
                index=len(self._threads),
                id=None if heading is None else int(heading["id"]),
                name=None if heading is None else heading["name"],
                crashed=number == self._current if number is not None else not self._threads,
                frames=tuple(self._frames),
                details=details,
            )
        )
        self._heading, self._frames, self._other = None, [], []

    def report(self) -> Report:
        self._end()
        stopped = self._stopped
        exception = None
        if stopped is not None:
            exception = ReportedException(signal=stopped["signal"], message=stopped["what"])
        return Report(
            kind=ReportKind.GDB,
            warnings=lost_frames_of(thread for thread in self._threads if not _is_of_kde(thread)),
            process=ReportedProcess(name=self._command),
            exception=exception,
            threads=tuple(self._threads),
            images=tuple(ReportedImage(name=file_name(path), path=path) for path in self._images),
            details={LINES: self._before} if self._before else {},
        )
