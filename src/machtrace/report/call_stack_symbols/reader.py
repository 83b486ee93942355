"""The stacks of a text: a new one begins where the numbers begin again."""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedThread
from machtrace.report.call_stack_symbols.lines import StackLine, read_line
from machtrace.report.source import ReportSource

_LOOKED_AT = 200
"""Lines among which one must be of a stack."""


def recognises(source: ReportSource) -> bool:
    """Whether lines of stacks are near the beginning."""
    head = source.text[: _LOOKED_AT << 10].split("\n", _LOOKED_AT)[:_LOOKED_AT]
    return any(read_line(line) is not None for line in head)


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it: what is no line of a stack is kept with the thread that it precedes."""
    reader = _Reader()
    for line in source.text.split("\n"):
        found = read_line(line)
        if found is not None:
            reader.add(found)
        elif line.strip(" \t()[]\"',"):
            reader.keep(line)
    return (reader.report(),)


class _Reader:
    def __init__(self) -> None:
        self._images: dict[tuple[str, str], int] = {}
        self._found: list[ReportedImage] = []
        self._threads: list[ReportedThread] = []
        self._frames: list[ReportedFrame] = []
        self._other: list[JsonValue] = []
        self._next: list[JsonValue] = []

    def add(self, line: StackLine) -> None:
        begins = line.number == 0 or (line.number is None and bool(self._next))
        if self._frames and begins:
            self._end()
        if not self._frames:
            self._other, self._next = self._next, []
        index = self._image(line)
        offset = None
        if line.image_offset is not None and index is not None:
            offset = ImageOffset(line.image_offset)
        symbol = None
        if line.symbol is not None:
            symbol = ReportedSymbol(line.symbol, line.symbol_offset)
        self._frames.append(
            ReportedFrame(Avma(line.address), index, offset, Adjustment.RETURN, symbol)
        )

    def keep(self, line: str) -> None:
        self._next.append(line)

    def _image(self, line: StackLine) -> int | None:
        if not line.image and line.uuid is None:
            return None
        key = (line.image, "" if line.uuid is None else str(line.uuid))
        if key not in self._images:
            self._images[key] = len(self._found)
            base = None
            if line.image_offset is not None and line.image_offset <= line.address:
                base = Avma(line.address - line.image_offset)
            path = line.image if "/" in line.image else ""
            self._found.append(
                ReportedImage(
                    name=line.image.rpartition("/")[2],
                    path=path,
                    uuid=line.uuid,
                    load_address=base,
                )
            )
        return self._images[key]

    def _placed(self, frame: ReportedFrame) -> ReportedFrame:
        """With its offset, where another line told where its image begins."""
        base = None if frame.image is None else self._found[frame.image].load_address
        if frame.offset is not None or frame.address is None or base is None:
            return frame
        if frame.address < base:
            return frame
        return frame._replace(offset=ImageOffset(frame.address - base))

    def _end(self) -> None:
        details: dict[str, JsonValue] = {"lines": self._other} if self._other else {}
        self._threads.append(
            ReportedThread(index=len(self._threads), frames=tuple(self._frames), details=details)
        )
        self._frames, self._other = [], []

    def report(self) -> Report:
        if self._frames:
            self._end()
        threads = [
            replace(thread, frames=tuple(map(self._placed, thread.frames)))
            for thread in self._threads
        ]
        details: dict[str, JsonValue] = {"lines": self._next} if self._next else {}
        return Report(
            kind=ReportKind.CALL_STACK_SYMBOLS,
            threads=tuple(threads),
            images=tuple(self._found),
            details=details,
        )
