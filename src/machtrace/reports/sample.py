"""A sample as one report, a tree a thread."""

from __future__ import annotations

import re
from dataclasses import replace

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment, ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.reports.crash.header import Header
from machtrace.reports.crash.lines import read_image
from machtrace.reports.images import ListedImages, named_by_path
from machtrace.reports.lines import (
    CountedLine,
    counted_line,
    graph_frame,
    thread_heading,
)
from machtrace.reports.source import ReportSource

_ANALYSIS = re.compile(r"^(?:Analysis of sampling |Sampling process )", re.MULTILINE)
_PROCESS = re.compile(r"^((?:Process|Parent Process):[ \t]+\S.{0,400}) ([0-9]{1,10})$")
"""As version 6 has it, without brackets around the number."""
_GRAPH = "Call graph:"
_IMAGES = "Binary Images:"
_LOOKED_AT = 1 << 16


def recognises(source: ReportSource) -> bool:
    """Whether it says that it is an analysis, or has a call graph with threads."""
    head = source.text[:_LOOKED_AT]
    if _ANALYSIS.search(head) is not None and f"\n{_GRAPH}" in source.text:
        return True
    _, graph, rest = f"\n{head}".partition(f"\n{_GRAPH}\n")
    return bool(graph) and " Thread_" in rest[:400]


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it."""
    lines = source.text.split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith(_GRAPH)), len(lines))
    images, sections, end = _sections(lines, start)
    graph = _Graph(images)
    for line in lines[start + 1 : end]:
        counted = counted_line(line)
        if counted is not None:
            graph.add(counted)
        elif line.strip():
            graph.other.append(line)
    return (_report(lines[:start], graph, sections),)


def _report(head: list[str], graph: _Graph, sections: dict[str, JsonValue]) -> Report:
    header = Header()
    for line in head:
        if line.strip() != "----":
            header.read(_PROCESS.sub(r"\1 [\2]", line))
    report = Report(
        kind=ReportKind.SAMPLE,
        incident=header.incident(),
        process=header.process(),
        system=header.system(),
        trees=graph.trees(),
        images=graph.images(),
    )
    details = {**header.details(), **sections}
    if graph.other:
        details["call graph"] = [*graph.other]
    return replace(report, details=details)


def _sections(
    lines: list[str], start: int
) -> tuple[list[ReportedImage], dict[str, JsonValue], int]:
    """The images, the tables after the graph by their titles, and where the graph ends."""
    images: list[ReportedImage] = []
    sections: dict[str, list[JsonValue]] = {}
    title = ""
    end = len(lines)
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if line and not line[0].isspace() and line.rstrip().endswith((":", ")")):
            end = min(end, index)
            title = line.rstrip()
            if not title.startswith(_IMAGES):
                sections.setdefault(title, [])
        elif title.startswith(_IMAGES) and (image := read_image(line)) is not None:
            images.append(named_by_path(image))
        elif title and line.strip():
            sections.setdefault(title, []).append(line)
    return images, {title: rows for title, rows in sections.items() if rows}, end


class _Graph:
    """Puts trees together from their lines."""

    def __init__(self, images: list[ReportedImage]) -> None:
        self.other: list[JsonValue] = []
        self._images = ListedImages(images)
        self._trees: list[SampledTree] = []
        self._nodes: list[SampledNode] = []
        self._heading: CountedLine | None = None
        self._open: list[int] = []
        """The nodes that the next one may be called by, a level each."""

    def add(self, line: CountedLine) -> None:
        if line.depth == 0 or self._heading is None:
            self._end()
            self._heading = line
            return
        del self._open[line.depth - 1 :]
        parent = self._open[-1] if self._open else None
        self._open.append(len(self._nodes))
        self._nodes.append(SampledNode(parent, line.samples, self._frame(line.text)))

    def _frame(self, text: str) -> ReportedFrame:
        found = graph_frame(text)
        index = None if found.image is None else self._images.find(found.image, found.address)
        base = None if index is None else self._images.base(index)
        if base is None and found.base is not None:
            base = Avma(found.base)
            if index is not None:
                self._images.set_base(index, base)
        offset = None
        if base is not None and found.address is not None and found.address >= base:
            offset = ImageOffset(found.address - base)
        return ReportedFrame(
            None if found.address is None else Avma(found.address),
            index,
            offset,
            Adjustment.RETURN,
            found.symbol,
            found.location,
            found.is_inline,
            found.details,
        )

    def _end(self) -> None:
        if self._heading is not None:
            heading = thread_heading(self._heading.text)
            callers = {node.parent for node in self._nodes}
            nodes = tuple(
                node
                if index in callers
                else node._replace(frame=node.frame._replace(adjustment=Adjustment.EXACT))
                for index, node in enumerate(self._nodes)
            )
            self._trees.append(
                SampledTree(
                    nodes=nodes,
                    thread=heading.id,
                    name=heading.name,
                    queue=heading.queue,
                    count=self._heading.samples,
                    details=heading.details,
                )
            )
        self._nodes, self._open = [], []

    def trees(self) -> tuple[SampledTree, ...]:
        self._end()
        self._heading = None
        return tuple(self._trees)

    def images(self) -> tuple[ReportedImage, ...]:
        return self._images.all()
