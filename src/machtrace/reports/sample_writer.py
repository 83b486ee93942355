"""Writer of ``sample``'s text, in which a text that was read is written as it was.

Trees of other formats are merged by function first, as :mod:`~machtrace.render.sample_text` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import StringIO

from machtrace.model.profile import OUTERMOST
from machtrace.model.report import (
    JsonValue,
    NameSource,
    Report,
    ReportedFrame,
    ReportKind,
    SampledTree,
)
from machtrace.render.sample_text import (
    MANY_LINES,
    TOP_OF_STACK,
    analysis_line,
    graph_lines,
    many_lines,
    sampled_text,
    start_time,
    top_lines,
    write,
)
from machtrace.reports.crash.lines import shown
from machtrace.reports.sample import (
    GRAPH,
    GRAPH_LINES,
    IMAGES,
    frame_text,
    heading_text,
    image_text,
)
from machtrace.reports.stacks.profiles import profile_of, sampling_run

_WIDTH, _WIDER = 17, 28
"""Columns of labels: of all, and of those in the last part of a header."""


def sample_text(report: Report) -> str:
    """Return the report as ``sample`` writes it."""
    header = list(_header(report))
    if report.kind is ReportKind.SAMPLE:
        gap = [""] if header else []
        return "\n".join([*header, *gap, *_graph(report), *_tables(report), *_images(report), ""])
    sink = StringIO()
    write(profile_of(report), sink, header=header)
    return sink.getvalue()


def _header(report: Report) -> Iterator[str]:
    parts = list(_parts(report))
    prelude = report.details.get("") if report.kind is ReportKind.SAMPLE else None
    if isinstance(prelude, str):
        yield from map(shown, prelude.split("\n"))
    elif not any(parts) and report.kind is ReportKind.SAMPLE:
        return
    else:
        process = report.process
        name = shown(process.name or "") or "process"
        yield analysis_line(name, process.pid, sampling_run(report))
    for number, part in enumerate(parts):
        if number and part:
            yield ""
        yield from part
    yield "----"


def _parts(report: Report) -> Iterator[list[str]]:
    """Yield the lines of the process, of the run, and of the process's memory."""
    process, system = report.process, report.system
    labels = _labels(report)
    load_address = labels.pop("Load Address", None)
    if load_address is None:
        program = next(
            (image for image in report.images if image.path and image.path == process.path), None
        )
        if program is not None and program.load_address is not None:
            load_address = f"{program.load_address:#x}"
    code_type = process.code_type
    if code_type is not None and process.is_translated:
        code_type += " (Translated)"
    yield _lines(
        ("Process", _numbered(process.name, process.pid)),
        ("Path", process.path),
        ("Load Address", load_address),
        ("Identifier", process.identifier),
        ("Version", _bracketed(process.version, process.build)),
        ("Code Type", code_type),
        ("Platform", labels.pop("Platform", None)),
        ("Parent Process", _numbered(process.parent, process.parent_pid)),
    )
    run = sampling_run(report)
    is_ours = report.kind is not ReportKind.SAMPLE
    yield _lines(
        ("Date/Time", report.incident.time or (start_time(run) if run.started_at_ns else None)),
        ("Launch Time", process.launch_time),
        ("OS Version", _bracketed(system.os_name, system.os_build)),
        ("Report Version", "7" if is_ours else report.incident.report_version),
        ("Analysis Tool", "machtrace" if is_ours else labels.pop("Analysis Tool", None)),
        ("Sampled", sampled_text(run) if run.ticks and is_ours else labels.pop("Sampled", None)),
        ("Stopped", labels.pop("Stopped", None)),
    )
    yield _lines(*labels.items(), width=_WIDER)


def _labels(report: Report) -> dict[str, str]:
    """Return the header's values that have no field, by label."""
    if report.kind is not ReportKind.SAMPLE:
        return {}
    values = report.details.items()
    return {label: value for label, value in values if label and isinstance(value, str)}


def _lines(*values: tuple[str, str | None], width: int = _WIDTH) -> list[str]:
    lines = []
    for label, value in values:
        if value is not None:
            first, *others = value.split("\n")
            lines += [f"{label + ':':<{width}}{shown(first)}", *map(shown, others)]
    return lines


def _numbered(name: str | None, number: int | None) -> str | None:
    if number is None:
        return name
    return f"{name or '???'} [{number}]"


def _bracketed(name: str | None, build: str | None) -> str | None:
    return name if build is None else f"{name or '???'} ({build})"


def _graph(report: Report) -> Iterator[str]:
    yield GRAPH
    for number, tree in enumerate(report.trees):
        yield f"    {tree.root_samples if tree.count is None else tree.count} {heading_text(tree)}"
        yield from _tree(report, tree, is_last=number == len(report.trees) - 1)
    yield from _stored(report, GRAPH_LINES)
    yield ""


def _tree(report: Report, tree: SampledTree, *, is_last: bool) -> Iterator[str]:
    last_called = {node.parent: index for index, node in enumerate(tree.nodes)}

    def text(index: int) -> str:
        node = tree.nodes[index]
        return f"{node.samples} {_text(report, node.frame)}"

    nodes = (
        (
            index,
            OUTERMOST if node.parent is None else node.parent,
            last_called[node.parent] == index,
        )
        for index, node in enumerate(tree.nodes)
    )
    return graph_lines(nodes, text, is_last=is_last)


def _text(report: Report, frame: ReportedFrame) -> str:
    return frame_text(frame, None if frame.image is None else report.images[frame.image])


def _tables(report: Report) -> Iterator[str]:
    """Yield the lists after the graph: those of the text, or new ones if files gave names."""
    stored = [
        title
        for title, rows in report.details.items()
        if isinstance(rows, list) and title not in (GRAPH_LINES, IMAGES)
    ]
    titles = dict.fromkeys((MANY_LINES, TOP_OF_STACK, *stored))
    symbols = (node.frame.symbol for tree in report.trees for node in tree.nodes)
    if any(symbol is not None and symbol.source is not NameSource.REPORT for symbol in symbols):
        counted = dict(zip((MANY_LINES, TOP_OF_STACK), _counted(report), strict=True))
    else:
        counted = {}
    for title in titles:
        yield shown(title)
        yield from counted.get(title) or _stored(report, title)
        yield ""


def _counted(report: Report) -> tuple[list[str], list[str]]:
    """Return functions by the number of their lines, and by how often stacks ended in them."""
    lines: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for tree in report.trees:
        own = [node.samples for node in tree.nodes]
        for node in tree.nodes:
            if node.parent is not None:
                own[node.parent] -= node.samples
        for node, count in zip(tree.nodes, own, strict=True):
            frame = node.frame
            name = "???" if frame.symbol is None else shown(frame.symbol.name)
            if frame.image is not None:
                name += f"  (in {shown(report.images[frame.image].name)})"
            lines[name] += 1
            ends[name] += max(0, count)
    return list(many_lines(lines)), list(top_lines(ends))


def _images(report: Report) -> Iterator[str]:
    yield IMAGES
    # Images without an extent are those that only frames name.
    yield from (
        image_text(image) for image in report.images if image.size is not None or image.path
    )
    yield from _stored(report, IMAGES)


def _stored(report: Report, key: str) -> Iterator[str]:
    rows: JsonValue = report.details.get(key)
    if isinstance(rows, list):
        yield from (shown(row) for row in rows if isinstance(row, str))
