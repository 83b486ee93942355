"""The block of one process: its labels, the trees of its threads, its images."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.model.symbol import SourceLocation
from machtrace.reports.crash.header import Header
from machtrace.reports.crash.lines import read_image
from machtrace.reports.images import ListedImages, named_by_path
from machtrace.reports.lines_x import SpunFrame, spun_frame

_THREAD = re.compile(r"  Thread 0x(?P<id>[0-9a-fA-F]{1,16})(?P<rest>(?: {2,}.*)?)")
_QUEUE = re.compile(r'DispatchQueue "(?P<label>.*?)"(?:\((?P<serial>[0-9]+)\))?')
_NAME = re.compile(r'Thread name "(?P<name>.*?)"')
_SAMPLES = re.compile(r"(?P<count>[0-9]{1,12}) samples?(?: \((?P<range>[^()]*)\))?")
_UNIQUE = re.compile(r" \[unique pid (?P<pid>[0-9]{1,19})\]$")
_IMAGES = "Binary Images:"


class ProcessBlock:
    """Takes the lines of one process."""

    def __init__(self) -> None:
        self._header = Header()
        self._unique_pid: int | None = None
        self._images: list[ReportedImage] = []
        self._in_images = False
        self._trees: list[_Tree] = []
        self._other: list[JsonValue] = []

    def begin(self, name: str) -> None:
        """The first line, from behind its label."""
        match = _UNIQUE.search(name)
        if match is not None:
            self._unique_pid = int(match["pid"])
            name = name[: match.start()]
        self._header.read(f"Process: {name}")

    def read(self, line: str) -> None:
        """A further line, of whatever sort."""
        if line.startswith(_IMAGES) or line.strip() == _IMAGES:
            self._in_images = True
        elif self._in_images and (image := _image(line)) is not None:
            self._images.append(image)
        elif (match := _THREAD.fullmatch(line)) is not None:
            self._trees.append(_Tree(match))
        elif (frame := spun_frame(line)) is not None:
            if not self._trees:
                self._trees.append(_Tree(None))
            self._trees[-1].add(frame)
        elif line[:1].strip():
            self._header.read(line)
        elif line.strip():
            (self._trees[-1].other if self._trees else self._other).append(line.strip())

    def task(self) -> ReportedTask:
        """The process and all of it."""
        process = self._header.process()
        details = self._header.details()
        if self._other:
            details["lines"] = self._other
        if self._unique_pid is not None:
            details["unique pid"] = self._unique_pid
        arch = details.pop("Architecture", None)
        images = ListedImages(self._images)
        trees = tuple(tree.made(images) for tree in self._trees)
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
    found = read_image(stripped.removeprefix("*").lstrip())
    if found is None:
        return None
    if stripped.startswith("*"):
        found = replace(found, details={**found.details, "kernel": True})
    return named_by_path(found)


class _Tree:
    """A thread's tree, or a process' whose threads are not told apart."""

    def __init__(self, heading: re.Match[str] | None) -> None:
        self._heading = heading
        self._frames: list[SpunFrame] = []
        self.other: list[JsonValue] = []

    def add(self, frame: SpunFrame) -> None:
        self._frames.append(frame)

    def made(self, images: ListedImages) -> SampledTree:
        open_: list[int] = []
        nodes: list[SampledNode] = []
        callers: set[int] = set()
        """What called something: not what only a note on the state follows."""
        for frame in self._frames:
            del open_[frame.depth :]
            parent = open_[-1] if open_ else None
            if parent is not None and not frame.is_note:
                callers.add(parent)
            open_.append(len(nodes))
            nodes.append(SampledNode(parent, frame.samples, _frame(frame, images)))
        nodes = [
            node
            if index in callers
            else node._replace(frame=node.frame._replace(adjustment=Adjustment.EXACT))
            for index, node in enumerate(nodes)
        ]
        return self._described(tuple(nodes))

    def _described(self, nodes: tuple[SampledNode, ...]) -> SampledTree:
        details: dict[str, JsonValue] = {"lines": self.other} if self.other else {}
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


def _frame(frame: SpunFrame, images: ListedImages) -> ReportedFrame:
    index = None if frame.image is None else images.find(frame.image, frame.address)
    offset = frame.image_offset
    if offset is None and index is not None and frame.address is not None:
        base = images.base(index)
        if base is not None and frame.address >= base:
            offset = frame.address - base
    elif (
        offset is not None
        and index is not None
        and frame.address is not None
        and offset <= frame.address
        and images.base(index) is None
    ):
        images.set_base(index, Avma(frame.address - offset))
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
