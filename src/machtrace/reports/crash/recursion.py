"""Frames that a system left out because a function called itself again and again.

``recursionInfoArray`` of an .ips file says between which frames of the whole stack some were left
out, how often the function in ``keyFrame`` was in it, and ``originalLength`` how long it was. Texts
have a line after each frame of that function that is shown, and one for those that are not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedThread
from machtrace.reports.crash.frames import frame_text

_KEY = "recursionInfoArray"
_DASHES = "--------"
_Place: TypeAlias = tuple[int, int]
"""An image, and the offset in it."""


def elided(
    thread: ReportedThread, images: Sequence[ReportedImage]
) -> tuple[dict[int, list[str]], dict[int, int]]:
    """Lines that come before frames, and numbers of frames that do not follow those before."""
    between: dict[int, list[str]] = {}
    jumps: dict[int, int] = {}
    found = thread.details.get(_KEY)
    skipped = 0
    places = _places(thread.frames) if isinstance(found, list) else {}
    told: set[_Place] = set()
    for one in found if isinstance(found, list) else ():
        gap = _gap(one, len(thread.frames) + skipped)
        if gap is None:
            continue
        hottest, coldest, depth, key = gap
        at = hottest - skipped
        if at in jumps or not 0 <= at <= len(thread.frames):
            continue
        skipped += coldest - hottest + 1
        jumps[at] = coldest + 1
        its_places = places.get(key, [])
        left_out = depth - len(its_places)
        if key not in told:  # another part of the same that is left out has the same levels
            told.add(key)
            _levels(its_places, at, depth, between)
        known = frame_text(thread.frames[its_places[0]], images) if its_places else "???"
        between.setdefault(at, []).extend(
            [_DASHES, f"{_DASHES} ELIDED {left_out} LEVELS OF RECURSION THROUGH {known}", _DASHES]
        )
    return between, jumps


def _places(frames: Sequence[ReportedFrame]) -> dict[_Place, list[int]]:
    """Where in a stack each place of the program is."""
    found: dict[_Place, list[int]] = {}
    for index, frame in enumerate(frames):
        if frame.image is not None and frame.offset is not None:
            found.setdefault((frame.image, frame.offset), []).append(index)
    return found


def _gap(one: JsonValue, most: int) -> tuple[int, int, int, _Place] | None:
    if not isinstance(one, dict) or not isinstance(one.get("keyFrame"), dict):
        return None
    frame = one["keyFrame"]
    numbers = (one.get("hottestElided"), one.get("coldestElided"), one.get("depth"))
    place = (frame.get("imageIndex"), frame.get("imageOffset")) if isinstance(frame, dict) else ()
    known = [one for one in (*numbers, *place) if type(one) is int]
    if len(known) != 5:  # noqa: PLR2004 - all of them
        return None
    hottest, coldest, depth, index, offset = known
    is_right = 0 < hottest <= min(coldest, most)
    return (hottest, coldest, depth, (index, offset)) if is_right else None


def _levels(places: list[int], at: int, depth: int, between: dict[int, list[str]]) -> None:
    """A line after each frame of the function: those before what is left out, and those after."""
    before = bisect_left(places, at)
    for level, index in enumerate(places):
        left = depth - level if level < before else len(places) - level
        between.setdefault(index + 1, []).append(f"{_DASHES} RECURSION LEVEL {left}")
