"""Findings of sanitizers (address, thread, memory, undefined behaviour), and LLVM's stack dumps.

Sources: *SanitizerCommonFlags* of compiler-rt (``stack_trace_format``), ``asan_symbolize.py``,
LLVM's ``lib/Support/Signals.cpp``, and output of programs built by GCC 12 and clang 19. A frame:
``#1 0x1234 in name file:5:6``, or ``(module+0x34) (BuildId: 01ef)`` if it has no symbol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset
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
from machtrace.reports.images import identifier
from machtrace.reports.log_lines import (
    LINES,
    file_name,
    line_and_column,
    located,
    log_lines,
)
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import lost_frames_of

MAX_LINE_LENGTH = 16384
_FRAME = re.compile(
    r"[ \t]*+(?:\*[ \t]++)?#(?P<number>[0-9]{1,9})[ \t]++"
    r"(?:(?P<address>0x[0-9a-fA-F]{1,16})(?![0-9a-fA-F])[ \t]*+)?(?P<in>in )?(?P<rest>.*+)"
)
_BRACKETS = re.compile(r"[()]")
_BUILD_ID = re.compile(r"[ \t]*\(BuildId: (?P<digits>(?:[0-9a-fA-F]{2}){1,64})\)\Z")
_MODULE = re.compile(
    r"(?P<path>.+?)(?::(?P<arch>[a-z][a-z0-9_]{1,15}))?\+(?P<offset>0x[0-9a-f]{1,16})"
)
_INTO = re.compile(r"(?P<name>.*\S)\+(?P<offset>0x[0-9a-f]{1,16})")
_ADDRESS_IN_PARENTHESES = re.compile(r"(?P<before>.*\S) \((?P<address>0x[0-9a-fA-F]{1,16})\)")
# Clang names anonymous functions by their location: ``f<(lambda at /a.cc:1:2)>``.
_FILE = re.compile(r"(?<! at) (?=/|[A-Za-z]:[/\\])")
_NOTHING = ("(<unknown module>)", "<null> <null>")
"""Placeholders for an unknown module, and for an unknown function and file."""
_NULL = "<null>"
"""Placeholder for an unknown function or file."""
_BUILD_ID_LENGTH = 160
_PADDED = 18
"""Width of an address in LLVM's dumps; sanitizers pad to twelve digits."""


class SanitizerFrameLine(NamedTuple):
    """A parsed frame line."""

    number: int
    address: int | None
    """An Avma."""
    is_return_address: bool
    """Whether the address is unadjusted, as in dumps of LLVM's own tools."""
    name: str | None
    into: int | None
    """The offset into the function, which Apple's symbolizers print in place of a file."""
    location: SourceLocation | None
    path: str | None
    """The module's path."""
    arch: str | None
    """The module's architecture: only on macOS."""
    offset: int | None
    """In the module, relative to its link address."""
    build_id: str | None


def parse_frame_line(line: str) -> SanitizerFrameLine | None:
    """Parse a frame's line; None if it is not one."""
    match = _FRAME.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    rest = match["rest"].rstrip()
    build_id = _BUILD_ID.search(rest, max(0, len(rest) - _BUILD_ID_LENGTH))
    if build_id is not None:
        rest = rest[: build_id.start()]
    rest, module = _without_module(rest)
    address = match["address"]
    elsewhere = _ADDRESS_IN_PARENTHESES.fullmatch(rest) if address is None else None
    if elsewhere is not None:
        rest, address = elsewhere["before"], elsewhere["address"]
    name, location = (None, None) if rest in _NOTHING else _named(rest)
    into = _INTO.fullmatch(name) if name is not None and location is None else None
    if address is None and module is None and location is None:
        return None
    return SanitizerFrameLine(
        int(match["number"]),
        None if address is None else int(address, 16),
        len(match["address"] or "") == _PADDED and match["in"] is None,
        name if into is None else into["name"],
        None if into is None else int(into["offset"], 16),
        location,
        None if module is None else module["path"],
        None if module is None else module["arch"],
        None if module is None else int(module["offset"], 16),
        None if build_id is None else build_id["digits"],
    )


def _without_module(text: str) -> tuple[str, re.Match[str] | None]:
    """Split off the last brackets, if these hold a module."""
    start = _opened(text) if text.endswith(")") else -1
    if start < 0 or (start > 0 and text[start - 1] != " "):
        return text, None
    module = _MODULE.fullmatch(text, start + 1, len(text) - 1)
    return (text, None) if module is None else (text[:start].rstrip(), module)


def _opened(text: str) -> int:
    """Return where the brackets that end a text open; -1 if nowhere."""
    depth = 0
    for bracket in reversed(tuple(_BRACKETS.finditer(text))):
        depth += 1 if bracket[0] == ")" else -1
        if depth == 0:
            return bracket.start()
    return -1


def _named(text: str) -> tuple[str | None, SourceLocation | None]:
    """Split a function and the file that follows it; both may have spaces."""
    numbers = line_and_column(text)
    if numbers is None:
        return text.removesuffix(" " + _NULL) or None, None
    match = _FILE.search(text)
    place = text.rfind(" ", 0, numbers.start()) if match is None else match.start()
    name, file = text[: max(place, 0)].rstrip(), text[place + 1 : numbers.start()]
    if file == _NULL:
        return name or None, None
    return name or None, located(file, numbers)


_PROGRAM_BASE = 1 << 32
"""Link address of macOS programs; libraries are linked at 0."""


class Modules:
    """The images of a report, in the order in which frames name them."""

    def __init__(self) -> None:
        self._indices: dict[tuple[str, str | None], int] = {}
        self._images: list[ReportedImage] = []

    @property
    def images(self) -> tuple[ReportedImage, ...]:
        """The images named so far."""
        return tuple(self._images)

    def place(self, line: SanitizerFrameLine) -> tuple[int | None, ImageOffset | None]:
        """Return a frame's image and its offset in it."""
        if line.path is None:
            return None, None
        offset = _from_header(line)
        key = line.path, line.arch
        if key not in self._indices:
            self._indices[key] = len(self._images)
            base = None
            if line.address is not None and offset is not None and line.address >= offset:
                base = Avma(line.address - offset)
            self._images.append(
                ReportedImage(
                    uuid=identifier(line.build_id, is_macho=line.arch is not None),
                    name=(name := file_name(line.path)),
                    path="" if name == line.path else line.path,
                    arch=line.arch,
                    load_address=base,
                )
            )
        return self._indices[key], offset


def _from_header(line: SanitizerFrameLine) -> ImageOffset | None:
    offset = line.offset
    if offset is None or offset == line.address:
        # A program loaded at its link address: where its header is, is not reported.
        return None
    if line.arch is not None and offset >= _PROGRAM_BASE:
        offset -= _PROGRAM_BASE
    return ImageOffset(offset) if offset < _PROGRAM_BASE else None


_FINDING = re.compile(
    r"[ \t]*+(?:=+(?P<pid>[0-9]{1,9})=+)?[ \t]*+(?:ERROR|WARNING): "
    r"(?P<tool>[A-Za-z]{1,40}Sanitizer|libFuzzer): "
    r"(?P<what>.+)"
)
_ADDRESS = re.compile(r"\baddress (?P<address>0x[0-9a-fA-F]{1,16})")
_PID = re.compile(r"\(pid=([0-9]{1,9})\)")
_WORDS = ("Sanitizer: ", ": runtime error: ", "ERROR: libFuzzer: ")
_MARK = re.compile(r"()[ \t]*+(?:\*[ \t]++)?#[0-9]{1,9}[ \t]")
_EXAMINED = 1 << 18
_MAX_LENGTH = 1024


def recognises(source: ReportSource) -> bool:
    """Return whether sanitizer frames or messages are near the beginning."""
    head = source.text[:_EXAMINED]
    if "#0 " not in head:
        return False
    has_word = False
    for line in log_lines(head, _MARK):
        if _is_frame(line):
            parsed = parse_frame_line(line)
            if parsed is not None and (has_word or parsed.path is not None or _has_column(parsed)):
                return True
        has_word = has_word or any(word in line for word in _WORDS)
    return False


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report for each finding."""
    findings = [_Finding(None)]
    for line in log_lines(source.text, _MARK):
        head = line[:_MAX_LENGTH]
        match = _FINDING.fullmatch(head) if any(word in head for word in _WORDS) else None
        if match is not None:
            findings.append(_Finding(match))
        findings[-1].read(line)
    first, *others = findings
    if others and not first.has_stacks:
        others[0].prepend(first)
        return tuple(other.report() for other in others)
    return tuple(finding.report() for finding in findings)


def _is_frame(line: str) -> bool:
    return line.lstrip(" \t*")[:1] == "#"


def _has_column(frame: SanitizerFrameLine) -> bool:
    """Return whether it has what distinguishes it from gdb's frames with address and file."""
    place = frame.location
    return frame.address is not None and place is not None and place.column is not None


class _Finding:
    """The lines of one finding: titles, and the stacks below them."""

    def __init__(self, match: re.Match[str] | None) -> None:
        self._match = match
        self._pending: list[JsonValue] = []
        self._before: list[JsonValue] = []
        self._stacks: list[tuple[str | None, list[SanitizerFrameLine], list[JsonValue]]] = []

    @property
    def has_stacks(self) -> bool:
        return bool(self._stacks)

    def prepend(self, other: _Finding) -> None:
        """Prepend the lines before the first finding."""
        self._before = [*other._pending, *self._before]

    def read(self, line: str) -> None:
        frame = parse_frame_line(line) if _is_frame(line) else None
        if frame is None:
            if line.strip():
                self._pending.append(line)
            return
        if self._follows(frame):
            self._flush()
        else:
            self._begin()
        self._stacks[-1][1].append(frame)

    def _follows(self, frame: SanitizerFrameLine) -> bool:
        """Return whether the frame continues the current stack: logs may interleave."""
        if not self._stacks or frame.number == 0:
            return False
        return not self._pending or frame.number == self._stacks[-1][1][-1].number + 1

    def _begin(self) -> None:
        """Begin a stack, titled by the last line before it."""
        title = self._pending.pop() if self._pending else None
        self._flush()
        self._stacks.append((str(title).strip() if title is not None else None, [], []))

    def _flush(self) -> None:
        (self._stacks[-1][2] if self._stacks else self._before).extend(self._pending)
        self._pending = []

    def report(self) -> Report:
        self._flush()
        modules = Modules()
        match = self._match
        pid = None
        if match is not None:
            other = _PID.search(match["what"])
            digits = match["pid"] or (None if other is None else other[1])
            pid = None if digits is None else int(digits)
        threads = tuple(
            ReportedThread(
                index=number,
                name=title,
                crashed=number == 0,
                frames=_frames(lines, modules),
                details={LINES: other} if other else {},
            )
            for number, (title, lines, other) in enumerate(self._stacks)
        )
        return Report(
            kind=ReportKind.SANITIZER,
            process=ReportedProcess(pid=pid),
            exception=None if match is None else _exception(match),
            threads=threads,
            warnings=lost_frames_of(threads),
            images=modules.images,
            details={LINES: self._before} if self._before else {},
        )


def _exception(match: re.Match[str]) -> ReportedException:
    address = _ADDRESS.search(match["what"])
    return ReportedException(
        type=match["tool"],
        message=match["what"],
        address=None if address is None else int(address["address"], 16),
    )


def _frames(lines: Sequence[SanitizerFrameLine], modules: Modules) -> tuple[ReportedFrame, ...]:
    """Convert a stack's frames: consecutive ones at one address are inlined calls.

    Direct recursion also repeats one address.
    """
    frames: list[ReportedFrame] = []
    first = 0  # the frames at this address
    for number, line in enumerate(lines):
        frame = _frame(line, number, modules)
        if frames and _place(frames[-1]) == _place(frame) and frame.symbol is not None:
            begun = frames[first]
            if (begun.symbol, begun.location) == (frame.symbol, frame.location):
                first = number
            else:
                frames[-1] = frames[-1]._replace(is_inline=True)
        else:
            first = number
        frames.append(frame)
    return tuple(frames)


def _place(frame: ReportedFrame) -> tuple[object, ...]:
    return (frame.address, frame.image, frame.offset)


def _frame(line: SanitizerFrameLine, number: int, modules: Modules) -> ReportedFrame:
    image, offset = modules.place(line)
    details: dict[str, JsonValue] = {}
    if line.number != number:
        details["number"] = line.number
    return ReportedFrame(
        None if line.address is None else Avma(line.address),
        image,
        offset,
        Adjustment.RETURN if line.is_return_address else Adjustment.ALREADY_ADJUSTED,
        None if line.name is None else ReportedSymbol(line.name, line.into),
        line.location,
        is_inline=False,
        details=details,
    )
