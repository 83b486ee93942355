"""Lines of machtrace's text of stacks: headings of threads, frames, causes."""

from __future__ import annotations

import re
from dataclasses import field
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.cause import Cause
from machtrace.model.incident.facts import LockOwner, WaitsFor
from machtrace.model.report import JsonValue
from machtrace.model.snapshot import GilState, ThreadId, ThreadInfo
from machtrace.model.stack import Dispute, FrameTrust, Gap, Stop, StopReason
from machtrace.model.symbol import Certainty, FrameStatus, PythonFrame, SourceLocation, others_lines
from machtrace.reports.stacks.captures import (
    DISPUTES,
    GAP,
    KIND,
    PYTHON,
    STATUS,
    STOP,
    TRUST,
    written,
)

MAX_LINE_LENGTH = 1 << 16
_THREAD = re.compile(r"Thread (?P<index>[0-9]{1,9})(?=  |\Z)")
_STOPPED = re.compile(r"  stopped for (?P<time>[0-9]{1,12}\.[0-9]) (?P<unit>[µm])s\Z")
_ID = re.compile(r"  id (?P<id>[0-9]{1,20})(?=  |\Z)")
_CRASHED, _QUEUE, _WAITS = "  crashed", "  queue ", "  waits for "
_WAIT = re.compile(
    r"(?P<what>\S.*?)(?: 0x(?P<address>[0-9a-f]{1,16}))?, (?:held by )?"
    r"(?:thread (?P<thread>[0-9]{1,18}))?(?:(?<=[0-9]) of )?(?:process (?P<pid>[0-9]{1,18}))?"
    r"(?P<guess> \(a guess: owner not recorded\))?"
)
_NUMBER = re.compile(r" {0,9}[0-9]{1,9}  (?=\S)")
_ADDRESS = re.compile(r"  (?P<address>0x(?:[0-9a-f]{16}|[0-9a-f]{8}))  (?=\S)")
_OFFSET = re.compile(r"\? \(image \+ (?P<offset>0x[0-9a-f]{1,16})\)")
_INTO = re.compile(r"(?P<name>.*\S) \+ (?P<offset>-?[0-9]{1,19})")
_UNNAMED = re.compile(r"unnamed_(?P<offset>[0-9a-f]{1,16})")
_DISPUTE = re.compile(
    r"but (?P<method>[a-z -]{1,40}) finds (?:(?P<address>0x[0-9a-f]{1,16})|no caller)"
)
_CAUSE = re.compile(
    r"(?P<first>(?:SIG|EXC_|signal |exception )[A-Za-z0-9_+-]*)"
    r"(?: \((?P<second>[A-Z0-9_]{1,40})\))?"
    r"(?: at (?P<address>0x[0-9a-f]{1,16}))?(?:: (?P<reasons>.*))?"
)
_SENT = re.compile(r"sent by process (?P<pid>[0-9]{1,10})(?: of user (?P<user>[0-9]{1,10}))?")
_TRUSTS = {trust.label: trust for trust in FrameTrust if trust is not FrameTrust.CONTEXT}
_CERTAINTIES = {one.value: one for one in Certainty}
_INLINED, INTERRUPTED = "inlined", "interrupted"
_UNITS = {"µ": 1_000, "m": 1_000_000}
CERTAINTY = "certainty"
"""The detail of a row: of its name; beside :data:`INTERRUPTED`, read once the frame is built."""


class Heading(NamedTuple):
    """A parsed heading of a thread."""

    number: int
    id: int | None
    name: str | None
    queue: str | None
    crashed: bool = False
    stopped_for_ns: int | None = None
    gil: GilState | None = None
    waits_for: WaitsFor | None = None


def read_heading(line: str) -> Heading | None:
    """Parse a thread's heading, from its end; return None if it is not one."""
    match = _THREAD.match(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    rest, time = line[match.end() :], None
    if (stopped := _STOPPED.search(rest)) is not None:
        rest = rest[: stopped.start()]
        time = round(float(stopped["time"]) * _UNITS[stopped["unit"]])
    rest, waits_for = _wait(rest)
    gil = next((state for state in GilState if rest.endswith(f"  {state}")), None)
    rest = rest if gil is None else rest.removesuffix(f"  {gil}")
    crashed = rest.endswith(_CRASHED)
    rest = rest.removesuffix(_CRASHED)
    name, number, queue = rest, None, None
    last = list(_ID.finditer(rest))[-1:]  # a name may contain the same words
    if last:
        name, number = rest[: last[0].start()], int(last[0]["id"])
        queue = rest[last[0].end() :].removeprefix(_QUEUE) or None
    elif _QUEUE in rest:
        name, _, queue = rest.partition(_QUEUE)
    name = name.removeprefix("  ")
    if name and not (name.startswith("“") and name.endswith("”")):
        return None
    return Heading(
        int(match["index"]), number, name[1:-1] or None, queue, crashed, time, gil, waits_for
    )


def _wait(rest: str) -> tuple[str, WaitsFor | None]:
    """Split a heading into the part before what the thread waits for, and that."""
    start = rest.rfind(_WAITS)
    match = _WAIT.fullmatch(rest, start + len(_WAITS)) if start >= 0 else None
    if match is None or not (match["thread"] or match["pid"]):
        return rest, None
    pid, thread = (None if match[name] is None else int(match[name]) for name in ("pid", "thread"))
    address = None if match["address"] is None else Avma(int(match["address"], 16))
    owner = LockOwner(pid, thread, recorded=match["guess"] is None)
    return rest[:start], WaitsFor(match["what"], address, owner)


class StackLine(NamedTuple):
    """A parsed line of a frame with an address."""

    image: str
    address: int
    rest: str


def read_stack_line(text: str) -> StackLine | None:
    """Parse a frame's line; return None if it is not one."""
    number = _NUMBER.match(text) if len(text) <= MAX_LINE_LENGTH else None
    match = None if number is None else _ADDRESS.search(text, number.end())
    if number is None or match is None:
        return None
    image = text[number.end() : match.start()].rstrip()
    return StackLine(image, int(match["address"], 16), text[match.end() :])


class FrameRow(NamedTuple):
    """A parsed line of a frame, its image not yet located."""

    image: str
    address: int
    name: str
    offset: int | None
    """From the function's start."""
    start: int | None
    """The image's load address, if the line gives it."""
    function: int | None
    """The start of a function without a name, from the image's."""
    location: SourceLocation | None
    is_inline: bool
    details: dict[str, JsonValue]


def frame_row(line: StackLine) -> FrameRow:
    """Parse the function, the location and the note of a frame's line."""
    text, note = line.rest, ""
    if text.endswith("]"):
        before, bracket, inside = text[:-1].rpartition("  [")
        if bracket and _note(inside) is not None:
            text, note = before, inside
    name, location = split_location(text)
    details = (_note(note) or {}) if note else {}
    address, is_inline = line.address, note == _INLINED
    offset = start = function = None
    if is_inline:
        name = "" if name == "?" else name
    elif (image_offset := _OFFSET.fullmatch(name)) is not None:
        start, name = address - int(image_offset["offset"], 16), ""
    elif (into := _INTO.fullmatch(name)) is not None:
        name, offset = into["name"], int(into["offset"])
        if (unnamed := _UNNAMED.fullmatch(name)) is not None:
            function = int(unnamed["offset"], 16)
            start, name = address - offset - function, ""
    elif name == "?":
        name = ""
    image = "" if line.image == "???" else line.image
    return FrameRow(image, address, name, offset, start, function, location, is_inline, details)


def split_location(text: str) -> tuple[str, SourceLocation | None]:
    """Split a function and its location."""
    name, at, place = text.rpartition("  at ")
    if not at or not place or "  " in place or _INTO.fullmatch(place) is not None:
        return text, None
    path, colon, line = place.rpartition(":")
    if colon and path and line.isdecimal() and len(line) < 10:  # noqa: PLR2004 - a line's number
        return name, SourceLocation(path, int(line))
    return name, SourceLocation(place)


def _note(text: str) -> dict[str, JsonValue] | None:
    """Return the details of a note; None if it is none."""
    if text == _INLINED:
        return {}
    details: dict[str, JsonValue] = {}
    disputes: list[Dispute] = []
    parts = text.split(", ")
    for number, part in enumerate(parts):
        dispute = _DISPUTE.fullmatch(part)
        if number == 0 and part in _TRUSTS:
            details[TRUST] = _TRUSTS[part].value
            if _TRUSTS[part] is FrameTrust.ASYNC:
                details[KIND] = "async-resume"
        elif part == INTERRUPTED and number == 1 and TRUST in details:
            details[INTERRUPTED] = True
        elif dispute is not None and dispute["method"] in _TRUSTS:
            address = dispute["address"]
            caller = None if address is None else Avma(int(address, 16))
            disputes.append(Dispute(_TRUSTS[dispute["method"]], caller))
        elif number == len(parts) - 1 and part in _CERTAINTIES:
            details[CERTAINTY] = part
        else:
            return None
    if disputes:
        details[DISPUTES] = written(tuple(disputes), tuple[Dispute, ...])
    return details


_RANGES = r"[0-9]{1,20}(?:–[0-9]{1,20})?(?:, [0-9]{1,20}(?:–[0-9]{1,20})?){0,40}"
_OTHERS = re.compile(
    rf"  and [0-9,]{{1,12}} threads?: (?P<indices>{_RANGES})  id (?P<ids>{_RANGES})"
    rf"(?:  “(?P<name>.*)”(?: (?P<numbers>{_RANGES}))?)?(?:  queue (?P<queue>\S.*))?"
)
_MAX_OTHERS = 1 << 18
"""Threads that a line may list."""


def read_others(line: str) -> list[ThreadInfo]:
    """Return the threads that a line lists which share a stack; none if it is no such line."""
    match = _OTHERS.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return []
    indices, ids = _numbers(match["indices"]), _numbers(match["ids"])
    numbers: list[int] = _numbers(match["numbers"] or "")
    if len(indices) != len(ids) or len(numbers) not in (0, len(ids)):
        return []
    threads = [
        ThreadInfo(
            id=ThreadId(number),
            index=index,
            name=match["name"] if not numbers else f"{match['name']}{numbers[at]}",
            queue=match["queue"],
        )
        for at, (index, number) in enumerate(zip(indices, ids, strict=True))
    ]
    return threads if [*others_lines(threads)] == [line] else []


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(", ") if text else ():
        first, _, last = part.partition("–")
        end = int(last or first) + 1
        if not 0 < end - int(first) <= _MAX_OTHERS - len(numbers):
            return []
        numbers += range(int(first), end)
    return numbers


def read_cause(text: str) -> Cause | None:
    """Return the cause that a line states; None if it is not one."""
    match = _CAUSE.fullmatch(text)
    if match is None:
        return None
    is_mach = match["first"].startswith(("EXC_", "exception "))
    reasons = (match["reasons"] or "").split(", ") if match["reasons"] else []
    sent = _SENT.fullmatch(reasons[-1]) if reasons else None
    if sent is not None:
        reasons.pop()
    code = match["second"]
    if is_mach:
        code = reasons.pop(0) if reasons and reasons[0].isupper() else None
    cause = Cause(
        exception=match["first"] if is_mach else None,
        signal=match["second"] if is_mach else match["first"],
        code_name=code,
        address=None if match["address"] is None else Avma(int(match["address"], 16)),
        meaning=", ".join(reasons[:1]),
        region=", ".join(reasons[1:]),
        sender=None if sent is None else int(sent["pid"]),
        sender_user=None if sent is None or sent["user"] is None else int(sent["user"]),
    )
    return cause if str(cause) == text else None


_PYTHON_ROW = re.compile(r" {0,9}(?P<number>[0-9]{1,9})  Python {4,80}(?P<rest>\S.*)")
_SAME_FUNCTION = re.compile(r"the same function (?P<count>[0-9,]{1,12}) more times")
NATIVE_THREADS = re.compile(r"[0-9,]{1,12} threads? without Python functions: .*")


class PythonLine(NamedTuple):
    """A parsed line of a Python function."""

    number: int
    """Its frame's."""
    function: PythonFrame | None
    """None if the line repeats the function above."""
    repeats: int


def read_python_line(line: str) -> PythonLine | None:
    """Parse the line of a Python function; return None if it is not one."""
    match = _PYTHON_ROW.fullmatch(line)
    if match is None:
        return None
    same = _SAME_FUNCTION.fullmatch(match["rest"])
    if same is not None:
        return PythonLine(int(match["number"]), None, int(same["count"].replace(",", "") or "0"))
    name, location = split_location(match["rest"])
    function = PythonFrame(name, location or SourceLocation(""))
    return PythonLine(int(match["number"]), function, 1)


def python_row(function: PythonFrame) -> FrameRow:
    """Return the row of a Python function without its interpreter's frame."""
    return FrameRow(
        image="",
        address=0,
        name=function.name,
        offset=None,
        start=None,
        function=None,
        location=function.location,
        is_inline=False,
        details={
            STATUS: FrameStatus.PYTHON.value,
            PYTHON: written((function,), tuple[PythonFrame, ...]),
        },
    )


@dataclass(slots=True)
class Chain:
    """Frames under construction."""

    rows: list[FrameRow] = field(default_factory=list)
    stop: Stop = Stop(StopReason.ROOT)
    gap: int | None = None
    after: int = 0
    """Retained frames before the gap."""
    python: list[PythonFrame] = field(default_factory=list)
    """The Python functions above the frame that runs them, or of a view without native frames."""
    python_number: int = 0
    """The number of their frame."""

    def add_python(self, line: PythonLine) -> bool:
        """Add a Python function, or the last one again."""
        if line.number != self.python_number:
            self.end_python()
        self.python_number = line.number
        if line.function is None:
            self.python += self.python[-1:] * line.repeats
        else:
            self.python.append(line.function)
        return bool(self.python)

    def end_python(self) -> None:
        """Make frames of the Python functions that no native frame runs."""
        self.rows += map(python_row, self.python)
        self.python = []

    def details(self) -> dict[str, JsonValue]:
        """Return the details of a thread that the chain has."""
        details: dict[str, JsonValue] = {STOP: written(self.stop, Stop)}
        if self.gap:
            details[GAP] = written(Gap(self.after, self.gap), Gap)
        return details

    def repeat(self, count: int) -> bool:
        """Add the last frame ``count`` times, with what is inlined into it."""
        rows = self.rows
        begin = len(rows) - 1
        while begin > 0 and rows[begin - 1].is_inline:
            begin -= 1
        if not rows:
            return False
        self.rows += rows[begin:] * count
        return True
