"""Text for people: escaped names, short times, and the lines of stacks and reports."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # the model's values import this module
    from machtrace.model.report import Report, ReportedFrame, ReportedImage, ReportedTask

from machtrace.frozen import dataclass

INLINED = " [inlined]"
"""Apple's mark on a call inlined into the next line's."""
MAX_IMAGE_NAME_LENGTH = 4096
"""Characters of an image's name written with each frame: no system has longer ones (Linux:
``PATH_MAX``); a file made to fill a disk does.
"""
_MILLISECOND = 1_000_000
_IMAGE_WIDTH = 40
_NO_ADDRESSES = -1
"""Size of pointers in a chain without addresses: their column is empty."""
_FOLDED = 4
"""Consecutive equal frames from which on they are folded."""
_NAMELESS_FILES = frozenset({"__init__.py", "__main__.py"})
"""Python file names that are ambiguous without their folder."""


def printable(name: str) -> str:
    r"""Escape ``name`` to one line without control of a terminal: ``\x1b`` for an escape byte."""
    if name.isprintable():
        return name
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in name
    )


def encodable(name: str) -> str:
    r"""Escape ``name`` for UTF-8: ``\udcff``, spelt out, for an undecodable byte."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: ``1 thread``, ``1,200 threads``."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, in their order: ``3–7, 9``; ``…`` stands for what is too long."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    shown = ["–".join(map(str, part)) for part in parts[:_RANGES]]
    return ", ".join([*shown, "…"] if len(parts) > _RANGES else shown)


_RANGES = 12
"""Ranges of numbers that are listed."""
_NUMBERED = re.compile(r"(.*[^0-9])(0|[1-9][0-9]{0,8})", re.DOTALL)


def numbered(name: str) -> tuple[str, int | None]:
    """Split a name and the number at its end, if any: ``worker-12``."""
    match = _NUMBERED.fullmatch(name)
    return (name, None) if match is None else (match[1], int(match[2]))


def duration(nanoseconds: int) -> str:
    """Format a short time with its unit: ``18.4 µs``."""
    if nanoseconds < _MILLISECOND:
        return f"{nanoseconds / 1_000:.1f} µs"
    return f"{nanoseconds / _MILLISECOND:.1f} ms"


def short_location(path: str, line: int | None) -> str:
    """Return a file's name and line; the name with its folder's if it is ambiguous otherwise."""
    folder, _, name = path.rpartition("/")
    if folder and name in _NAMELESS_FILES:
        name = f"{folder.rpartition('/')[2]}/{name}"
    return printable(name) if line is None else f"{printable(name)}:{line}"


class Style(NamedTuple):
    """Control sequences around parts of lines."""

    bold: str = ""
    dim: str = ""
    reset: str = ""


PLAIN = Style()
COLOUR = Style("\x1b[1m", "\x1b[2m", "\x1b[0m")


class Row(NamedTuple):
    """One line of a frame: its function, or one that is inlined into it or that it interprets."""

    image: str
    address: int | None
    """None for a function without machine code of its own."""
    name: str
    location: str = ""
    """As :func:`short_location` returns it."""
    note: str = ""
    """How the frame is known."""
    is_dim: bool = False


@dataclass(frozen=True, slots=True)
class FrameText:
    """The lines of one frame, without its number."""

    rows: Sequence[Row]
    key: Hashable = None
    """Equal for frames of a recursion, which are folded; None for a frame that is never folded."""

    def __str__(self) -> str:
        width = max((len(row.image) for row in self.rows), default=0)
        size = _pointer_size(self.rows)
        return "\n".join(_row(row, width, size, PLAIN) for row in self.rows)


def chain_lines(
    pieces: Sequence[tuple[int, Sequence[FrameText]]],
    *,
    left_out: int = 0,
    pointer_size: int | None = None,
    style: Style = PLAIN,
    details: Sequence[Sequence[str]] | None = None,
) -> Iterator[str]:
    """Yield the lines of frames that called one another, without line ends.

    Args:
        pieces: consecutive frames, each piece with the number of its first frame.
        left_out: the number of frames between two pieces.
        pointer_size: the width of addresses, in bytes; None derives it from the addresses.
        style: how to emphasise.
        details: lines below each frame; with them, no frame is folded.
    """
    rows = [row for _, frames in pieces for frame in frames for row in frame.rows]
    if not rows:
        return
    width = min(_IMAGE_WIDTH, max(len(row.image) for row in rows))
    size = _pointer_size(rows) if pointer_size is None else pointer_size
    if all(row.address is None for row in rows):
        size = _NO_ADDRESSES
    digits = max(4, len(str(pieces[-1][0] + len(pieces[-1][1]) - 1)))
    printed = 0
    for first, frames in pieces:
        if first and left_out:
            gap = counted(left_out, "frame") + " in between"
            gap = gap if frames else counted(left_out, "more frame")
            yield f"{'…':>{digits}s}  {style.dim}{gap}{style.reset}"
        for index, count in _runs(frames, is_folded=details is None):
            for row in frames[index].rows:
                yield f"{first + index:{digits}d}  {_row(row, width, size, style)}"
            if count > 1:
                same = f"the same frame {count - 1} more times"
                span = f"{first + index + 1}–{first + index + count - 1}"
                yield f"{span:>{digits}s}  {style.dim}{same}{style.reset}"
            if details is not None:
                yield from (f"{style.dim}{text}{style.reset}" for text in details[printed + index])
        printed += len(frames)


def folded_rows(rows: Sequence[Row], noun: str) -> Iterator[Row]:
    """Yield ``rows``; of a recursion, the first and how often it repeats."""
    for row, group in groupby(rows):
        count = sum(1 for _ in group)
        if count < _FOLDED:
            yield from (row for _ in range(count))
        else:
            yield row
            yield Row(row.image, None, f"the same {noun} {count - 1} more times", is_dim=True)


def _runs(frames: Sequence[FrameText], *, is_folded: bool) -> Iterator[tuple[int, int]]:
    """Yield the index of the first frame of each run, and the run's length; 1 if it is short."""
    index = 0
    for key, group in groupby(frames, key=lambda frame: frame.key):
        count = sum(1 for _ in group)
        if is_folded and key is not None and count >= _FOLDED:
            yield index, count
        else:
            yield from ((single, 1) for single in range(index, index + count))
        index += count


def _pointer_size(rows: Sequence[Row]) -> int:
    return 8 if any((row.address or 0) >> 32 for row in rows) else 4


def _row(row: Row, width: int, pointer_size: int, style: Style) -> str:
    number = f"{'':{2 + 2 * pointer_size}s}"
    if row.address is not None:
        number = f"{style.dim}0x{row.address:0{2 * pointer_size}x}{style.reset}"
    name = f"{style.dim}{row.name}{style.reset}" if row.is_dim else row.name
    if row.address is None and not row.is_dim:
        name = f"{style.bold}{row.name}{style.reset}"
    location = f"  {style.dim}at {row.location}{style.reset}" if row.location else ""
    note = f"  {style.dim}[{row.note}]{style.reset}" if row.note else ""
    return f"{row.image:<{width}s}  {number}  {name}{location}{note}"


class PathName(Protocol):
    """An object with a path, as of :mod:`pathlib`."""

    def __fspath__(self) -> str:
        """Return the path."""


class Document:
    """Stacks, a profile or a report: HTML in notebooks, a file on request."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the text for notebooks."""
        return html(str(self))

    def save(self, path: str | PathName) -> None:
        """Write to a file, in the format of its suffix: ``app.html``, ``app.speedscope.json``.

        Raises:
            ArgumentError: no format has the suffix, or it has no place for the value.
            FileAccessError: the file cannot be written.
        """
        # The writers are above the model, and are loaded when they are used.
        import_module("machtrace.reports.files").save(self, path)


def html(text: str) -> str:
    """Return a text for notebooks: a disclosure element for each block, with its first line."""
    from html import escape  # its table of entities takes a millisecond

    blocks = [block for block in text.split("\n\n") if block]
    parts = []
    for number, block in enumerate(blocks):
        head, _, lines = block.partition("\n")
        if not lines:
            parts.append(f"<p><b>{escape(head)}</b></p>")
            continue
        is_open = not number or len(blocks) <= _OPEN_BLOCKS or "  crashed" in head
        parts.append(
            f"<details{' open' if is_open else ''}><summary><b>{escape(head)}</b></summary>"
            f'<pre style="line-height:1.3;overflow-x:auto">{escape(lines)}</pre></details>'
        )
    return f"<div>{''.join(parts)}</div>"


_OPEN_BLOCKS = 4
"""Blocks that are all shown; of more only the first one and those of crashed threads."""


def report_lines(report: Report) -> Iterator[str]:
    """Yield the incident, its cause, and all threads with their frames."""
    incident, system, thrown = report.incident, report.system, report.language_exception
    yield from _fact("Report", report.kind.value, incident.kind, incident.time)
    if report.watch is not None:
        yield from report.watch.lines()
    yield from _fact("System", system.model, system.os_name, system.os_build)
    if (cause := report.exception) is not None:
        codes = cause.subtype or cause.codes
        yield from _fact("Exception", cause.type, cause.signal, codes, cause.message)
    if (end := report.termination) is not None:
        yield from _fact("Termination", end.namespace, end.indicator, *end.reasons)
    if thrown is not None:
        yield from _fact("Uncaught exception", thrown.name, thrown.reason)
    yield from task_lines(report, report.kind.weight)
    if thrown is not None and thrown.frames:
        yield from ("", "Last exception", *reported_lines(thrown.frames, report.images))
    for task in report.others:
        yield from ("", *task_lines(task))


def task_lines(task: ReportedTask, weight: str = "sample") -> Iterator[str]:
    """Yield a reported process, and its threads with their frames.

    Args:
        task: the process.
        weight: the noun for what its trees count.
    """
    yield f"Process: {task.process}"
    for thread in task.threads:
        name = thread.name and f"“{thread.name}”"
        number = None if thread.id is None else f"id {thread.id}"
        queue = thread.queue and f"queue {thread.queue}"
        state = "crashed" if thread.crashed else None
        yield ""
        yield _words(f"Thread {thread.index}", name, number, queue, state)
        yield from reported_lines(thread.frames, task.images)
    for tree in task.trees:
        samples = counted(tree.root_samples if tree.count is None else tree.count, weight)
        name = tree.name and f"“{tree.name}”"
        yield ""
        yield _words("Sampled stacks", name, counted(len(tree.nodes), "frame"), samples)


def reported_lines(
    frames: Sequence[ReportedFrame], images: Sequence[ReportedImage]
) -> Iterator[str]:
    """Yield the lines of a report's frames; those of a recursion are folded."""
    texts = []
    for frame in frames:
        image = "???" if frame.image is None else printable(images[frame.image].name) or "?"
        name = "?" if frame.offset is None else f"? (image + {frame.offset:#x})"
        name = name if frame.symbol is None else printable(str(frame.symbol))
        place = frame.location
        location = "" if place is None else short_location(place.path, place.line)
        row = Row(image, frame.address, name, location, "inlined" if frame.is_inline else "")
        texts.append(FrameText((row,), row))
    yield from chain_lines([(0, texts)])


def _fact(name: str, *words: str | None) -> Iterator[str]:
    if text := _words(*words):
        yield f"{name}: {text}"


def _words(*words: str | None) -> str:
    return printable("  ".join(word for word in words if word))
