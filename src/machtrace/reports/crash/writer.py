"""Writer of Apple's crash text, in the report's layout or its system's.

Trees of samples and other processes have no section in Apple's texts, so these two are ours. Trees
are written as by ``sample``; lines of other processes are indented by two columns, so that readers
do not attribute them to the process that crashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from machtrace.model.report import (
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedTask,
    ReportedThread,
    ReportKind,
    SampledTree,
)
from machtrace.model.text import INLINED, MAX_IMAGE_NAME_LENGTH
from machtrace.reports.crash.frame_lines import UNLISTED
from machtrace.reports.crash.frames import elided, frame_lines
from machtrace.reports.crash.labels import Values, is_backtrace, label_values, text_lines
from machtrace.reports.crash.layouts import (
    CALL_GRAPH,
    IMAGES,
    LAST_EXCEPTION,
    OTHERS,
    PLACES,
    STATE,
    THREADS,
    Layout,
    is_of_mac,
    layout_of,
)
from machtrace.reports.crash.lines import image_end, image_line, shown
from machtrace.reports.crash.reader import IMAGE_LINES, ORDER
from machtrace.reports.crash.registers import register_lines, state_name
from machtrace.reports.crash.threads import HEADING, KEY, NAME_LINE, stream_lines
from machtrace.reports.json_writer import as_text
from machtrace.reports.log_lines import LINES

_MAX_DEPTH = 256
"""Columns grow with depth; deeper nodes have their depth before their count."""
_MARGIN = "    "


def call_graph_lines(report: Report) -> Iterator[str]:
    """Yield the section of the report's own trees."""
    if report.trees:
        yield "Call graph:"
        yield from _trees(report)


def _trees(task: ReportedTask) -> Iterator[str]:
    for tree in task.trees:
        yield _MARGIN + _head(tree)
        for depth, node in zip(tree.depths(), tree.nodes, strict=True):
            deeper = f"({depth}) " if depth > _MAX_DEPTH else ""
            columns = "  " * (min(depth, _MAX_DEPTH) + 1)
            label = _node_text(node.frame, task.images)
            yield f"{_MARGIN}{columns}{deeper}{node.samples} {label}"


def _head(tree: SampledTree) -> str:
    count = tree.root_samples if tree.count is None else tree.count
    text = f"{count} Thread" if tree.thread is None else f"{count} Thread_{tree.thread}"
    if tree.name:
        text += f": {shown(tree.name)}"
    if tree.queue:
        text += f"   DispatchQueue: {shown(tree.queue)}"
    if tree.is_attributed:
        text += "   (attributed)"
    return f"{text}   (innermost first)" if tree.is_inverted else text


def _node_text(frame: ReportedFrame, images: Sequence[ReportedImage]) -> str:
    image = None if frame.image is None else images[frame.image]
    text = "???" if frame.symbol is None else shown(frame.symbol.name)
    if image is not None:
        name = shown(image.name[:MAX_IMAGE_NAME_LENGTH])
        text += f"  (in {name or image.uuid or '???'})"
    if frame.symbol is not None and frame.symbol.offset is not None:
        text += f" + {frame.symbol.offset}"
    elif image is not None and frame.offset is not None:
        text += f"  load address {image.load_address or 0:#x} + {frame.offset:#x}"
    if frame.address is not None:
        text += f"  [{frame.address:#x}]"
    if frame.location is not None:
        line = "" if frame.location.line is None else f":{frame.location.line}"
        text += f"  {shown(frame.location.path.rpartition('/')[2])}{line}"
    return text + INLINED if frame.is_inline else text


def other_lines(report: Report) -> Iterator[str]:
    """Yield the section of other processes: threads and trees of each."""
    if not report.others:
        return
    yield "Other Processes:"
    for task in report.others:
        process = task.process
        pid = "?" if process.pid is None else str(process.pid)
        yield f"  {shown(process.name or '???')} [{pid}]"
        yield from (f"  {line}" for line in _task(task))


def _task(task: ReportedTask) -> Iterator[str]:
    for thread in task.threads:
        known = "" if thread.id is None else f" ({thread.id:#x})"
        name = "" if thread.name is None else f": {shown(thread.name)}"
        yield f"  Thread {thread.index}{known}{name}"
        yield from (f"  {line}" for line in frame_lines(thread.frames, task.images))
    yield from _trees(task)
    if task.images:
        yield "  Binary Images:"
        yield from (f"  {image_line(image)}" for image in task.images)


def crash_text(report: Report) -> str:
    """Return the file's text."""
    return "\n".join([*_lines(report), ""])


def _lines(report: Report) -> Iterator[str]:
    layout = layout_of(report)
    values = label_values(report, layout)
    order: list[str] | None = None
    if report.kind is ReportKind.APPLE_CRASH:
        values |= _as_written(report, layout)
        order = _order(report)
    return text_lines(
        layout,
        order,
        values,
        {
            LAST_EXCEPTION: partial(_last_exception, report),
            THREADS: partial(_threads, report),
            STATE: partial(_states, report),
            CALL_GRAPH: partial(call_graph_lines, report),
            OTHERS: partial(other_lines, report),
            IMAGES: partial(_images, report, layout),
            "EOF": lambda: ["EOF"],
        },
    )


def _as_written(report: Report, layout: Layout) -> Values:
    """Return labels of the text without a field, or with a different spelling."""
    values: Values = {}
    known = PLACES[layout]
    order = frozenset(_order(report) or ())
    for label, value in report.details.items():
        if label not in known and label not in order and not is_backtrace(label):
            continue
        if isinstance(value, str):
            values[label] = [value]
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            values[label] = [str(one) for one in value]
    return values


def _order(report: Report) -> list[str] | None:
    order = report.details.get(ORDER)
    if not isinstance(order, list):
        return None
    labels = [one for one in order if isinstance(one, str)]
    return labels if len(labels) == len(order) else None


def _last_exception(report: Report) -> Iterator[str]:
    thrown = report.language_exception
    if thrown is None or not (thrown.frames or thrown.details.keys() & {"addresses", LINES}):
        return
    yield f"{LAST_EXCEPTION}:"
    addresses = thrown.details.get("addresses")
    if isinstance(addresses, str):
        yield addresses
    else:
        yield from frame_lines(thrown.frames, report.images, _between(thrown.details.get(LINES)))


def _between(lines: JsonValue) -> dict[int, list[str]]:
    """Return lines among frames, by the number of frames before them."""
    between: dict[int, list[str]] = {}
    for entry in lines if isinstance(lines, list) else ():
        match entry:
            case [int(at), str(line)]:
                between.setdefault(at, []).append(line)
            case _:
                continue
    return between


def _threads(report: Report) -> Iterator[str]:
    heading = _mac_heading if is_of_mac(report) else _heading
    names: dict[int | None, str] = {}
    for thread in report.threads:
        yield from heading(thread)
        between, jumps = elided(thread, report.images)
        for at, lines in _between(thread.details.get(LINES)).items():
            between.setdefault(at, []).extend(lines)
        # As one text, which passes through fewer calls than its lines.
        yield "\n".join([*frame_lines(thread.frames, report.images, between, jumps, names), ""])


def _state_word(thread: ReportedThread) -> str:
    word = thread.details.get(HEADING)
    if isinstance(word, str):
        return f" {word}"
    return " Crashed" if thread.crashed else ""


def _heading(thread: ReportedThread) -> Iterator[str]:
    words = " " + shown(thread.name) if thread.name else " "
    if thread.queue:
        words += f" Dispatch queue: {shown(thread.queue)}"
    if words != " ":
        yield f"Thread {thread.index} name: {words}"
    elif isinstance(thread.details.get(NAME_LINE), str):
        yield f"Thread {thread.index} name:{thread.details[NAME_LINE]}"
    yield f"Thread {thread.index}{_state_word(thread)}:"


def _mac_heading(thread: ReportedThread) -> Iterator[str]:
    words = ""
    if thread.name or thread.queue:
        words = f": {shown(thread.name or '')}"
    if thread.queue:
        words += f" Dispatch queue: {shown(thread.queue)}"
    yield f"Thread {thread.index}{_state_word(thread)}:{words}"


def _states(report: Report) -> Iterator[str]:
    crashed = report.crashed_thread
    has_one = crashed is not None and crashed.registers is not None
    in_order = report.kind is ReportKind.APPLE_CRASH
    for thread in report.threads:
        if thread.registers is None or (has_one and thread is not crashed):
            continue
        yield f"Thread {thread.index} crashed with {state_name(thread.registers)}:"
        yield from register_lines(thread.registers, in_order=in_order)
    for thread in report.threads:
        stream = thread.details.get("instruction stream")
        rows = [*stream_lines(thread.details.get(KEY))]
        rows += [as_text(line) for line in (stream if isinstance(stream, list) else ())]
        if rows:
            yield ""
            yield f"Thread {thread.index} instruction stream:"
            yield from rows


def _images(report: Report, layout: Layout) -> Iterator[str]:
    order = _order(report)
    images = [image for image in report.images if image.details.get(UNLISTED) is not True]
    if order is not None and IMAGES not in order and not images:
        return
    yield f"{IMAGES}:"
    between = _between(report.details.get(IMAGE_LINES))
    for index, image in enumerate(images):
        yield from between.get(index, ())
        if image.size is not None or image.load_address is not None or image.uuid is not None:
            yield from _image(image, _image_layout(image, report, layout))
    yield from between.get(len(images), ())


def _image_layout(image: ReportedImage, report: Report, layout: Layout) -> Layout:
    """Return the report's layout; another, if only that writes an image like this."""
    if report.kind is ReportKind.APPLE_CRASH:
        if image.arch is not None:
            return Layout.IOS
        if "CFBundleIdentifier" in image.details or image.size == 0:
            return Layout.MACOS
    return layout


def _image(image: ReportedImage, layout: Layout) -> Iterator[str]:
    base = image.load_address or 0
    is_none = image.size == 0 and not image.name
    if layout is Layout.IOS:
        if image.size or image.name or image.uuid is not None:
            yield image_line(image)
        return
    last = (1 << 64) - 1 if is_none else base + max(1, image.size or 1) - 1
    identifier = image.details.get("CFBundleIdentifier")
    name = identifier if isinstance(identifier, str) and identifier else image.name
    mark = "+" if image.details.get("main") is True else ""
    uuid = image.uuid or image.details.get("uuid") or "???"
    yield (
        f"{base:>#18x} - {image_end(image, last):>18s} {mark}{shown(name) or '???'}"
        f" ({shown(image.version or '*')}) <{uuid}> {shown(image.path) or '???'}"
    )
