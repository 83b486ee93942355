"""The text of ``machtrace backtrace``, and of stacks that Python prints.

A line a frame: its number, image, address and function, where it is known ``at`` which line, and in
brackets how the address was found. The reader takes all that :mod:`~machtrace.model.text` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.cause import Cause
from machtrace.model.incident.facts import WaitsFor
from machtrace.model.report import (
    Adjustment,
    Details,
    JsonValue,
    NameSource,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.snapshot import ThreadInfo
from machtrace.model.stack import MACHINE_FRAMES, Stop, StopReason
from machtrace.model.symbol import FrameStatus, PythonFrame
from machtrace.reports.log_lines import LINES
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import (
    CAUSE,
    FUNCTION,
    GIL,
    KIND,
    OVERFLOWED,
    PYTHON,
    REMAINDER,
    STATUS,
    STOPPED_FOR,
    TRUST,
    WAITS_FOR,
    capture_of,
    stored,
    written,
)
from machtrace.reports.stacks.reported import exception_of, remainder_details
from machtrace.reports.stacks.text_lines import (
    CERTAINTY,
    INTERRUPTED,
    MAX_LINE_LENGTH,
    NATIVE_THREADS,
    Chain,
    FrameRow,
    Heading,
    StackLine,
    frame_row,
    read_cause,
    read_heading,
    read_others,
    read_python_line,
    read_stack_line,
)

NATIVE_LINE = "without_python"
NATIVE_LINE = "without_python"
HEADING = "heading"
"""The detail of a report: its first line, if the images or the process do not give it."""
EXPLANATION = "explanation"
"""The detail of a frame: the lines of ``--explain`` below it."""

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")
_ARCHES = "|".join(re.escape(arch.value) for arch in Arch)
_PROCESS = re.compile(
    rf"(?P<name>\S.{{0,4096}}?)(?: \[(?P<pid>[0-9]{{1,10}})\])?  (?P<arch>{_ARCHES})"
    r"  (?P<threads>[0-9,]{1,12}) threads?(?:  (?P<images>[0-9,]{1,12}) images?)?(?:  .*)?"
)
_SAME = re.compile(
    r" {0,9}(?:[0-9]{1,9}–)?[0-9]{1,9}  the same frame (?P<count>[0-9,]{1,12}) more times"
)
_GAP = re.compile(
    r" {0,9}…  (?P<count>[0-9,]{1,14}) (?:frames? in between|more frames?)",
)
_OVERFLOW = re.compile(
    r"  the stack pointer is below the stack (?P<stack>0x[0-9a-f]{1,16}): the stack overflowed"
)
_REGISTERS = re.compile(r"(?: *[a-z0-9_]{1,12}: 0x[0-9a-f]{8,16})+")
_REGISTER = re.compile(r"([a-z0-9_]{1,12}): 0x([0-9a-f]{8,16})")
_STOPS = {str(Stop(reason)): reason for reason in StopReason if reason is not StopReason.ROOT}
_EXAMINED = 1 << 18
_MAX_REPEATED = 1 << 18
"""Frames of a report that lines of recursions stand for; further such lines stay lines."""
_INCOMPLETE, _EXPLAINED = " " * 5 + "incomplete: ", " " * 8
_NEAR = 16
"""Lines below a thread's heading, one of which is a frame's."""


def recognises(source: ReportSource) -> bool:
    """Return whether a thread's heading with a frame below it is near the beginning."""
    head = _COLOUR.sub("", source.text[:_EXAMINED])
    if "\nThread " not in f"\n{head}":
        return False
    lines = [line.rstrip() for line in head.split("\n")]
    for number, line in enumerate(lines):
        if line.startswith("Thread ") and read_heading(line) is not None:
            below = lines[number + 1 : number + 1 + _NEAR]
            if any(read_stack_line(one) or read_python_line(one) for one in below):
                return True
    return False


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report for each process."""
    reports: list[Report] = []
    reader = _Reader()
    for text in source.text.split("\n"):
        line = (_COLOUR.sub("", text) if "\x1b" in text else text).rstrip()
        if len(line) <= MAX_LINE_LENGTH and (process := _PROCESS.fullmatch(line)) is not None:
            if reader.threads or reader.thread:
                reports.append(reader.report())
                reader = _Reader()
            reader.process = process
        else:
            reader.read(line)
    return (*reports, reader.report())


class _Reader:
    """Builds one report from lines."""

    def __init__(self) -> None:
        self.process: re.Match[str] | None = None
        self.threads: list[tuple[Heading, dict[str, JsonValue], list[Chain], list[str]]] = []
        self.thread: Heading | None = None
        self._chains: list[Chain] = []
        self._details: dict[str, JsonValue] = {}
        self._registers: list[str] = []
        self._others: list[tuple[str, list[ThreadInfo]]] = []
        """Lines with threads that have the same stack."""
        self._room = _MAX_REPEATED
        self._native_threads = ""
        """The line about threads without Python functions."""
        self._other: list[JsonValue] = []
        """Lines before the first thread."""

    def read(self, line: str) -> None:
        heading = read_heading(line) if line.startswith("Thread ") else None
        if heading is not None:
            self._end()
            self.thread, self._chains, self._details = heading, [Chain()], {}
        elif self.thread is None:
            if line:
                self._other.append(line)
        elif NATIVE_THREADS.fullmatch(line):
            self._native_threads = line
        elif line and not self._read_part(line):
            _append(self._details, LINES, line)

    def _read_part(self, line: str) -> bool:
        """Read a line of a thread; return False if it is unknown."""
        if len(line) > MAX_LINE_LENGTH:
            return False
        return self._read_frame(self._chains[-1], line) or self._read_fact(self._chains[-1], line)

    def _read_frame(self, chain: Chain, line: str) -> bool:
        if (parsed := read_stack_line(line)) is not None:
            self._add(chain, parsed)
        elif (python := read_python_line(line)) is not None:
            if python.function is None and not self._has_room(python.repeats):
                return False
            return chain.add_python(python)
        elif (same := _SAME.fullmatch(line)) is not None:
            chain.end_python()
            return self._has_room(_count(same["count"])) and chain.repeat(_count(same["count"]))
        elif (gap := _GAP.fullmatch(line)) is not None:
            chain.end_python()
            chain.gap, chain.after = _count(gap["count"]), _machine_frames(chain.rows)
        else:
            return False
        return True

    def _has_room(self, count: int) -> bool:
        self._room -= count
        return self._room > 0

    def _read_fact(self, chain: Chain, line: str) -> bool:
        if line.strip() == MACHINE_FRAMES and len(self._chains) == 1:
            self._chains.append(Chain())
        elif line.startswith(_INCOMPLETE):
            return _read_stop(chain, line.strip())
        elif line.startswith(_EXPLAINED) and chain.rows:
            _append(chain.rows[-1].details, EXPLANATION, line)
        elif _REGISTERS.fullmatch(line) is not None:
            self._registers.append(line)
        elif not chain.rows and (overflow := _OVERFLOW.fullmatch(line)) is not None:
            self._details[OVERFLOWED] = int(overflow["stack"], 16)
        elif not chain.rows and (others := read_others(line)):
            self._others.append((line, others))
        elif not chain.rows and (cause := read_cause(line.strip())) is not None:
            self._details[CAUSE] = written(cause, Cause)
        else:
            return False
        return True

    def _add(self, chain: Chain, line: StackLine) -> None:
        row = frame_row(line)
        if not row.is_inline and chain.python:
            row.details[PYTHON] = written(tuple(chain.python), tuple[PythonFrame, ...])
            chain.python = []
        chain.rows.append(row)

    def _end(self) -> None:
        for chain in self._chains:
            chain.end_python()
        if self.thread is not None:
            self.threads.append((self.thread, self._details, self._chains, self._registers))
            self._end_others()
        self.thread, self._registers, self._others = None, [], []

    def _end_others(self) -> None:
        rows = sum(len(chain.rows) for chain in self._chains)
        cause = {key: value for key, value in self._details.items() if key == CAUSE}
        for line, others in self._others:
            if not self._has_room(rows * len(others)):
                _append(self._details, LINES, line)
                continue
            headings = (Heading(other.index, other.id, other.name, other.queue) for other in others)
            self.threads += ((heading, cause, self._chains, []) for heading in headings)

    def report(self) -> Report:
        """Return the report of all lines."""
        self._end()
        images = _Images(
            row for _, _, chains, _ in self.threads for chain in chains for row in chain.rows
        )
        self.threads.sort(key=lambda parts: parts[0].number)
        threads = tuple(_reported(*parts, images) for parts in self.threads)
        causes = (stored(thread.details, CAUSE, Cause) for thread in threads if thread.crashed)
        cause = next((one for one in causes if one is not None), None)
        report = Report(
            kind=ReportKind.MACHTRACE,
            process=_process(self.process),
            exception=None if cause is None or not cause.name else exception_of(cause),
            threads=threads,
            images=images.all(),
            details={LINES: self._other} if self._other else {},
        )
        heading = "" if self.process is None else self.process[0]
        if self._native_threads:
            report = replace(report, details={**report.details, NATIVE_LINE: self._native_threads})
        if capture_of(report).heading != heading:
            report = replace(report, details={**report.details, HEADING: heading})
        return report


def _process(match: re.Match[str] | None) -> ReportedProcess:
    if match is None:
        return ReportedProcess()
    name = None if match["name"] == "process" else match["name"]
    pid = None if match["pid"] is None else int(match["pid"])
    return ReportedProcess(name=name, pid=pid, code_type=match["arch"])


def _count(text: str) -> int:
    return int(text.replace(",", "") or "0")


def _machine_frames(rows: Sequence[FrameRow]) -> int:
    return sum(not row.is_inline for row in rows)


def _append(details: dict[str, JsonValue], key: str, line: str) -> None:
    lines = details.setdefault(key, [])
    if isinstance(lines, list):
        lines.append(line)


def _read_stop(chain: Chain, text: str) -> bool:
    reason, at, address = text.rpartition(" at 0x")
    if not at:
        reason = text
    if reason not in _STOPS:
        return False
    chain.stop = Stop(_STOPS[reason], Avma(int(address, 16)) if at else None)
    return str(chain.stop) == text


class _Images:
    """The images that rows name: those of one name at one load address are one."""

    def __init__(self, rows: Iterator[FrameRow]) -> None:
        starts: dict[str, dict[int | None, None]] = {}
        for row in rows:
            if row.image:
                starts.setdefault(row.image, {})[row.start] = None
        self._numbers: dict[tuple[str, int | None], int] = {}
        self._images: list[ReportedImage] = []
        for name, of_name in starts.items():
            known = [start for start in of_name if start is not None and start >= 0]
            starts_of_image: list[int | None] = [*known] or [None]
            for start in starts_of_image:
                self._numbers[name, start] = len(self._images)
                self._images.append(
                    ReportedImage(name=name, load_address=None if start is None else Avma(start))
                )
            if None in of_name and len(known) == 1:
                self._numbers[name, None] = self._numbers[name, known[0]]
            elif None in of_name and known:
                self._numbers[name, None] = len(self._images)
                self._images.append(ReportedImage(name=name))

    def frame(self, row: FrameRow, *, is_first: bool) -> ReportedFrame:
        """Return a row's frame."""
        index = self._numbers.get((row.image, row.start))
        base = None if index is None else self._images[index].load_address
        offset = None
        if base is not None and row.address >= base:
            offset = ImageOffset(row.address - base)
        details = dict(row.details)
        certainty = details.pop(CERTAINTY, None)
        source = NameSource.REPORT if certainty is None else NameSource(str(certainty))
        is_exact = details.pop(INTERRUPTED, False) or KIND in details
        adjustment = Adjustment.RETURN
        if is_exact or (is_first and TRUST not in details):
            adjustment = Adjustment.EXACT
        if row.function is not None:
            details[FUNCTION] = row.function
        return ReportedFrame(
            None if row.details.get(STATUS) == FrameStatus.PYTHON.value else Avma(row.address),
            index,
            offset,
            adjustment,
            ReportedSymbol(row.name, row.offset, source) if row.name else None,
            row.location,
            row.is_inline,
            details,
        )

    def frames(self, chain: Chain) -> tuple[ReportedFrame, ...]:
        """Return the frames of a chain; inlined ones have their holder's adjustment."""
        frames: list[ReportedFrame] = []
        is_first = True
        for row in chain.rows:
            frames.append(self.frame(row, is_first=is_first))
            is_first = is_first and row.is_inline
        return tuple(frames)

    def all(self) -> tuple[ReportedImage, ...]:
        """Return all images, in the order of their names."""
        return tuple(self._images)


def _reported(
    heading: Heading,
    details: dict[str, JsonValue],
    chains: Sequence[Chain],
    registers: Sequence[str],
    images: _Images,
) -> ReportedThread:
    details = details | chains[0].details()
    if len(chains) > 1:
        details[REMAINDER] = remainder_details(images.frames(chains[1]), chains[1].details())
    if heading.gil is not None:
        details[GIL] = heading.gil.value
    if heading.waits_for is not None:
        details[WAITS_FOR] = written(heading.waits_for, WaitsFor)
    if heading.stopped_for_ns is not None:
        details[STOPPED_FOR] = heading.stopped_for_ns
    values = tuple(
        ReportedRegister(name, int(value, 16))
        for line in registers
        for name, value in _REGISTER.findall(line)
    )
    return ReportedThread(
        index=heading.number - 1,
        id=heading.id,
        name=heading.name,
        queue=heading.queue,
        crashed=heading.crashed,
        frames=images.frames(chains[0]),
        registers=ReportedRegisters(registers=values) if values else None,
        details=details,
    )


# --- writing ---


def backtrace_text(report: Report) -> str:
    """Return the report's stacks as ``machtrace backtrace`` prints them."""
    capture = capture_of(report)
    heading = report.details.get(HEADING)
    lines = _strings(report.details.get(LINES))
    lines.append(heading if isinstance(heading, str) else capture.heading)
    for thread, stack in zip_longest(report.threads, capture.stacks):
        details: Details = {} if thread is None else thread.details
        explanations = None if thread is None else _explanations(thread)
        lines.append("")
        lines += stack.text_lines(
            pointer_size=capture.process.arch.pointer_size,
            details=explanations,
            with_registers=bool(stack.registers),
        )
        lines += _strings(details.get(LINES))
    native_line = report.details.get(NATIVE_LINE)
    if isinstance(native_line, str):
        lines += ["", native_line]
    return "\n".join(lines[1:] if not lines[0] else lines) + "\n"


def _strings(value: JsonValue) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _explanations(thread: ReportedThread) -> list[list[str]] | None:
    """Return the explanations of a thread's frames; None without any."""
    frames = [frame for frame in thread.frames if not frame.is_inline]
    lines = [_strings(frame.details.get(EXPLANATION)) for frame in frames]
    return lines if any(lines) else None
