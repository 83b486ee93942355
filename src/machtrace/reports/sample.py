"""The output of ``sample``: a call graph of each thread, with counts.

Source: texts of macOS' ``sample(1)``, report version 7.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import NamedTuple

from machtrace.model.address import Avma
from machtrace.model.image import shown_identifier
from machtrace.model.profile import activity_text
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.render.sample_text import with_activity, without_activity
from machtrace.reports.crash.header import Header
from machtrace.reports.crash.lines import image_end, read_image, shown
from machtrace.reports.images import LABEL, ListedImages, named_by_path
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import activity_values

MAX_LINE_LENGTH = 32768
MAIN_QUEUE = "com.apple.main-thread"

_COUNTED = re.compile(r"(?P<prefix>[ +!:|]{4,20000})(?P<count>[0-9]{1,12}) (?P<rest>\S.*)")
_THREAD = re.compile(r"Thread_(?P<id>0x[0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,16})(?![0-9A-Za-z_])")
_QUEUE = re.compile(r"[ \t]DispatchQueue(?:_(?P<id>[0-9a-zA-Z<>]{1,18}))?: ")
_KINDS = ("(serial)", "(concurrent)")
_INLINED = "[inlined]"
"""The mark on inlined calls in machtrace's own samples."""
_IN = " (in "
_WHERE = re.compile(
    r"(?:[ \t]+load address 0x(?P<base>[0-9a-fA-F]{1,16}))?"
    r"(?:[ \t]+\+[ \t]+(?P<offsets>(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,19}|\.\.\.)"
    r"(?:,(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,19}|\.\.\.))*))?"
    r"(?:[ \t]+\[(?P<addresses>0x[0-9a-fA-F]{1,16}(?:,(?:0x[0-9a-fA-F]{1,16}|\.\.\.))*)\])?"
    r"(?:[ \t]+(?P<file>\S.*))?"
)
"""The text after the image."""
_BARE = re.compile(r"\[(?P<address>0x[0-9a-fA-F]{1,16})[^\[\]]*\]")
_INTO = re.compile(r"(?P<name>.*\S) \+ (?P<offset>0|[1-9][0-9]{0,18})")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")
_NO_IMAGE = "<unknown binary>"
"""The image's placeholder for code generated at run time."""
_MAX_BRACKETS = 8
"""Maximum brackets in an image's name."""
_STEP = 2
_WORD_DIGITS = 10
_MARGIN = 4


class CountedLine(NamedTuple):
    """A line of a graph, parsed as far as all lines are alike."""

    depth: int
    """0 for a thread's heading."""
    samples: int
    text: str


def counted_line(line: str) -> CountedLine | None:
    """Parse a line's indentation and count; None if it has none."""
    match = _COUNTED.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    depth = (len(match["prefix"]) - _MARGIN) // _STEP
    return CountedLine(depth, int(match["count"]), match["rest"])


class ThreadHeading(NamedTuple):
    """A parsed thread heading."""

    id: int | None
    name: str | None
    queue: str | None
    details: dict[str, JsonValue]


def thread_heading(text: str) -> ThreadHeading:
    """Parse a thread's heading, after its count."""
    text, activity = without_activity(text)
    match = _THREAD.match(text)
    if match is None:
        return ThreadHeading(None, text, None, dict(activity))
    number, rest = match["id"], text[match.end() :]
    details: dict[str, JsonValue] = {**activity}
    queue, label = _QUEUE.search(rest), None
    if queue is not None:
        label = rest[queue.end() :].strip()
        rest = rest[: queue.start()]
        if queue["id"] is not None:
            details["DispatchQueue"] = queue["id"]
        kind = next((one for one in _KINDS if label.endswith(" " + one)), None)
        if kind is not None:
            details["kind"] = kind.strip("()")
            label = label.removesuffix(kind).rstrip()
    name = rest.strip(" \t").removeprefix(":").strip(" \t")
    identifier = int(number, 10 if number.isdecimal() else 16)
    return ThreadHeading(identifier, name or None, label, details)


class GraphFrame(NamedTuple):
    """A parsed frame line."""

    symbol: ReportedSymbol | None
    image: str | None
    base: int | None
    """The image's load address, if stated."""
    address: int | None
    location: SourceLocation | None
    details: dict[str, JsonValue]
    is_inline: bool = False


def graph_frame(text: str) -> GraphFrame:
    """Parse a frame, after its count."""
    is_inline = text.endswith("  " + _INLINED)
    function, mark, rest = text.removesuffix(_INLINED).rpartition(_IN)
    image, match = _image_and_place(rest) if mark else ("", None)
    if match is None:
        return _without_image(text)
    function = function.rstrip()
    offsets = (match["offsets"] or "").split(",")
    addresses = (match["addresses"] or "").split(",")
    details: dict[str, JsonValue] = {}
    if len(offsets) > 1:
        details["offsets"] = match["offsets"]
    if len(addresses) > 1:
        details["addresses"] = match["addresses"]
    symbol = None
    if function != "???":  # after a load address, the offset from it
        symbol = ReportedSymbol(function, None if match["base"] else _number(offsets[0]))
    location = None
    if match["file"] is not None:
        file, _, lines = match["file"].strip().rpartition(":")
        line = lines.partition(",")[0]
        is_line = bool(file) and line.isdecimal() and len(line) < _WORD_DIGITS
        location = SourceLocation(match["file"].strip())
        if is_line:
            location = SourceLocation(file, int(line) or None)
            if line != lines:
                details["lines"] = lines
    return GraphFrame(
        symbol,
        None if image == _NO_IMAGE else image,
        None if match["base"] is None else int(match["base"], 16),
        _number(addresses[0]),
        location,
        details,
        is_inline,
    )


TEXT = "text"
"""The detail of a frame, a thread or an image whose line has an unusual form: the line."""


def frame_text(frame: ReportedFrame, image: ReportedImage | None) -> str:
    """Return a frame's line, without its count."""
    line = frame.details.get(TEXT)
    if isinstance(line, str) and _is_line_of(line, frame):
        return shown(line)
    addresses = frame.details.get("addresses")
    if not isinstance(addresses, str):
        addresses = "" if frame.address is None else f"{frame.address:#x}"
    text = "???" if frame.symbol is None else shown(frame.symbol.name)
    if image is not None:
        text += f"  (in {shown(image.name) or '?'})"
        if not frame.is_inline:
            text += _offsets_text(frame, image, addresses)
    elif frame.symbol is not None and frame.symbol.offset is not None:
        text += f" + {frame.symbol.offset}"
    if addresses:
        text += f"  [{addresses}]"
    if frame.location is not None:
        lines = frame.details.get("lines", frame.location.line)
        file = shown(frame.location.path.rpartition("/")[2])
        text += f"  {file}" if lines is None else f"  {file}:{lines}"
    return f"{text}  {_INLINED}" if frame.is_inline else text


def _is_line_of(line: str, frame: ReportedFrame) -> bool:
    """Return whether ``line`` still has the frame's function and location."""
    parsed = graph_frame(line)
    return parsed.symbol == frame.symbol and parsed.location == frame.location


def _offsets_text(frame: ReportedFrame, image: ReportedImage, addresses: str) -> str:
    """Return offsets from the function's start, or from the image's if it has no name."""
    first, base = frame.address, image.load_address
    if frame.symbol is not None and frame.symbol.offset is not None:
        start, form, label = -frame.symbol.offset, "d", ""
    elif (
        frame.symbol is None and base is not None and first is not None and frame.offset is not None
    ):
        start, form, label = base - first, "#x", f"  load address {base:#x}"
    else:
        return ""
    numbers = [_number(one) for one in addresses.split(",")] if first is not None else [0]
    offsets = [
        "..." if number is None else format(number - (first or 0) - start, form)
        for number in numbers
    ]
    return f"{label} + {','.join(offsets)}"


def heading_text(tree: SampledTree) -> str:
    """Return a thread's heading, without its count."""
    line = tree.details.get(TEXT)
    if isinstance(line, str):
        return shown(line)
    return with_activity(_plain_heading(tree), activity_text(**activity_values(tree.details)))


def _plain_heading(tree: SampledTree) -> str:
    name = "" if tree.name is None else shown(tree.name)
    if tree.thread is None:
        return name or "Thread"
    text = f"Thread_{tree.thread}"
    if name:
        text += f": {name}"
    if tree.queue is None:
        return text
    number, kind = tree.details.get("DispatchQueue"), tree.details.get("kind")
    if tree.queue == MAIN_QUEUE and not {"DispatchQueue", "kind"} & tree.details.keys():
        number, kind = 1, "serial"
    text += "   DispatchQueue" + ("" if number is None else f"_{number}") + f": {shown(tree.queue)}"
    return text if kind is None else f"{text}  ({kind})"


def image_text(image: ReportedImage) -> str:
    """Return an image's line."""
    line = image.details.get(TEXT)
    if isinstance(line, str):
        return shown(line)
    base, label = image.load_address or 0, image.details.get(LABEL, image.name)
    mark = "+" if image.details.get("main") is True else " "
    text = f"{base:#18x} - {image_end(image, base + max(1, image.size or 1) - 1):>18s} {mark}"
    text += shown(str(label)) or "?"
    if image.version is not None:
        text += f" ({shown(image.version)})"
    if image.uuid is not None:
        text += f" <{shown_identifier(image.uuid)}>"
    return f"{text} {shown(image.path)}"


def _image_and_place(text: str) -> tuple[str, re.Match[str] | None]:
    """Split the image's name, which may have brackets, and what follows it."""
    end = -1
    for _ in range(_MAX_BRACKETS):
        end = text.find(")", end + 1)
        if end < 0:
            break
        match = _WHERE.fullmatch(text[end + 1 :].rstrip())
        if match is not None:
            return text[:end], match
    return "", None


def _without_image(text: str) -> GraphFrame:
    """Parse a frame outside of all images: ``???  [0x1234]``."""
    if _ADDRESS.fullmatch(text) is not None:  # version 6 has nothing else for an unnamed function
        return GraphFrame(None, None, None, int(text, 16), None, {})
    function, _, rest = text.rpartition(" ")
    bare = _BARE.fullmatch(rest)
    if bare is None:
        return GraphFrame(ReportedSymbol(text, None), None, None, None, None, {})
    name = function.rstrip()
    into = _INTO.fullmatch(name)
    symbol = None if name.startswith("???") else ReportedSymbol(name, None)
    if symbol is not None and into is not None:
        symbol = ReportedSymbol(into["name"], int(into["offset"]))
    return GraphFrame(symbol, None, None, int(bare["address"], 16), None, {})


def _number(text: str) -> int | None:
    return int(text, 0) if text and text[0].isdigit() and _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.startswith("0x") or (text.isdecimal() and (text == "0" or text[0] != "0"))


_ANALYSIS = re.compile(r"^(?:Analysis of sampling |Sampling process )", re.MULTILINE)
_PROCESS = re.compile(r"^((?:Process|Parent Process):[ \t]+\S.{0,400}) ([0-9]{1,10})$")
"""Version 6's form, without brackets around the number."""
GRAPH = "Call graph:"
IMAGES = "Binary Images:"
GRAPH_LINES = "call graph"
"""The detail of lines of the graph that are no nodes."""
_EXAMINED = 1 << 16


def recognises(source: ReportSource) -> bool:
    """Return whether it is an analysis, or has a call graph with threads."""
    head = source.text[:_EXAMINED]
    if _ANALYSIS.search(head) is not None and f"\n{GRAPH}" in source.text:
        return True
    _, graph, rest = f"\n{head}".partition(f"\n{GRAPH}\n")
    return bool(graph) and " Thread_" in rest[:400]


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    lines = source.text.split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith(GRAPH)), len(lines))
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
        details[GRAPH_LINES] = [*graph.other]
    return replace(report, details=details)


def _sections(
    lines: list[str], start: int
) -> tuple[list[ReportedImage], dict[str, JsonValue], int]:
    """Return the images, the tables after the graph by title, and the end of the graph."""
    images: list[ReportedImage] = []
    sections: dict[str, list[JsonValue]] = {}
    title = ""
    end = len(lines)
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if line and not line[0].isspace() and line.rstrip().endswith((":", ")")):
            end = min(end, index)
            title = line.rstrip()
            if not title.startswith(IMAGES):
                sections.setdefault(title, [])
        elif title.startswith(IMAGES) and (image := read_image(line)) is not None:
            images.append(_listed(image, line))
        elif title and line.strip():
            sections.setdefault(title, []).append(line)
    return images, {title: rows for title, rows in sections.items() if rows}, end


def _listed(image: ReportedImage, line: str) -> ReportedImage:
    """Return the image of a line, with the line if it is unusual."""
    image = named_by_path(image)
    if image_text(image) == line:
        return image
    return replace(image, details={**image.details, TEXT: line})


def exact_ends(
    nodes: Iterable[SampledNode], callers: Container[int | None]
) -> tuple[SampledNode, ...]:
    """Return the nodes, of which those without callees are program counters."""
    return tuple(
        node
        if index in callers
        else node._replace(frame=node.frame._replace(adjustment=Adjustment.EXACT))
        for index, node in enumerate(nodes)
    )


class _Graph:
    """Builds trees from their lines."""

    def __init__(self, images: list[ReportedImage]) -> None:
        self.other: list[JsonValue] = []
        self._images = ListedImages(images)
        self._trees: list[SampledTree] = []
        self._nodes: list[SampledNode] = []
        self._heading: CountedLine | None = None
        self._open: list[int] = []
        """The nodes that may call the next one, a level each."""

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
        parsed = graph_frame(text)
        index = None if parsed.image is None else self._images.find(parsed.image, parsed.address)
        if index is not None and parsed.base is not None and self._images.base(index) is None:
            self._images.set_base(index, Avma(parsed.base))
        frame = ReportedFrame(
            None if parsed.address is None else Avma(parsed.address),
            index,
            self._images.offset(index, parsed.address),
            Adjustment.RETURN,
            parsed.symbol,
            parsed.location,
            parsed.is_inline,
            parsed.details,
        )
        if frame_text(frame, None if index is None else self._images.image(index)) == text:
            return frame
        return frame._replace(details={**parsed.details, TEXT: text})

    def _end(self) -> None:
        if self._heading is not None:
            heading = thread_heading(self._heading.text)
            nodes = exact_ends(self._nodes, {node.parent for node in self._nodes})
            tree = SampledTree(
                nodes=nodes,
                thread=heading.id,
                name=heading.name,
                queue=heading.queue,
                count=self._heading.samples,
                details=heading.details,
            )
            if heading_text(tree) != self._heading.text:
                tree = replace(tree, details={**tree.details, TEXT: self._heading.text})
            self._trees.append(tree)
        self._nodes, self._open = [], []

    def trees(self) -> tuple[SampledTree, ...]:
        self._end()
        self._heading = None
        return tuple(self._trees)

    def images(self) -> tuple[ReportedImage, ...]:
        return self._images.all()
