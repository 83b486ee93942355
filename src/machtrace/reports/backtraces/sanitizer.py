"""The findings in a log of a sanitizer, and stack dumps of LLVM's tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from machtrace.model.address import Avma
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_process import ReportedException, ReportedProcess
from machtrace.model.reported_thread import ReportedThread
from machtrace.reports.backtraces.log_lines import log_lines
from machtrace.reports.backtraces.frame_lines_x import SanitizerFrameLine, parse_frame_line
from machtrace.reports.backtraces.modules import Modules
from machtrace.reports.source import ReportSource

_FINDING = re.compile(
    r"[ \t]*+(?:=+(?P<pid>[0-9]{1,9})=+)?[ \t]*+(?:ERROR|WARNING): "
    r"(?P<tool>[A-Za-z]{1,40}Sanitizer|libFuzzer): "
    r"(?P<what>.+)"
)
_ADDRESS = re.compile(r"\baddress (?P<address>0x[0-9a-fA-F]{1,16})")
_PID = re.compile(r"\(pid=([0-9]{1,9})\)")
_WORDS = ("Sanitizer: ", ": runtime error: ", "ERROR: libFuzzer: ")
_MARK = re.compile(r"()[ \t]*+(?:\*[ \t]++)?#[0-9]{1,9}[ \t]")
_LOOKED_AT = 1 << 18
_LONGEST = 1024
_LINES = "lines"


def recognises(source: ReportSource) -> bool:
    """Whether frames with modules, or columns, or a sanitizer's word, are near the beginning."""
    head = source.text[:_LOOKED_AT]
    if "#0 " not in head:
        return False
    found = False
    for line in log_lines(head, _MARK):
        if _is_frame(line):
            parsed = parse_frame_line(line)
            if parsed is not None and (found or parsed.path is not None or _has_column(parsed)):
                return True
        found = found or any(word in line for word in _WORDS)
    return False


def read(source: ReportSource) -> tuple[Report, ...]:
    """A report of each finding."""
    findings = [_Finding(None)]
    for line in log_lines(source.text, _MARK):
        head = line[:_LONGEST]
        match = _FINDING.fullmatch(head) if any(word in head for word in _WORDS) else None
        if match is not None:
            findings.append(_Finding(match))
        findings[-1].take(line)
    first, *others = findings
    if others and not first.has_stacks:
        others[0].begin_with(first)
        return tuple(one.report() for one in others)
    return tuple(one.report() for one in findings)


def _is_frame(line: str) -> bool:
    return line.lstrip(" \t*")[:1] == "#"


def _has_column(frame: SanitizerFrameLine) -> bool:
    """Whether it has what gdb, which has frames with an address and a file too, does not print."""
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

    def begin_with(self, other: _Finding) -> None:
        """Take the lines before the first finding."""
        self._before = [*other._pending, *self._before]

    def take(self, line: str) -> None:
        frame = parse_frame_line(line) if _is_frame(line) else None
        if frame is None:
            if line.strip():
                self._pending.append(line)
            return
        if self._follows(frame):
            self._leave()
        else:
            self._begin()
        self._stacks[-1][1].append(frame)

    def _follows(self, frame: SanitizerFrameLine) -> bool:
        """Whether it is of the stack before it: others write to the same log, too."""
        if not self._stacks or frame.number == 0:
            return False
        return not self._pending or frame.number == self._stacks[-1][1][-1].number + 1

    def _begin(self) -> None:
        """A stack begins: the last line before it says what it is of."""
        title = self._pending.pop() if self._pending else None
        self._leave()
        self._stacks.append((str(title).strip() if title is not None else None, [], []))

    def _leave(self) -> None:
        (self._stacks[-1][2] if self._stacks else self._before).extend(self._pending)
        self._pending = []

    def report(self) -> Report:
        self._leave()
        modules = Modules()
        match = self._match
        pid = None
        if match is not None:
            other = _PID.search(match["what"])
            digits = match["pid"] or (None if other is None else other[1])
            pid = None if digits is None else int(digits)
        return Report(
            kind=ReportKind.SANITIZER,
            process=ReportedProcess(pid=pid),
            exception=None if match is None else _exception(match),
            threads=tuple(
                ReportedThread(
                    index=number,
                    name=title,
                    crashed=number == 0,
                    frames=_frames(lines, modules),
                    details={_LINES: other} if other else {},
                )
                for number, (title, lines, other) in enumerate(self._stacks)
            ),
            images=modules.images,
            details={_LINES: self._before} if self._before else {},
        )


def _exception(match: re.Match[str]) -> ReportedException:
    address = _ADDRESS.search(match["what"])
    return ReportedException(
        type=match["tool"],
        message=match["what"],
        address=None if address is None else int(address["address"], 16),
    )


def _frames(lines: Sequence[SanitizerFrameLine], modules: Modules) -> tuple[ReportedFrame, ...]:
    """A stack's frames: those that follow one another at one address are inlined calls.

    A function that calls itself is there again and again at one address, too.
    """
    found: list[ReportedFrame] = []
    first = 0  # of those at this address
    for number, line in enumerate(lines):
        frame = _frame(line, number, modules)
        if found and _place(found[-1]) == _place(frame) and frame.symbol is not None:
            begun = found[first]
            if (begun.symbol, begun.location) == (frame.symbol, frame.location):
                first = number
            else:
                found[-1] = found[-1]._replace(is_inline=True)
        else:
            first = number
        found.append(frame)
    return tuple(found)


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
