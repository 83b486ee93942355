"""Frames that a system left out because a function called itself again and again.

``recursionInfoArray`` of an .ips file says between which frames of the whole stack some were left
out, how often the function in ``keyFrame`` was in it, and ``originalLength`` how long it was. Texts
have a line after each frame of that function that is shown, and one for those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedThread
from machtrace.report.crash.frames import frame_text

_KEY = "recursionInfoArray"
_DASHES = "--------"


def elided(
    thread: ReportedThread, images: Sequence[ReportedImage]
) -> tuple[dict[int, list[str]], dict[int, int]]:
    """Lines that come before frames, and numbers of frames that do not follow those before."""
    between: dict[int, list[str]] = {}
    jumps: dict[int, int] = {}
    found = thread.details.get(_KEY)
    skipped = 0
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
        _levels(thread.frames, at, depth, key, images, between)
    return between, jumps


def _gap(one: JsonValue, most: int) -> tuple[int, int, int, tuple[int, int]] | None:
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


def _levels(
    frames: Sequence[ReportedFrame],
    at: int,
    depth: int,
    key: tuple[int, int],
    images: Sequence[ReportedImage],
    between: dict[int, list[str]],
) -> None:
    """Lines for the frames of the function, and for those of it that are left out."""
    places = [index for index, frame in enumerate(frames) if (frame.image, frame.offset) == key]
    before = [index for index in places if index < at]
    after = [index for index in places if index >= at]
    for level, index in enumerate(before):
        between.setdefault(index + 1, []).append(f"{_DASHES} RECURSION LEVEL {depth - level}")
    for level, index in enumerate(after):
        line = f"{_DASHES} RECURSION LEVEL {len(after) - level}"
        between.setdefault(index + 1, []).append(line)
    count = depth - len(before) - len(after)
    known = frame_text(frames[places[0]], images) if places else "???"
    between.setdefault(at, []).extend(
        [_DASHES, f"{_DASHES} ELIDED {count} LEVELS OF RECURSION THROUGH {known}", _DASHES]
    )
