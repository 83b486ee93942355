"""Frames of threads and of ``lastExceptionBacktrace``.

``inline`` marks calls inlined into the next frame. ``symbolSource``, ``sourceColumn``,
``adjustment`` and ``address`` are ours, written if Apple's keys alone would not give the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from machtrace.model.address import Avma
from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.report import (
    Adjustment,
    NameSource,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.ips.images import WORD

_ODD = "frame"
"""The detail that stores an entry that is not a frame."""
_NAMED = 4
_UNNAMED = 2
_ADJUSTMENTS = {one.value: one for one in Adjustment}
_SOURCES = {one.value: one for one in NameSource if one is not NameSource.REPORT}


class FrameReader:
    """Reads the frames of one report's stacks."""

    def __init__(self, images: Sequence[ReportedImage], warnings: list[str]) -> None:
        self._bases = [image.load_address for image in images]
        self._warnings = warnings

    def read(
        self, entries: Sequence[JsonValue], *, innermost: Adjustment, where: str
    ) -> tuple[ReportedFrame, ...]:
        """Read the frames of a stack, innermost first as in the file.

        Args:
            entries: the file's list.
            innermost: the first frame's kind of address; others are return addresses.
            where: how warnings name the stack.
        """
        frames: list[ReportedFrame] = []
        add = frames.append
        new = tuple.__new__
        bases = self._bases
        count = len(bases)
        adjustment = innermost
        returned, reported = Adjustment.RETURN, NameSource.REPORT
        wrong = 0
        for entry in entries:
            if not isinstance(entry, dict):
                wrong += 1
                add(ReportedFrame(None, None, None, adjustment, details={_ODD: entry}))
                continue
            index, offset = entry.get("imageIndex"), entry.get("imageOffset")
            if (
                type(index) is int
                and type(offset) is int
                and 0 <= index < count
                and 0 <= offset < WORD
            ):
                base = bases[index]
                address = None if base is None or base + offset >= WORD else base + offset
                symbol = None
                size = len(entry)
                if size == _NAMED:
                    name, into = entry.get("symbol"), entry.get("symbolLocation")
                    if type(name) is str and type(into) is int:
                        symbol = new(ReportedSymbol, (name, into, reported))
                # Most frames have nothing else. Tuples are made directly: calling the class takes
                # twice as long.
                frame = new(
                    ReportedFrame,
                    (address, index, offset, adjustment, symbol, None, False, NO_DETAILS),
                )
                if symbol is not None or size == _UNNAMED:
                    add(frame)
                    adjustment = returned
                    continue
                frame = _with_rest(frame, entry)
            else:
                wrong += 1
                frame = _with_rest(ReportedFrame(None, None, None, adjustment), entry)
            add(frame)
            if not frame.is_inline:
                adjustment = returned
        if wrong:
            text = f"{where}: {wrong} of {len(frames)} frames name no image of the list"
            self._warnings.append(text)
        return tuple(frames)


def _with_rest(frame: ReportedFrame, entry: dict[str, Any]) -> ReportedFrame:
    """Return the frame with everything else in its entry."""
    rest = dict(entry)
    if frame.image is not None:
        del rest["imageIndex"], rest["imageOffset"]
    elif _ODD in rest:
        return frame._replace(details={_ODD: entry})
    symbol, location, adjustment = None, None, frame.adjustment
    if isinstance(rest.get("symbol"), str):
        into = rest.pop("symbolLocation") if type(rest.get("symbolLocation")) is int else None
        symbol = ReportedSymbol(rest.pop("symbol"), into)
        source = rest.get("symbolSource")
        if isinstance(source, str) and source in _SOURCES:
            symbol = symbol._replace(source=_SOURCES[rest.pop("symbolSource")])
    # Apple's text omits a file without a line, as for calls into C++ templates.
    if isinstance(rest.get("sourceFile"), str) and (
        "sourceLine" in rest or "symbolSource" in entry
    ):
        line, column = _place(rest, "sourceLine"), _place(rest, "sourceColumn")
        location = SourceLocation(rest.pop("sourceFile"), line, column)
    is_inline = rest.get("inline") is True
    if is_inline:
        del rest["inline"]
    reported_adjustment = rest.get("adjustment")
    known = _ADJUSTMENTS.get(reported_adjustment) if isinstance(reported_adjustment, str) else None
    if known is not None and known is not adjustment:
        adjustment = known
        del rest["adjustment"]
    address = frame.address
    own = rest.get("address", address)
    if own is None and address is not None:
        address = rest.pop("address")
    elif type(own) is int and 0 <= own < WORD and own != address:
        address = Avma(rest.pop("address"))
    return ReportedFrame(
        address,
        frame.image,
        frame.offset,
        adjustment,
        symbol,
        location,
        is_inline,
        rest or NO_DETAILS,
    )


def _place(rest: dict[str, Any], key: str) -> int | None:
    value = rest.get(key)
    if type(value) is int and 0 < value < WORD:
        del rest[key]
        return value
    return None


def frame_objects(
    frames: Iterable[ReportedFrame],
    *,
    innermost: Adjustment,
    absolute: int,
    bases: Sequence[int | None] = (),
    is_of_ips: bool = False,
) -> list[JsonValue]:
    """Return the equivalent list.

    Args:
        frames: of one stack, innermost first.
        innermost: the first frame's default kind of address.
        absolute: the index of the image that stands for none.
        bases: the written load addresses; a frame elsewhere has its address.
        is_of_ips: whether to add nothing to the source; else every frame has a location.
    """
    entries: list[JsonValue] = []
    usual = innermost
    count = len(bases)
    for frame in frames:
        address, image, offset, adjustment, symbol, location, is_inline, details = frame
        if (  # as nearly all are
            image is not None
            and image < count
            and offset is not None
            and address is not None
            and address - offset == bases[image]
            and adjustment is usual
            and not details
        ):
            entries.append(_usual_object(image, offset, symbol, location, is_inline=is_inline))
            if not is_inline:
                usual = Adjustment.RETURN
            continue
        if details and frame.image is None and frame.address is None and _ODD in details:
            entries.append(details[_ODD])
            if isinstance(details[_ODD], dict):
                usual = Adjustment.RETURN
            continue
        entry = _object(frame, usual, absolute)
        if not is_of_ips and "imageIndex" not in entry:
            entry |= {"imageOffset": 0, "imageIndex": absolute, "address": None}
        elif _is_elsewhere(frame, bases):
            entry["address"] = frame.address
        entries.append(entry)
        if not frame.is_inline:
            usual = Adjustment.RETURN
    return entries


def _usual_object(
    image: int,
    offset: int,
    symbol: ReportedSymbol | None,
    location: SourceLocation | None,
    *,
    is_inline: bool,
) -> dict[str, JsonValue]:
    """Return :func:`_object` of a frame at its image and offset, without details."""
    entry: dict[str, JsonValue] = {"imageOffset": offset}
    if symbol is not None:
        name, into, source = symbol
        entry["symbol"] = name
        if into is not None:
            entry["symbolLocation"] = into
        if source is not NameSource.REPORT:
            entry["symbolSource"] = source._value_  # .value takes as long as all the rest
    entry["imageIndex"] = image
    if location is not None:
        _put_location(entry, location)
    if is_inline:
        entry["inline"] = True
    return entry


def _put_location(entry: dict[str, JsonValue], location: SourceLocation) -> None:
    entry["sourceFile"] = location.path
    if location.line is not None:
        entry["sourceLine"] = location.line
    if location.column is not None:
        entry["sourceColumn"] = location.column


def _is_elsewhere(frame: ReportedFrame, bases: Sequence[int | None]) -> bool:
    """Return whether image and offset do not give the address: no load address, or several."""
    image, offset = frame.image, frame.offset
    if image is None or offset is None or image >= len(bases):
        return False
    base = bases[image]
    if base is None or base + offset >= WORD:
        return frame.address is not None
    return frame.address != base + offset


def _object(frame: ReportedFrame, usual: Adjustment, absolute: int) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {}
    symbol, location = frame.symbol, frame.location
    if frame.offset is not None and frame.image is not None:
        entry["imageOffset"] = frame.offset
        if symbol is not None:
            _put_symbol(entry, symbol)
        entry["imageIndex"] = frame.image
    else:
        if frame.address is not None:
            entry["imageOffset"] = frame.address
            entry["imageIndex"] = absolute
        if symbol is not None:
            _put_symbol(entry, symbol)
    if location is not None:
        _put_location(entry, location)
    if frame.is_inline:
        entry["inline"] = True
    if frame.adjustment is not usual:
        entry["adjustment"] = frame.adjustment.value
    return entry | dict(frame.details) if frame.details else entry


def _put_symbol(entry: dict[str, JsonValue], symbol: ReportedSymbol) -> None:
    entry["symbol"] = symbol.name
    if symbol.offset is not None:
        entry["symbolLocation"] = symbol.offset
    if symbol.source is not NameSource.REPORT:
        entry["symbolSource"] = symbol.source.value
