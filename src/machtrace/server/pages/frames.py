"""Stacks as tables: frames with names, images, source lines and inlined calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from machtrace.model.report import NameSource
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, text
from machtrace.server.pages.parts import shown
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import Segment, numbers

BUDGET = 110_000
"""Bytes of HTML of a stack."""
_MAX_PATH_LENGTH = 120
_WEAK = {
    NameSource.EXPORT.value: "the nearest exported symbol",
    NameSource.STUB.value: "a stub",
    NameSource.REPORT.value: "",
}
"""By source of a name that may be another function's: a note."""


class Call(NamedTuple):
    """A function at a frame, which another one may have inlined."""

    function: str
    file: str
    line: int
    """0: unknown."""
    source: str


class Frame(NamedTuple):
    """A frame of a stored stack."""

    image: str
    owner: str
    """app, system or unknown; empty without an image."""
    place: str
    """The offset in the image, or the address; or a text from a source without addresses."""
    calls: tuple[Call, ...]
    """The innermost inlined one first; none if it has no name."""


def read_frames(segment: Segment, nodes: Iterable[int]) -> dict[int, list[Frame]]:
    """Return the frames of the stacks of some nodes, innermost first."""
    stacks = {node: segment.tree.stack(node) for node in nodes}
    wanted = sorted({frame for stack in stacks.values() for frame in stack})
    rows = segment.frames.take(pa.array(wanted, pa.int64())).to_pylist()
    images = segment.images.select(["name", "owner"]).to_pylist()
    calls: dict[int, list[Call]] = defaultdict(list)
    is_wanted = np.isin(numbers(segment.names, "frame"), np.array(wanted, np.int64))
    names = segment.names.filter(pa.array(is_wanted)).sort_by(
        [("frame", "ascending"), ("place", "ascending")]
    )
    for row in names.to_pylist():
        calls[row["frame"]].append(Call(row["function"], row["file"], row["line"], row["source"]))
    made: dict[int, Frame] = {}
    for number, row in zip(wanted, rows, strict=True):
        image = images[row["image"]] if row["image"] >= 0 else {"name": "", "owner": ""}
        place = row["text"] if row["kind"] == FrameKind.TEXT else f"{row['offset']:#x}"
        made[number] = Frame(image["name"], image["owner"], place, tuple(calls[number]))
    return {node: [made[frame] for frame in stack] for node, stack in stacks.items()}


def frame_table(
    frames: Sequence[Frame],
    caption: str,
    *,
    through: Mapping[int, str] | None = None,
    budget: int = BUDGET,
) -> str:
    """Return a stack as a table.

    Args:
        frames: the innermost first.
        caption: its name for those who do not see it.
        through: by number of a frame: a cell about other stacks through it, as HTML.
        budget: bytes of HTML after which frames are left out.
    """
    if not frames:
        return element("p", "No frames.", class_="note")
    heads = ["#", "Function", "Source", "Image"] + (["Reports through here"] if through else [])
    head = "".join(
        element("th", name, scope="col", class_="number" if at in (0, 4) else None)
        for at, name in enumerate(heads)
    )
    rows: list[str] = []
    size = 0
    for number, frame in enumerate(frames):
        extra = "" if through is None else element("td", through.get(number, ""), class_="number")
        written = "".join(_rows(number, frame, extra))
        size += len(written.encode())
        if size > budget:
            left = counted(len(frames) - number, "further frame")
            rows.append(f'<tr><td></td><td colspan="{len(heads) - 1}">{left}</td></tr>')
            break
        rows.append(written)
    inner = element("thead", element("tr", head)) + element("tbody", "".join(rows))
    stack = element("table", inner, class_="stack")
    return element("div", stack, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _rows(number: int, frame: Frame, extra: str) -> Iterable[str]:
    image = element("td", shown(frame.image, 80), class_="quiet-text")
    kind = f"f {frame.owner}" if frame.owner else "f"
    if not frame.calls:
        name = f"<code>{shown(frame.place)}</code>"
        yield _row(str(number), kind + " unnamed", name, "", image, extra)
        return
    for at, call in enumerate(frame.calls):
        is_machine = at == len(frame.calls) - 1
        name = f"<code>{shown(call.function or '???')}</code>"
        if not is_machine:
            name += " <small>inlined</small>"
        elif note := _WEAK.get(call.source, ""):
            name += f" <small>{text(note)}</small>"
        yield _row(
            str(number) if is_machine else "",
            kind,
            name,
            _source(call),
            image if is_machine else "<td></td>",
            extra if is_machine or not extra else "<td></td>",
        )


def _row(number: str, kind: str, name: str, source: str, image: str, extra: str) -> str:
    cells = f'<th scope="row" class="number">{number}</th><td>{name}</td><td>{source}</td>'
    return f'<tr class="{kind}">{cells}{image}{extra}</tr>'


def _source(call: Call) -> str:
    if not call.file:
        return ""
    name = call.file.rpartition("/")[2] or call.file
    line = f":{call.line}" if call.line else ""
    return element("cite", shown(name, _MAX_PATH_LENGTH) + line, title=call.file[:400])
