"""Stacks as lists: the app's frames stand out, the system's and repeated ones fold away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from machtrace.analysis.fingerprint import owners_of
from machtrace.analysis.frame_owner import NOWHERE, FrameOwner, Ownership
from machtrace.analysis.recursion import folds
from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import Adjustment, NameSource, ReportedFrame
from machtrace.report.html.markup import element, folded, quantity, text

_FOLDED_FROM = 4
"""Frames of the system in a row from which on they are folded."""
_NAMED = 4
"""Images that a fold's heading names."""
_SOURCES = {
    NameSource.REPORT: ("report", "the report had this name"),
    NameSource.DEBUG_INFORMATION: ("debug", "from debug information"),
    NameSource.EXACT: ("symbol", "from a symbol at the function's own start"),
    NameSource.EXPORT: ("export", "an exported symbol before it: perhaps another function"),
    NameSource.OBJC: ("objc", "from the class's list of methods"),
    NameSource.RTTI: ("rtti", "from a C++ class's vtable"),
    NameSource.SWIFT: ("swift", "from a Swift type's metadata"),
    NameSource.PCLNTAB: ("go", "from Go's table of functions"),
    NameSource.STUB: ("stub", "a stub, named after the function that it calls"),
}
_ADJUSTMENTS = {
    Adjustment.EXACT: "the instruction that was running",
    Adjustment.RETURN: "where a call returns to",
    Adjustment.ALREADY_ADJUSTED: "inside of a call, adjusted by who wrote the report",
    Adjustment.UNKNOWN: "the report does not say whether a call returns here",
}


class _Row(NamedTuple):
    number: int
    """As the report counts frames; what was inlined has its holder's."""
    frame: ReportedFrame
    owner: Ownership


class StackLists:
    """Writes the stacks of one task."""

    def __init__(self, task: ReportedTask) -> None:
        self._task = task
        self.owners = owners_of(task)

    def write(self, frames: Sequence[ReportedFrame]) -> str:
        """A stack, innermost first."""
        if not frames:
            return element("p", "No frames.", class_="none")
        rows = list(self._rows(frames))
        has_app = any(row.owner.owner is FrameOwner.APP for row in rows)
        same = [(frame.image, frame.symbol and frame.symbol.name, frame.offset) for frame in frames]
        by_name = [(image, name) if name else (image, offset) for image, name, offset in same]
        pieces: list[str] = []
        for fold in folds(by_name):
            part = rows[fold.first : fold.first + fold.length]
            if fold.times == 1:
                pieces += self._part(part, folds_system=has_app)
                continue
            pieces += self._part(part[: fold.period], folds_system=False)
            frames_left = fold.length - fold.period
            summary = (
                f"↻ {text(f'{fold.times:,}')} times: "
                f"{quantity(frames_left, 'more frame')} of the same"
            )
            rest = element("ol", "".join(map(self._row, part[fold.period :])), class_="frames")
            pieces.append(element("li", folded(summary, rest), class_="run recursion"))
        return element("ol", "".join(pieces), class_="frames")

    def _rows(self, frames: Sequence[ReportedFrame]) -> Iterator[_Row]:
        number = 0
        for frame in frames:
            owner = NOWHERE if frame.image is None else self.owners[frame.image]
            yield _Row(number, frame, owner)
            number += not frame.is_inline

    def _part(self, rows: Sequence[_Row], *, folds_system: bool) -> Iterator[str]:
        run: list[_Row] = []
        for row in rows:
            if folds_system and row.owner.owner is FrameOwner.SYSTEM and row.number:
                run.append(row)
                continue
            yield from self._run(run)
            run = []
            yield self._row(row)
        yield from self._run(run)

    def _run(self, rows: Sequence[_Row]) -> Iterator[str]:
        if len(rows) < _FOLDED_FROM:
            yield from map(self._row, rows)
            return
        names = list(dict.fromkeys(self._image(row.frame) for row in rows))
        said = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        summary = f"{quantity(len(rows), 'frame')} of the system: {text(said)}"
        content = element("ol", "".join(map(self._row, rows)), class_="frames")
        yield element("li", folded(summary, content), class_="run")

    def _image(self, frame: ReportedFrame) -> str:
        if frame.image is None:
            return "???"
        image = self._task.images[frame.image]
        return image.name or image.path.rpartition("/")[2] or "???"

    def _row(self, row: _Row) -> str:
        frame = row.frame
        whose = row.owner.owner.value
        name = "" if frame.symbol is None else frame.symbol.name
        place = ""
        if frame.symbol is None and frame.offset is not None:
            place = f"+ {frame.offset:#x}"
        elif frame.symbol is not None and frame.symbol.offset is not None:
            place = f"+ {frame.symbol.offset}"
        cells = element("span", "" if frame.is_inline else str(row.number), class_="number")
        cells += element(
            "bdi", text(self._image(frame)), class_="image", title=row.owner.reason.value
        )
        address = "" if frame.address is None else f"{frame.address:#x}"
        meaning = _ADJUSTMENTS[frame.adjustment]
        cells += element("span", text(address), class_="address", title=meaning)
        shown = element("bdi", text(name), class_="name") if name else "<i>no name</i>"
        shown += " " + element("span", text(place), class_="offset") if place else ""
        shown += _inline(frame) + _location(frame) + _source(frame) + _notes(frame)
        cells += element("span", shown, class_="what")
        inline = " inline" if frame.is_inline else ""
        return element("li", cells, class_=f"frame {whose}{inline}")


def _inline(frame: ReportedFrame) -> str:
    return " " + element("span", "inlined", class_="badge") if frame.is_inline else ""


def _location(frame: ReportedFrame) -> str:
    location = frame.location
    if location is None:
        return ""
    line = "" if location.line is None else f":{location.line}"
    column = "" if location.column is None or not line else f":{location.column}"
    short = location.path.rpartition("/")[2] or location.path
    place = element("bdi", text(short + line + column), class_="place", title=location.path)
    return f" {place}"


def _source(frame: ReportedFrame) -> str:
    if frame.symbol is None:
        return ""
    label, meaning = _SOURCES[frame.symbol.source]
    return " " + element("span", label, class_=f"badge source {label}", title=meaning)


def _notes(frame: ReportedFrame) -> str:
    said = [
        f"{key}: {value}" for key, value in frame.details.items() if isinstance(value, str | int)
    ]
    if frame.symbol is not None and frame.symbol.source is not NameSource.REPORT:
        reported = frame.details.get("reported symbol")
        if isinstance(reported, dict):
            said.append(f"the report calls it {reported.get('name')}")
    return " " + element("small", text("; ".join(said)), class_="notes") if said else ""
