"""The stacks of a text: a new one begins where the numbers begin again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedThread
from machtrace.reports.backtraces.lines import IMAGE_WIDTH, StackLine, read_lines
from machtrace.reports.source import ReportSource

_LOOKED_AT = 200
"""Lines among which one must be of a stack."""
_ARRAY = " \t()[]\"',"
_LONGEST_HEAD = 1 << 18


def recognises(source: ReportSource) -> bool:
    """Whether lines of stacks are near the beginning."""
    head = source.text[:_LONGEST_HEAD].split("\n", _LOOKED_AT)[:_LOOKED_AT]
    return any(read_lines(line) for line in head)


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it: what is no line of a stack is kept with the thread that it precedes."""
    reader = _Reader()
    lines = [(line, read_lines(line)) for line in source.text.split("\n")]
    whole = _whole_names(one.image for _, found in lines for one in found)
    for line, found in lines:
        for one in found:
            reader.add(one._replace(image=whole.get(one.image) or one.image))
        if len(found) > 1:
            reader.keep_around(line)
        elif not found and line.strip(_ARRAY):
            reader.keep(line)
    return (reader.report(),)


def _whole_names(names: Iterable[str]) -> dict[str, str | None]:
    """Names that are cut in some lines and whole in others, by how they are cut."""
    whole: dict[str, str | None] = {}
    for name in names:
        if len(name) > IMAGE_WIDTH and "/" not in name:
            cut = name[:IMAGE_WIDTH]
            whole[cut] = name if whole.get(cut, name) == name else None
    return whole


class _Reader:
    def __init__(self) -> None:
        self._images: dict[tuple[str, UUID | None], int] = {}
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
            ReportedFrame(
                Avma(line.address), index, offset, Adjustment.RETURN, symbol, line.location
            )
        )

    def keep(self, line: str) -> None:
        self._next.append(line)

    def keep_around(self, line: str) -> None:
        """What is before and behind the stack of a line that is an array."""
        before, _, rest = line.partition('"')
        behind = rest.rpartition('"')[2]
        self._other += [one for one in (before.strip(_ARRAY), behind.strip(_ARRAY)) if one]

    def _image(self, line: StackLine) -> int | None:
        """The image's index; only some lines have its UUID."""
        if not line.image and line.uuid is None:
            return None
        base = None
        if line.image_offset is not None and line.image_offset <= line.address:
            base = Avma(line.address - line.image_offset)
        index = self._images.get((line.image, line.uuid))
        if index is None and line.uuid is not None:  # a line before may have had the name alone
            index = self._images.get((line.image, None)) if line.image else None
            if index is not None and self._found[index].uuid is not None:
                index = None
        if index is None:
            index = len(self._found)
            path = line.image if "/" in line.image else ""
            self._found.append(ReportedImage(name=line.image.rpartition("/")[2], path=path))
        self._images[line.image, line.uuid] = index
        self._images.setdefault((line.image, None), index)
        known = self._found[index]
        self._found[index] = replace(
            known,
            uuid=known.uuid or line.uuid,
            load_address=base if known.load_address is None else known.load_address,
        )
        return index

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
