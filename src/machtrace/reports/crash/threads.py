"""Threads of texts: headings, frames, and the registers of the crashed one.

Also the bytes around an x86 thread's instruction: *Thread 0 instruction stream*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from machtrace.frozen import dataclass
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    LanguageException,
    ReportedFrame,
    ReportedRegister,
    ReportedRegisters,
    ReportedThread,
)
from machtrace.reports.crash.frame_lines import FrameLines
from machtrace.reports.crash.frames import (
    ELIDED,
    PLACE,
    lost_frames,
    number_gaps,
    printed_number,
)
from machtrace.reports.crash.layouts import STATE, THREADS
from machtrace.reports.crash.lines import MAX_LINE_LENGTH
from machtrace.reports.crash.registers import read_fault, read_state
from machtrace.reports.log_lines import LINES

KEY = "instructionState"
_STREAM_KEY = "instructionStream"
_ROW = 16
_HALF = 8
_MARK = "\t<=="
_BYTES = 256
_PRINTABLE = range(0x20, 0x7F)


def stream_lines(state: JsonValue) -> Iterator[str]:
    """Yield the rows, sixteen bytes each, of a thread's ``instructionState``."""
    stream = state.get(_STREAM_KEY) if isinstance(state, dict) else None
    stream_bytes = stream.get("bytes") if isinstance(stream, dict) else None
    if not isinstance(stream, dict) or not isinstance(stream_bytes, list):
        return
    data = [byte for byte in stream_bytes if type(byte) is int and 0 <= byte < _BYTES]
    offset = stream.get("offset")
    if len(data) != len(stream_bytes):
        return
    for first in range(0, len(data), _ROW):
        row = data[first : first + _ROW]
        marked = offset - first if type(offset) is int else -1
        yield _row(row, marked)


def _row(row: Sequence[int], marked: int) -> str:
    text = " "
    for place, byte in enumerate(row):
        if place == marked:
            lead = "["
        elif place and place == marked + 1:
            lead = "]"
        else:
            lead = "-" if place == _HALF else " "
        text += f"{lead}{byte:02x}"
    text += "]" if marked == len(row) - 1 else " "
    shown = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in row)
    return f"{text} {shown}{_MARK if 0 <= marked < len(row) else ''}"


def read_stream(lines: Sequence[str]) -> JsonValue:
    """Parse rows into an ``instructionState``; None if they are not such rows."""
    data: list[JsonValue] = []
    offset = None
    for line in lines:
        width = 1 + 3 * _ROW
        columns = line[:width]
        for place in range(1, width, 3):
            digits = columns[place + 1 : place + 3]
            try:
                byte = int(digits, 16) if len(digits) == 2 else -1  # noqa: PLR2004 - of a byte
            except ValueError:
                byte = -1
            if byte < 0:
                break
            if columns[place] == "[":
                offset = len(data)
            data.append(byte)
    instruction_state: dict[str, JsonValue] = {"bytes": data}
    if offset is not None:
        instruction_state["offset"] = offset
    state: JsonValue = {_STREAM_KEY: instruction_state}
    return state if [*stream_lines(state)] == [*lines] else None


_NAME = re.compile(r"Thread (?P<index>[0-9]{1,9}) name:(?P<name>.*)")
_HEADING = re.compile(
    r"Thread (?P<index>[0-9]{1,9})(?P<word> Crashed| Highlighted| Attributed)?:(?:: ?(?P<name>.*))?"
)
_STATE = re.compile(r"Thread (?P<index>[0-9]{1,9}) crashed with (?P<state>.*):")
_STREAM = re.compile(r"Thread (?P<index>[0-9]{1,9}) instruction stream:")
_QUEUE = "Dispatch queue: "
_ADDRESSES = re.compile(r"\(?(?P<addresses>0x[0-9a-fA-F]+(?:[ \t]+0x[0-9a-fA-F]+)*)\)?")
_ADDRESS_LENGTH = 18
_CRASHED = " Crashed"
HEADING = "heading"
"""The detail of a thread whose heading has a mark other than a crash: ``Attributed``."""
NAME_LINE = "name line"
"""The detail of a thread with a name line but no name: the text after the colon."""


@dataclass(slots=True)
class _Stack:
    """A stack under construction."""

    reader: FrameLines
    adjustment: Adjustment
    frames: list[ReportedFrame] = field(default_factory=list)
    other: list[JsonValue] = field(default_factory=list)
    next: int = 0

    def read(self, line: str) -> None:
        frame = self.reader.read(line, self.adjustment, self.next)
        if frame is None:
            self.other.append([len(self.frames), line])
            return
        expected = self.next
        number = printed_number(frame.details, expected)
        self.next = number + 1
        self.frames.append(frame)
        is_adjacent = len(self.frames) > 1 and number in (expected - 1, expected)
        if is_adjacent and is_expanded(self.frames[-2], frame):
            self.frames[-2] = self.frames[-2]._replace(is_inline=True)
            self.frames[-1] = frame._replace(adjustment=self.frames[-2].adjustment)
        if not self.frames[-1].is_inline:
            self.adjustment = Adjustment.RETURN

    def details(self) -> dict[str, JsonValue]:
        return {LINES: self.other} if self.other else {}

    def warnings(self, where: str) -> Iterator[str]:
        """Yield a warning if frames are lost, and not those of a recursion that the text states."""
        elided = {
            entry[0] for entry in self.other if isinstance(entry, list) and ELIDED in str(entry[1])
        }
        gaps = number_gaps(self.frames)
        yield from lost_frames(where, (gap for gap in gaps if gap.after not in elided))


def is_expanded(inner: ReportedFrame, outer: ReportedFrame) -> bool:
    """Return whether the first of two adjacent frames is a call inlined into the second.

    Some texts have it without a mark: both frames at one address of one image, with files and
    lines, as debug information expands an address; or the call without an offset of its own. An
    inlined call does not begin before its function, nor that before the first address. Two frames
    of one function at one address are recursion.
    """
    if inner.symbol is None or outer.symbol is None or inner.address is None:
        return False
    if (inner.address, inner.image) != (outer.address, outer.image):
        return False
    begin, end = inner.symbol.offset, outer.symbol.offset
    if begin is not None and end is not None:
        has_places = _has_place(inner) and _has_place(outer)
        is_within = has_places and begin <= end <= inner.address
    else:
        is_within = begin is None and _has_place(inner)
    return is_within and inner.symbol.name != outer.symbol.name


def _has_place(frame: ReportedFrame) -> bool:
    return frame.location is not None or PLACE in frame.details


class ThreadSections:
    """Collects the sections of threads, line by line."""

    def __init__(self, frames: FrameLines, warnings: list[str]) -> None:
        self._frames = frames
        self._warnings = warnings
        self._threads: dict[int, ReportedThread] = {}
        self._stacks: dict[int, _Stack] = {}
        self._names: dict[int, str] = {}
        self._states: dict[int, tuple[str, list[str]]] = {}
        self._streams: dict[int, list[str]] = {}
        self._faults: dict[str, tuple[ReportedRegister, str | None]] = {}
        self._is_odd_fault = False
        self._exception: _Stack | None = None
        self._open: _Stack | list[str] | None = None
        self._free = 0

    def begin(self, line: str) -> str | None:
        """Return the part of the text whose section begins with ``line``, or None."""
        if len(line) > MAX_LINE_LENGTH:
            return None
        line = line.rstrip()
        if (match := _HEADING.fullmatch(line)) is not None:
            self._begin_thread(match)
            return THREADS
        if (match := _NAME.fullmatch(line)) is not None:
            self._names[int(match["index"])] = match["name"]
            self._open = None
            return THREADS
        if (match := _STATE.fullmatch(line)) is not None:
            lines: list[str] = []
            self._states[int(match["index"])] = (match["state"], lines)
            self._open = lines
            return STATE
        if (match := _STREAM.fullmatch(line)) is not None:
            self._open = self._streams.setdefault(int(match["index"]), [])
            return STATE
        return None

    def begin_exception(self) -> None:
        """Begin the section *Last Exception Backtrace*."""
        self._exception = self._open = _Stack(self._frames, Adjustment.RETURN)

    def add(self, line: str) -> bool:
        """Read a line of the open section; return False if none is open."""
        if self._open is None:
            return False
        if isinstance(self._open, list):
            self._open.append(line)
        else:
            self._open.read(line)
        return True

    def end(self) -> None:
        """Read an empty line."""
        self._open = None

    def fault(self, label: str, value: str) -> bool:
        """Read a label below the registers; return whether it was understood."""
        parsed = read_fault(label, value) if self._states and not self._is_odd_fault else None
        if parsed is None or label in self._faults:
            # Once one stays a label, the following ones do too, which preserves their order.
            self._is_odd_fault = self._is_odd_fault or bool(self._faults)
            return False
        self._faults[label] = parsed
        return True

    def _begin_thread(self, match: re.Match[str]) -> None:
        number = int(match["index"])
        own = self._names.pop(number, None)
        name, queue = _name_and_queue(match["name"] or own or "")
        if number in self._threads:
            self._warnings.append(f"two threads have the number {number}")
            number = self._free
        self._free = max(self._free, number + 1)
        details: dict[str, JsonValue] = {}
        if match["word"] not in (None, _CRASHED):
            details[HEADING] = match["word"].strip()
        if own is not None and not own.strip():
            details[NAME_LINE] = own
        self._threads[number] = ReportedThread(
            index=number,
            name=name,
            queue=queue,
            crashed=match["word"] == _CRASHED,
            details=details,
        )
        self._open = self._stacks[number] = _Stack(self._frames, Adjustment.EXACT)

    def last_exception(self) -> LanguageException | None:
        """Return that section's exception: frames, or bare addresses in brackets."""
        stack = self._exception
        if stack is None:
            return None
        self._warnings += stack.warnings("last exception")
        if not stack.frames and len(stack.other) == 1:
            only = stack.other[0]
            text = str(only[1]).strip() if isinstance(only, list) else ""
            bare = _ADDRESSES.fullmatch(text)
            if bare is not None:
                words = bare["addresses"].split()
                frames = tuple(self._frames.at(int(word[:_ADDRESS_LENGTH], 16)) for word in words)
                return LanguageException(frames=frames, details={"addresses": text})
        return LanguageException(frames=tuple(stack.frames), details=stack.details())

    def threads(self, crashed: int | None) -> tuple[ReportedThread, ...]:
        """Return all threads; ``crashed`` is the number in the header."""
        if any(thread.crashed for thread in self._threads.values()):
            crashed = None
        return tuple(self._completed(thread, crashed) for thread in self._threads.values())

    def _completed(self, thread: ReportedThread, crashed: int | None) -> ReportedThread:
        stack = self._stacks[thread.index]
        self._warnings += stack.warnings(f"thread {thread.index}")
        details = {**thread.details, **stack.details()}
        stream = self._streams.pop(thread.index, None)
        if stream is not None:
            state = read_stream(stream)
            details[KEY if state is not None else "instruction stream"] = (
                [*stream] if state is None else state
            )
        return replace(
            thread,
            crashed=thread.crashed or thread.index == crashed,
            registers=self._registers(thread.index),
            frames=tuple(stack.frames),
            details=details,
        )

    def _registers(self, index: int) -> ReportedRegisters | None:
        heading_and_lines = self._states.pop(index, None)
        if heading_and_lines is None:
            return None
        state = read_state(*heading_and_lines)
        faults = self._faults
        self._faults = {}
        trap = next((text for _, text in faults.values() if text is not None), None)
        more = [
            register._replace(description=trap) if register.name == "trap" else register
            for register, _ in faults.values()
        ]
        return replace(state, registers=(*state.registers, *more))

    def leftovers(self) -> Iterator[tuple[str, str, str]]:
        """Yield text about threads that do not exist: the part, a label, and its value.

        Call last.
        """
        for index, name in self._names.items():
            if name.strip():
                yield THREADS, f"Thread {index} name", name.strip()
        for index, (state, lines) in self._states.items():
            yield STATE, f"Thread {index} crashed with {state}", "\n".join(["", *lines])
        for index, lines in self._streams.items():
            yield STATE, f"Thread {index} instruction stream", "\n".join(["", *lines])


def _name_and_queue(text: str) -> tuple[str | None, str | None]:
    before, mark, queue = text.partition(_QUEUE)
    name = before.strip()
    return name or None, queue.strip() if mark else None
