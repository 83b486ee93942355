"""Frames that are nested in ``subFrames``, laid out in a row."""

from __future__ import annotations

from typing import NamedTuple

from machtrace.model.json_value import JsonValue
from machtrace.reports.consume import NO_OBJECT


class NestedFrame(NamedTuple):
    """A frame of a tree."""

    around: int | None
    """The index of the frame that it is nested in; None for a root."""
    entry: dict[str, JsonValue]
    """What is said of it, less what is nested in it."""


def laid_out(roots: JsonValue, warnings: list[str]) -> list[NestedFrame]:
    """All frames, outer ones before those in them, siblings in the file's order.

    Trees are tens of thousands of frames deep, hence without recursion.
    """
    found: list[NestedFrame] = []
    odd = 0
    waiting: list[tuple[int | None, JsonValue]] = [(None, one) for one in _reversed(roots)]
    while waiting:
        around, entry = waiting.pop()
        if not isinstance(entry, dict):
            odd += 1
            found.append(NestedFrame(around, {NO_OBJECT: entry}))
            continue
        inner = entry.get("subFrames")
        found.append(
            NestedFrame(
                around,
                {key: one for key, one in entry.items() if key != "subFrames"}
                if inner is None or isinstance(inner, list)
                else dict(entry),
            )
        )
        place = len(found) - 1
        waiting += ((place, one) for one in _reversed(inner))
    if odd:
        warnings.append(f"{odd} frames are no objects; they were kept as they are")
    return found


def _reversed(frames: JsonValue) -> list[JsonValue]:
    return frames[::-1] if isinstance(frames, list) else []


def is_chain(frames: list[NestedFrame]) -> bool:
    """Whether each is nested in the one before it."""
    return all(frame.around == (index - 1 if index else None) for index, frame in enumerate(frames))
