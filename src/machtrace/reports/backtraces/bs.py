"""BSBacktraceLogger's text: ``Backtrace of Thread 4711:`` and a line for each frame.

Source: ``bs_logBacktraceEntry`` in ``BSBacktraceLogger.m``. All addresses but the first of a thread
are return addresses. A frame without a symbol has the load address of its image in place of a name.
"""

from __future__ import annotations

import re
from itertools import pairwise

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.model.text import INLINED
from machtrace.reports.log_lines import LINES
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import frames_not_shown, gap_details

MAX_LINE_LENGTH = 16384
_THREAD = re.compile(r"Backtrace of Thread (?P<id>[0-9]{1,20}):")
_ADDRESS = re.compile(r"  (?P<address>0x[0-9a-fA-F]{1,16})(?= |\Z)")
_OFFSET = re.compile(r" \+ (?P<offset>[0-9]{1,20})\Z")
_BASE = re.compile(r"0x[0-9a-f]{1,16}")
_NOTHING = re.compile(r"0x0+")
_HEADING = re.compile(r"Call Backtrace of [0-9]{1,9} threads:")
_EXAMINED = 1 << 18


def recognises(source: ReportSource) -> bool:
    """Return whether a thread's heading with a frame below it is near the beginning."""
    lines = source.text[:_EXAMINED].split("\n")
    return any(
        _THREAD.fullmatch(line) is not None and _frame(below) is not None
        for line, below in pairwise(lines)
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    reader = _Reader()
    for line in source.text.split("\n"):
        reader.read(line.rstrip())
    return (reader.report(),)


def _frame(line: str) -> tuple[str, int, str, int | None] | None:
    """Return a line's image, address, function and offset; None if it is not a frame's."""
    offset = _OFFSET.search(line) if len(line) <= MAX_LINE_LENGTH else None
    end = len(line) if offset is None else offset.start()
    address = _ADDRESS.search(line, 0, end) if len(line) <= MAX_LINE_LENGTH else None
    if address is None:
        return None
    name = line[address.end() : end].strip()
    image = line[: address.start()].rstrip()
    return (
        image,
        int(address["address"], 16),
        name,
        None if offset is None else int(offset["offset"]),
    )


class _Reader:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._images: list[ReportedImage] = []
        self._threads: list[ReportedThread] = []
        self._id: int | None = None
        self._frames: list[ReportedFrame] = []
        self._gap: dict[str, JsonValue] = {}
        self._other: list[JsonValue] = []
        self._before: list[JsonValue] = []

    def read(self, line: str) -> None:
        """Read a line; one of no kind is stored with the thread before it."""
        heading = _THREAD.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
        if heading is not None:
            self._end()
            self._id = int(heading["id"])
        elif self._id is not None and (frame := _frame(line)) is not None:
            self._add(*frame)
        elif self._frames and not self._gap and (count := frames_not_shown(line)):
            self._gap = gap_details(self._frames, count)
        elif line and (self._id is not None or _HEADING.fullmatch(line) is None):
            (self._before if self._id is None else self._other).append(line)

    def _add(self, image: str, address: int, name: str, offset: int | None) -> None:
        is_known = _NOTHING.fullmatch(image) is None and image != ""
        is_inline = not offset and name.endswith(INLINED)
        if is_inline:
            name, offset = name.removesuffix(INLINED), None
        symbol = ReportedSymbol(name, offset) if name not in ("", "???") else None
        base = None
        if (
            offset is not None
            and _BASE.fullmatch(name) is not None
            and int(name, 16) + offset == address
        ):
            symbol, base = None, int(name, 16) or None
        index = None
        if is_known:
            index = self._numbers.setdefault(image, len(self._images))
            if index == len(self._images):
                self._images.append(ReportedImage(name=image))
            if base is not None and self._images[index].load_address is None:
                self._images[index] = ReportedImage(name=image, load_address=Avma(base))
        adjustment = Adjustment.RETURN if self._frames else Adjustment.EXACT
        if self._frames and self._frames[-1].is_inline:
            adjustment = self._frames[-1].adjustment
        self._frames.append(
            ReportedFrame(
                Avma(address),
                index,
                None if not is_known or base is None else ImageOffset(address - base),
                adjustment,
                symbol,
                is_inline=is_inline,
            )
        )

    def _end(self) -> None:
        if self._id is not None:
            details: dict[str, JsonValue] = {LINES: self._other} if self._other else {}
            self._threads.append(
                ReportedThread(
                    index=len(self._threads),
                    id=self._id,
                    frames=tuple(self._frames),
                    details=details | self._gap,
                )
            )
        self._frames, self._gap, self._other = [], {}, []

    def report(self) -> Report:
        """Return the report of all lines."""
        self._end()
        return Report(
            kind=ReportKind.BS,
            threads=tuple(self._threads),
            images=tuple(self._images),
            details={LINES: self._before} if self._before else {},
        )
