"""Texts of spindump, and the system's reports of exhausted resources.

Hangs, spins, CPU usage, wakeups and disk writes: labels, the heaviest stack, and then a block for
each process with its threads' trees and its images. Source: texts of macOS 10.9 to 26 and of
iOS 11 to 26, report versions 18 to 72.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSymbol,
    ReportedTask,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.crash.header import Header
from machtrace.reports.crash.lines import read_image
from machtrace.reports.images import ListedImages, named_by_path
from machtrace.reports.log_lines import LINES
from machtrace.reports.sample import exact_ends
from machtrace.reports.source import ReportSource

MAX_LINE_LENGTH = 16384
_COUNTED = re.compile(r"(?P<prefix>[ *]{0,15000})(?P<count>[0-9]{1,12})[ ]{1,12}(?P<rest>\S.*)")
_ADDRESS = re.compile(r"\[0x(?P<address>[0-9a-fA-F]{1,16})\]")
_INTO = re.compile(r"(?P<name>.*\S) \+ (?P<offset>[0-9]{1,19})")
_SOURCE = re.compile(
    r"(?P<file>[^()]*?)(?::(?P<line>[0-9]{1,9})(?:,(?P<column>[0-9]{1,9}))?)? in (?P<image>.*)"
)
_MARGIN, _STEP = 2, 2


class SpindumpFrame(NamedTuple):
    """A parsed line of a tree."""

    depth: int
    """0 for a root."""
    samples: int
    name: str | None
    offset: int | None
    """From the function's start."""
    image: str | None
    image_offset: int | None
    file: str | None
    line: int | None
    column: int | None
    address: int | None
    details: dict[str, JsonValue]

    @property
    def is_note(self) -> bool:
        """Whether it is the samples' state, such as ``<Kernel mode>``, rather than a frame."""
        return self.address is None and self.image is None and (self.name or "").startswith("<")


def parse_frame_line(line: str) -> SpindumpFrame | None:
    """Parse a line, or return None."""
    match = _COUNTED.fullmatch(line.rstrip()) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    prefix, text = match["prefix"], match["rest"]
    details: dict[str, JsonValue] = {}
    if prefix.endswith("*"):
        details["kernel"] = True
    address = None
    places = list(_ADDRESS.finditer(text))
    if places:
        place = places[-1]
        address = int(place["address"], 16)
        if after := text[place.end() :].strip():
            details["samples"] = after
        text = text[: place.start()].rstrip()
    function, bracket, where = _before_last_bracket(text)
    image = file = image_offset = None
    line_number = column = None
    if bracket and where.endswith(")") and function:
        image, image_offset, file, line_number, column = _where(where[:-1])
        text = function
    name, offset = _into(text.rstrip())
    return SpindumpFrame(
        depth=max(0, len(prefix) - _MARGIN) // _STEP,
        samples=int(match["count"]),
        name=None if name == "???" else name,
        offset=offset,
        image=image,
        image_offset=image_offset,
        file=file,
        line=line_number,
        column=column,
        address=address,
        details=details,
    )


def _before_last_bracket(text: str) -> tuple[str, str, str]:
    """Split at the bracket pair that closes last: before, inside, after.

    Images' names can have brackets of their own.
    """
    end = len(text)
    closed = 0
    while (start := text.rfind("(", 0, end)) >= 0:
        closed += text.count(")", start, end) - 1
        if closed <= 0:
            return (
                (text[: start - 1], " (", text[start + 1 :])
                if text[start - 1 : start] == " "
                else text.rpartition(" (")
            )
        end = start
    return text.rpartition(" (")


def _where(text: str) -> tuple[str, int | None, str | None, int | None, int | None]:
    """Parse image, offset in it, file, line and column in brackets."""
    source = _SOURCE.fullmatch(text)
    image, offset = _into(text if source is None else source["image"])
    if source is None:
        return image, offset, None, None, None
    return image, offset, source["file"], _number(source["line"]), _number(source["column"])


def _into(text: str) -> tuple[str, int | None]:
    match = _INTO.fullmatch(text)
    return (text, None) if match is None else (match["name"], int(match["offset"]))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text) or None


_THREAD = re.compile(r"  Thread 0x(?P<id>[0-9a-fA-F]{1,16})(?P<rest>(?: {2,}.*)?)")
_QUEUE = re.compile(r'DispatchQueue "(?P<label>.*?)"(?:\((?P<serial>[0-9]+)\))?')
_NAME = re.compile(r'Thread name "(?P<name>.*?)"')
_SAMPLES = re.compile(r"(?P<count>[0-9]{1,12}) samples?(?: \((?P<range>[^()]*)\))?")
_UNIQUE = re.compile(r" \[unique pid (?P<pid>[0-9]{1,19})\]$")
_IMAGES = "Binary Images:"


class ProcessBlock:
    """Collects the lines of one process."""

    def __init__(self) -> None:
        self._header = Header()
        self._unique_pid: int | None = None
        self._images: list[ReportedImage] = []
        self._in_images = False
        self._trees: list[_Tree] = []
        self._other: list[JsonValue] = []

    def begin(self, name: str) -> None:
        """Read the first line, after its label."""
        match = _UNIQUE.search(name)
        if match is not None:
            self._unique_pid = int(match["pid"])
            name = name[: match.start()]
        self._header.read(f"Process: {name}")

    def read(self, line: str) -> None:
        """Read a further line of any kind."""
        if line.startswith(_IMAGES) or line.strip() == _IMAGES:
            self._in_images = True
        elif self._in_images and (image := _image(line)) is not None:
            self._images.append(image)
        elif (match := _THREAD.fullmatch(line)) is not None:
            self._trees.append(_Tree(match))
        elif (frame := parse_frame_line(line)) is not None:
            if not self._trees:
                self._trees.append(_Tree(None))
            self._trees[-1].add(frame)
        elif line[:1].strip():
            self._header.read(line)
        elif line.strip():
            (self._trees[-1].other if self._trees else self._other).append(line.strip())

    def task(self) -> ReportedTask:
        """Return the process with its stacks."""
        process = self._header.process()
        details = self._header.details()
        if self._other:
            details[LINES] = self._other
        if self._unique_pid is not None:
            details["unique pid"] = self._unique_pid
        arch = details.pop("Architecture", None)
        images = ListedImages(self._images)
        trees = tuple(tree.build(images) for tree in self._trees)
        return ReportedTask(
            process=replace(
                process,
                code_type=arch if isinstance(arch, str) else process.code_type,
                details=details,
            ),
            trees=trees,
            images=images.all(),
        )


def _image(line: str) -> ReportedImage | None:
    stripped = line.lstrip(" ")
    image = read_image(stripped.removeprefix("*").lstrip())
    if image is None:
        return None
    if stripped.startswith("*"):
        image = replace(image, details={**image.details, "kernel": True})
    return named_by_path(image)


class _Tree:
    """A thread's tree, or a process' if its threads are not separate."""

    def __init__(self, heading: re.Match[str] | None) -> None:
        self._heading = heading
        self._frames: list[SpindumpFrame] = []
        self.other: list[JsonValue] = []

    def add(self, frame: SpindumpFrame) -> None:
        self._frames.append(frame)

    def build(self, images: ListedImages) -> SampledTree:
        open_: list[int] = []
        nodes: list[SampledNode] = []
        callers: set[int] = set()
        """Nodes with callees, other than notes on the state."""
        for frame in self._frames:
            del open_[frame.depth :]
            parent = open_[-1] if open_ else None
            if parent is not None and not frame.is_note:
                callers.add(parent)
            open_.append(len(nodes))
            nodes.append(SampledNode(parent, frame.samples, _frame(frame, images)))
        return self._described(exact_ends(nodes, callers))

    def _described(self, nodes: tuple[SampledNode, ...]) -> SampledTree:
        details: dict[str, JsonValue] = {LINES: self.other} if self.other else {}
        if self._heading is None:
            return SampledTree(nodes=nodes, details=details)
        rest = self._heading["rest"]
        queue, name, samples = (one.search(rest) for one in (_QUEUE, _NAME, _SAMPLES))
        if rest.strip():
            details["heading"] = rest.strip()
        return SampledTree(
            nodes=nodes,
            thread=int(self._heading["id"], 16),
            name=None if name is None else name["name"],
            queue=None if queue is None else queue["label"],
            count=None if samples is None else int(samples["count"]),
            details=details,
        )


def _frame(frame: SpindumpFrame, images: ListedImages) -> ReportedFrame:
    index = None if frame.image is None else images.find(frame.image, frame.address)
    address, offset = frame.address, frame.image_offset
    if offset is None:
        offset = images.offset(index, address)
    elif (
        index is not None
        and address is not None
        and offset <= address
        and images.base(index) is None
    ):
        images.set_base(index, Avma(address - offset))
    symbol = None if frame.name is None else ReportedSymbol(frame.name, frame.offset)
    location = None
    if frame.file is not None:
        location = SourceLocation(frame.file, frame.line, frame.column)
    return ReportedFrame(
        None if frame.address is None else Avma(frame.address),
        index,
        None if offset is None else ImageOffset(offset),
        Adjustment.RETURN,
        symbol,
        location,
        details=frame.details,
    )


_BLOCK = re.compile(r"(?:Process|Powerstats for):[ \t]+(?P<name>\S.*)")
_MARK = re.compile(r"^(?:Event|Data Source|Steps):[ \t]", re.MULTILINE)
_SAMPLED_THREAD = re.compile(
    r"^  Thread 0x[0-9a-fA-F]{1,16} .{0,1000}[0-9] samples? \(", re.MULTILINE
)
_HEAVIEST = "Heaviest stack for "
_EXAMINED = 1 << 16
_BUILD = "Build "


def recognises(source: ReportSource) -> bool:
    """Return whether it has the labels of such a text, and blocks of processes."""
    return is_spindump(source.text)


def is_spindump(text: str) -> bool:
    """Return the same for a text that may be the body of a file."""
    head = text[:_EXAMINED]
    if _BLOCK.match(head) is not None and _SAMPLED_THREAD.search(head) is not None:
        return True  # blocks copied from one
    return _MARK.search(head) is not None and (
        "\nProcess:" in text or "\nPowerstats for:" in text or f"\n{_HEAVIEST}" in text
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    return (read_text(source.text),)


def read_text(text: str) -> Report:
    """Parse the report of a text."""
    header = Header()
    heaviest: dict[str, list[JsonValue]] = {}
    stack: list[JsonValue] | None = None
    blocks: list[ProcessBlock] = []
    for line in text.split("\n"):
        match = _BLOCK.fullmatch(line)
        if match is not None:
            blocks.append(ProcessBlock())
            blocks[-1].begin(match["name"].rstrip())
        elif blocks:
            blocks[-1].read(line)
        elif line.startswith(_HEAVIEST):
            stack = heaviest.setdefault(line.rstrip(":"), [])
        elif stack is not None and line.strip():
            stack.append(line)
        else:
            stack = None
            if line.strip("- "):
                header.read(line)
            else:
                header.read("")
    return _report(header, [block.task() for block in blocks], heaviest)


def _report(
    header: Header, tasks: list[ReportedTask], heaviest: dict[str, list[JsonValue]]
) -> Report:
    incident, process, system = header.incident(), header.process(), header.system()
    details = header.details()
    kind = details.pop("Event", None)
    name, pid = details.pop("Command", None), details.get("PID")
    if isinstance(pid, str) and pid.isdecimal() and len(pid) < 10:  # noqa: PLR2004 - a pid's digits
        del details["PID"]
        process = replace(process, pid=int(pid))
    if isinstance(name, str):
        process = replace(process, name=name)
    about = _about(tasks, process)
    if system.os_build is not None and system.os_build.startswith(_BUILD):
        system = replace(system, os_build=system.os_build.removeprefix(_BUILD))
    main = ReportedTask(process=process) if about is None else tasks[about]
    is_micro = "Microstackshots" in str(details.get("Data Source", "")) or "microstackshots" in str(
        kind
    )
    return Report(
        kind=ReportKind.MICROSTACKSHOT if is_micro else ReportKind.SPINDUMP,
        incident=replace(incident, kind=kind if isinstance(kind, str) else None),
        process=_joined(process, main.process),
        trees=main.trees,
        images=main.images,
        system=system,
        others=tuple(task for index, task in enumerate(tasks) if index != about),
        details={**details, **heaviest},
    )


def _about(tasks: list[ReportedTask], process: ReportedProcess) -> int | None:
    """Return the index of the block of the process that the leading labels describe."""
    for index, task in enumerate(tasks):
        if process.pid is not None and task.process.pid == process.pid:
            return index
    named = [index for index, task in enumerate(tasks) if task.process.name == process.name]
    if named:
        return named[0]
    return 0 if len(tasks) == 1 and process.name is None else None


def _joined(first: ReportedProcess, block: ReportedProcess) -> ReportedProcess:
    """Merge a process' labels with its block, which has more."""
    known = {
        name: getattr(block, name) if getattr(block, name) is not None else getattr(first, name)
        for name in ReportedProcess.__dataclass_fields__
        if name != "details"
    }
    return ReportedProcess(**known, details=block.details)
