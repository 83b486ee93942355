"""The images of a report, and whether names were found in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from machtrace.model.image import BuildId, shown_identifier
from machtrace.model.report import NameSource, Report, ReportedFrame, ReportedImage, ReportedTask
from machtrace.model.text import counted
from machtrace.reports.analysis.fingerprint import owners_of
from machtrace.reports.analysis.frame_owner import FrameOwner
from machtrace.reports.html.markup import element, folded, text

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
    head = element("tr", "".join(element("th", text(one), scope="col") for one in _HEADINGS))
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
