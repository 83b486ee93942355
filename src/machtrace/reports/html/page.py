"""The page: one self-contained file, without network requests.

Its ``Content-Security-Policy`` allows its own script and style alone, by their hashes; without the
script everything but the flame graph works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from machtrace.model.image import BuildId, shown_identifier
from machtrace.model.report import NameSource, Report, ReportedFrame, ReportedImage, ReportedTask
from machtrace.model.text import counted
from machtrace.reports.analysis.fingerprint import incident_fingerprint, owners_of
from machtrace.reports.analysis.frame_owner import FrameOwner
from machtrace.reports.analysis.groups import report_groups
from machtrace.reports.analysis.subject_stack import subject_stack
from machtrace.reports.analysis.waits.graph import WaitGraph, process_label, wait_graph
from machtrace.reports.html import facts, shell
from machtrace.reports.html.flame_graph import flame_graph
from machtrace.reports.html.markup import element, folded, text
from machtrace.reports.html.threads import WaitLabels, key_to_marks, stacks
from machtrace.reports.html.timeline import timeline

_HEADINGS = ("Image", "Whose", "Names", "Frames", "UUID", "Arch", "Version", "From", "Path")


def task_frames(report: Report, task: ReportedTask) -> Iterator[ReportedFrame]:
    """Yield all frames of a task."""
    for thread in task.threads:
        yield from thread.frames
    for tree in task.trees:
        yield from (node.frame for node in tree.nodes)
    if task is report and report.language_exception is not None:
        yield from report.language_exception.frames


def images(report: Report, task: ReportedTask) -> str:
    """Return the table, preceded by the app's images without names."""
    if not task.images:
        return ""
    frames: Counter[int] = Counter()
    named: Counter[int] = Counter()
    reported: Counter[int] = Counter()
    for frame in task_frames(report, task):
        if frame.image is None or frame.is_inline:
            continue
        frames[frame.image] += 1
        if frame.symbol is not None:
            is_ours = frame.symbol.source is not NameSource.REPORT
            (named if is_ours else reported)[frame.image] += 1
    owners = owners_of(task)
    order = sorted(range(len(task.images)), key=lambda index: -frames[index])
    rows: list[str] = []
    missing: list[str] = []
    for index in order:
        image, whose = task.images[index], owners[index].owner
        state = _state(frames[index], named[index], reported[index])
        nameless = frames[index] - named[index] - reported[index]
        if nameless and whose is FrameOwner.APP:
            missing.append(_missing(image, nameless))
        cells = (
            element("bdi", text(_name(image))),
            text(whose.value),
            text(state),
            str(frames[index]) if frames[index] else "",
            element("code", text(_uuid(image))),
            text(image.arch or ""),
            text(image.version or ""),
            element("code", text(_range(image))),
            element("bdi", text(image.path)),
        )
        row = "".join(element("td", cell) for cell in cells)
        rows.append(element("tr", row, class_=f"image {whose.value}"))
    head = element(
        "tr", "".join(element("th", text(heading), scope="col") for heading in _HEADINGS)
    )
    table = element("table", element("thead", head) + element("tbody", "".join(rows)))
    used = sum(1 for index in order if frames[index])
    summary = f"<b>{counted(len(task.images), 'image')}</b>, {used:,} with frames"
    scroller = element(
        "div", table, class_="wide", tabindex="0", role="region", aria_label="Images"
    )
    listed = element("ul", "".join(missing), class_="missing") if missing else ""
    return listed + folded(summary, scroller, class_="images")


def _state(frames: int, named: int, reported: int) -> str:
    if not frames:
        return ""
    if named == frames:
        return "all found"
    if named:
        return f"{named} of {frames} found"
    if reported:
        return "the report's own" if reported == frames else f"the report's own, {reported}"
    return "none"


def _missing(image: ReportedImage, frames: int) -> str:
    summary = f"{counted(frames, 'frame')} of the app without names: "
    uuid = _uuid(image)
    file = "the file with build-id" if isinstance(image.uuid, BuildId) else "the dSYM with UUID"
    look = f" — pass machtrace symbolicate --search {file} <code>{text(uuid)}</code>"
    return element("li", summary + element("bdi", text(_name(image))) + (look if uuid else ""))


def _name(image: ReportedImage) -> str:
    return image.name or image.path.rpartition("/")[2] or "???"


def _uuid(image: ReportedImage) -> str:
    return "" if image.uuid is None else shown_identifier(image.uuid)


def _range(image: ReportedImage) -> str:
    if image.load_address is None:
        return ""
    end = "" if not image.size else f" – {image.load_address + image.size - 1:#x}"
    return f"{image.load_address:#x}{end}"


_CONTROLS = (
    '<search class="tools"><label>Search <input type="search" id="search" '
    'placeholder="function, image, file, UUID, address (press /)" autocomplete="off"></label>'
    '<output id="found" aria-live="polite"></output>'
    '<label><input type="checkbox" id="app-only"> app frames only</label>'
    '<button type="button" id="open-all">Open all</button>'
    '<button type="button" id="close-all">Close all</button></search>'
)


def write(reports: Sequence[Report]) -> str:
    """Return the page of one report or of several."""
    style = shell.resource("page.css")
    script = shell.resource("flame_canvas.js") + shell.resource("page.js")
    if len(reports) == 1:
        title = facts.title_of(reports[0])
        body = _report(reports[0], level="h2")
    else:
        title = counted(len(reports), "report")
        body = _overview(reports) + "".join(map(_folded, range(1, len(reports) + 1), reports))
    return shell.page(
        title,
        controls=_CONTROLS,
        main=body,
        footer=key_to_marks(),
        style=style,
        script=script,
    )


def _folded(number: int, report: Report) -> str:
    heading = element("b", text(facts.title_of(report)))
    content = _report(report, level="h3")
    return folded(heading, content, class_="report", id=f"report-{number}")


def _overview(reports: Sequence[Report]) -> str:
    rows: list[str] = []
    for group in report_groups(reports):
        links = ", ".join(
            element("a", str(index + 1), href=f"#report-{index + 1}") for index in group.reports
        )
        exceptions = ", ".join(f"{label} ×{count}" for label, count in group.exceptions)
        versions = ", ".join(f"{label} ×{count}" for label, count in group.versions)
        cells = (
            element("td", f"{group.count:,}", class_="number"),
            element("td", element("bdi", text(group.fingerprint.title))),
            element("td", text(exceptions)),
            element("td", text(versions)),
            element("td", element("code", group.fingerprint.hash)),
            element("td", links),
        )
        rows.append(element("tr", "".join(cells)))
    head = "".join(
        element("th", one, scope="col")
        for one in ("Reports", "Problem", "Exceptions", "Versions", "Fingerprint", "Which")
    )
    table = element(
        "table", element("thead", element("tr", head)) + element("tbody", "".join(rows))
    )
    return element("section", element("h2", "Groups") + element("div", table, class_="wide"))


def _report(report: Report, *, level: str) -> str:
    subject = subject_stack(report)
    identity = incident_fingerprint(report, () if subject is None else subject.frames)
    graph = wait_graph(report)
    labels = WaitLabels(graph)
    waiting = (node.thread for node in graph.threads)
    parts = [facts.facts(report), facts.warnings(report), facts.application_information(report)]
    if identity.frames:
        parts.append(facts.grouping(identity))
    parts.append(_deadlocks(graph))
    times = timeline(report)
    flames = flame_graph(report)
    if times:
        # The other threads' stacks matter less than the time of the watched one's.
        charts = element("section", element(level, "Timeline") + times)
        if flames:
            charts += element("section", element(level, "Flame graph") + flames)
        parts.append(element("div", charts, class_="beside"))
    for task in report.tasks:
        listed = stacks(report, task, list(islice(waiting, _waiting_count(task))), labels)
        tables = images(report, task)
        if task is not report:
            head = element("b", text(process_label(task)))
            parts.append(folded(head, listed + tables, class_="process"))
            continue
        if listed:
            parts.append(element("section", element(level, "Stacks") + listed))
        if tables:
            parts.append(element("section", element(level, "Images") + tables))
    if flames and not times:
        parts.append(element("section", element(level, "Flame graph") + flames))
    return "".join([*parts, facts.further_details(report)])


def _waiting_count(task: ReportedTask) -> int:
    trees = sum(tree.thread is not None or len(task.trees) > 1 for tree in task.trees)
    return len(task.threads) + trees


def _deadlocks(graph: WaitGraph) -> str:
    alerts: list[str] = []
    for deadlock in graph.deadlocks:
        names = " → ".join(graph.threads[index].thread.label for index in deadlock.threads)
        sure = "" if deadlock.is_certain else " (partly a guess)"
        if len(deadlock.threads) == 1:
            message = f"Deadlock{sure}: {names} waits for itself"
        else:
            message = f"Deadlock{sure}: {names} wait for one another"
        alerts.append(element("p", text(message), class_="deadlock", role="alert"))
    return "".join(alerts)
