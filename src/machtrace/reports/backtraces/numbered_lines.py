"""Which lines with a number, a name and an address are frames, and of which stack.

Lines of logs and tables may have these, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from machtrace.model.text import printable
from machtrace.reports.stacks.captures import frames_not_shown

if TYPE_CHECKING:
    from machtrace.reports.backtraces.nsthread import StackLine


class Likeness(IntEnum):
    """How much a line is like a frame's."""

    POOR = 0
    """Without columns and a likely address: a frame between frames with the adjacent numbers."""
    COLUMNS = 1
    """Apple's columns: a frame directly below that with the number before."""
    ADDRESS = 2
    """A likely address: a frame in a stack, also behind a gap in the numbers."""
    LIKELY = 3
    """An image and a function, too: several are a stack."""
    USUAL = 4
    """A frame wherever it stands."""


Parsed: TypeAlias = tuple[str, "tuple[StackLine, ...]"]


class Stacks(NamedTuple):
    """Lines with the frames of stacks alone."""

    lines: list[Parsed]
    warnings: tuple[str, ...] = ()


class _Placed(NamedTuple):
    place: int
    line: StackLine
    is_next: bool
    """Whether it stands directly below another."""


_ELLIPSIS = " \t.…[]()"
_MAX_SHOWN, _MAX_SHOWN_LENGTH = 3, 60


def in_stacks(lines: Iterable[Parsed]) -> Stacks:
    """Return the lines without what is like a frame but in no stack.

    In a stack a frame has the next number, or a higher one directly below a frame, an empty line or
    an ellipsis.
    """
    parsed = [*lines]
    runs: list[list[_Placed]] = []
    others: list[_Placed] = []
    poor: list[_Placed] = []
    is_below = is_next = False
    for place, (text, frames) in enumerate(parsed):
        for frame in frames:
            placed = _Placed(place, frame, is_next)
            is_next = True
            if frame.likeness is Likeness.POOR:
                poor.append(placed)
                continue
            (runs[-1] if runs and _is_between(runs[-1][-1], poor, frame) else others).extend(poor)
            poor = []
            if not runs or not _follows(frame, runs[-1][-1].line.number, is_below=is_below):
                runs.append([])
            runs[-1].append(placed)
            is_below = True
        is_empty = not text.strip(_ELLIPSIS) or bool(frames_not_shown(text))
        is_below = any(frame.likeness is not Likeness.POOR for frame in frames) or (
            is_below and is_empty
        )
        is_next = bool(frames)
    others += poor
    for run in runs:
        if not _is_stack([placed.line for placed in run]):
            others += run
    left_out = {id(placed.line) for placed in others}
    for place in {placed.place for placed in others}:
        text, frames = parsed[place]
        parsed[place] = text, tuple(frame for frame in frames if id(frame) not in left_out)
    return Stacks(parsed, tuple(_warnings(parsed, others)))


def _is_between(last: _Placed, poor: Sequence[_Placed], frame: StackLine) -> bool:
    number = last.line.number
    if number is None or not poor:
        return False
    numbers = [*(placed.line.number for placed in poor), frame.number]
    return numbers == [*range(number + 1, number + 1 + len(numbers))]


def _follows(frame: StackLine, last: int | None, *, is_below: bool) -> bool:
    if frame.number is None or last is None:
        return False
    if frame.likeness < Likeness.ADDRESS:
        return is_below and frame.number == last + 1
    return frame.number == last + 1 or (is_below and frame.number > last)


def _is_stack(run: Sequence[StackLine]) -> bool:
    """Return whether frames are a stack: one is usual, or two are likely, or the first is printed.

    The start of a stack may be missing.
    """
    if any(frame.likeness is Likeness.USUAL for frame in run):
        return True
    likely = [frame.number or 0 for frame in run if frame.likeness is Likeness.LIKELY]
    if any(above + 1 == number for above, number in pairwise(likely)):
        return True
    return likely[:1] == [0] and run[0].is_in_columns


def _warnings(parsed: Sequence[Parsed], others: Iterable[_Placed]) -> Iterable[str]:
    """Yield a warning if lines beside a stack may be its frames and are not taken.

    They are likely frames, or directly below one.
    """
    near = {place for place, (_, frames) in enumerate(parsed) if frames}
    passed: dict[int, None] = {}
    for place, line, is_next in sorted(others, key=lambda placed: placed.place) if near else ():
        is_near = is_next and (place in near or place - 1 in near)
        if is_near or line.likeness is Likeness.LIKELY:
            near.add(place)
            passed[place] = None
    if passed:
        shown = [printable(parsed[place][0].strip()[:_MAX_SHOWN_LENGTH]) for place in passed]
        more = ["…"] if len(shown) > _MAX_SHOWN else []
        quoted = ", ".join([*(f"{text!r}" for text in shown[:_MAX_SHOWN]), *more])
        yield f"lines like frames, but in no stack: {quoted}"
