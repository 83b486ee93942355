"""Frames of threads and of ``lastExceptionBacktrace``.

``inline`` marks calls that were inlined into the next frame. ``symbolSource``, ``sourceColumn``
and ``adjustment`` are ours, written where a value is not what Apple's keys alone would say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.reported_frame import (
    Adjustment,
    NameSource,
    ReportedFrame,
    ReportedSymbol,
)
from machtrace.model.reported_image import ReportedImage
from machtrace.model.symbol import SourceLocation

_WORD = 1 << 64
_KNOWN = frozenset({"imageIndex", "imageOffset", "symbol", "symbolLocation"})
_ADJUSTMENTS = {one.value: one for one in Adjustment}
_SOURCES = {one.value: one for one in NameSource}


def read_frames(
    entries: Sequence[JsonValue],
    images: Sequence[ReportedImage],
    *,
    innermost: Adjustment,
    where: str,
    warnings: list[str],
) -> tuple[ReportedFrame, ...]:
    """The frames of a stack, innermost first as the file has them.

    Args:
        entries: the list of the file.
        images: what ``imageIndex`` counts.
        innermost: what the first frame's address is; the others' are return addresses.
        where: what to call the stack in warnings.
        warnings: where to put them.
    """
    frames: list[ReportedFrame] = []
    adjustment = innermost
    bad = 0
    for entry in entries:
        if not isinstance(entry, dict):
            bad += 1
            frames.append(ReportedFrame(None, None, None, adjustment, details={"frame": entry}))
            continue
        frame = _frame(entry, images, adjustment)
        bad += frame.image is None
        frames.append(frame)
        if not frame.is_inline:
            adjustment = Adjustment.RETURN
    if bad:
        warnings.append(f"{where}: {bad} of {len(frames)} frames name no image of the list")
    return tuple(frames)


def _frame(
    entry: dict[str, Any], images: Sequence[ReportedImage], adjustment: Adjustment
) -> ReportedFrame:
    index, offset = entry.get("imageIndex"), entry.get("imageOffset")
    if not (
        type(index) is int
        and type(offset) is int
        and 0 <= index < len(images)
        and 0 <= offset < _WORD
    ):
        return ReportedFrame(None, None, None, adjustment, details=dict(entry))
    base = images[index].load_address
    address = None if base is None or base + offset >= _WORD else Avma(base + offset)
    name, into = entry.get("symbol"), entry.get("symbolLocation")
    symbol = None
    used = 2
    if isinstance(name, str):
        into = into if type(into) is int else None
        symbol = ReportedSymbol(name, into)
        used += 1 if into is None else 2
    if used == len(entry):
        return ReportedFrame(address, index, ImageOffset(offset), adjustment, symbol)
    frame = ReportedFrame(address, index, ImageOffset(offset), adjustment, symbol)
    known = _KNOWN if used == len(_KNOWN) else _KNOWN - {"symbolLocation"}
    known = known if symbol is not None else known - {"symbol", "symbolLocation"}
    return _with_rest(frame, {key: one for key, one in entry.items() if key not in known})


def _with_rest(frame: ReportedFrame, rest: dict[str, Any]) -> ReportedFrame:
    """The frame with what is less often there."""
    location = None
    if isinstance(rest.get("sourceFile"), str):
        line, column = _place(rest, "sourceLine"), _place(rest, "sourceColumn")
        location = SourceLocation(rest.pop("sourceFile"), line, column)
    is_inline = rest.get("inline") is True
    if is_inline:
        del rest["inline"]
    symbol, adjustment = frame.symbol, frame.adjustment
    if symbol is not None and rest.get("symbolSource") in _SOURCES:
        symbol = symbol._replace(source=_SOURCES[rest.pop("symbolSource")])
    if rest.get("adjustment") in _ADJUSTMENTS:
        adjustment = _ADJUSTMENTS[rest.pop("adjustment")]
    return frame._replace(
        adjustment=adjustment,
        symbol=symbol,
        location=location,
        is_inline=is_inline,
        details=rest or NO_DETAILS,
    )


def _place(rest: dict[str, Any], key: str) -> int | None:
    value = rest.get(key)
    if type(value) is int and 0 < value < _WORD:
        del rest[key]
        return value
    return None


def frame_objects(
    frames: Iterable[ReportedFrame], *, innermost: Adjustment, absolute: int
) -> list[JsonValue]:
    """The list that says the same.

    Args:
        frames: of one stack, innermost first.
        innermost: what the first frame's address is where nothing says otherwise.
        absolute: which entry of the images stands for none.
    """
    entries: list[JsonValue] = []
    usual = innermost
    for frame in frames:
        if "frame" in frame.details and frame.image is None and frame.address is None:
            entries.append(frame.details["frame"])
            continue
        entries.append(_object(frame, usual, absolute))
        if not frame.is_inline:
            usual = Adjustment.RETURN
    return entries


def _object(frame: ReportedFrame, usual: Adjustment, absolute: int) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {}
    if frame.offset is not None and frame.image is not None:
        entry |= {"imageOffset": frame.offset, "imageIndex": frame.image}
    elif frame.address is not None:
        entry |= {"imageOffset": frame.address, "imageIndex": absolute}
    entry |= _name_object(frame)
    if frame.is_inline:
        entry["inline"] = True
    if frame.adjustment is not usual:
        entry["adjustment"] = frame.adjustment.value
    return entry | dict(frame.details) if frame.details else entry


def _name_object(frame: ReportedFrame) -> dict[str, JsonValue]:
    symbol, location = frame.symbol, frame.location
    entry: dict[str, JsonValue] = {}
    if symbol is not None:
        entry["symbol"] = symbol.name
        if symbol.offset is not None:
            entry["symbolLocation"] = symbol.offset
        if symbol.source is not NameSource.REPORT:
            entry["symbolSource"] = symbol.source.value
    if location is not None:
        entry["sourceFile"] = location.path
        if location.line is not None:
            entry["sourceLine"] = location.line
        if location.column is not None:
            entry["sourceColumn"] = location.column
    return entry
