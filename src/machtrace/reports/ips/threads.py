"""``threads`` with ``threadState``, and frames, also those of ``lastExceptionBacktrace``.

A state has registers by name, arm's general ones in a list. ``inline`` marks calls inlined into the
next frame. ``symbolSource``, ``sourceColumn``, ``adjustment`` and ``address`` are ours, written if
Apple's keys alone would not give the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NO_DETAILS,
    Adjustment,
    JsonValue,
    NameSource,
    ReportedFrame,
    ReportedImage,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.ips.images import WORD, take_text, take_word

_ODD_FRAME = "frame"
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
                add(ReportedFrame(None, None, None, adjustment, details={_ODD_FRAME: entry}))
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
    elif _ODD_FRAME in rest:
        return frame._replace(details={_ODD_FRAME: entry})
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
    offset = frame.offset
    if own is None and address is not None:
        address = rest.pop("address")
        offset = offset or None
    elif type(own) is int and 0 <= own < WORD and own != address:
        address = Avma(rest.pop("address"))
        offset = offset or None
    return ReportedFrame(
        address,
        frame.image,
        offset,
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
    for each in frames:
        address, image, offset, adjustment, symbol, location, is_inline, details = each
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
        if details and image is None and address is None and _ODD_FRAME in details:
            entries.append(details[_ODD_FRAME])
            if isinstance(details[_ODD_FRAME], dict):
                usual = Adjustment.RETURN
            continue
        frame = _with_offset(each, bases)
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


def _with_offset(frame: ReportedFrame, bases: Sequence[int | None]) -> ReportedFrame:
    """Return the frame with the offset that its address has in its image, if that has a place."""
    address, image, offset = frame[:3]
    base = bases[image] if image is not None and image < len(bases) else None
    if offset is not None or address is None or not base or address < base:
        return frame
    return frame._replace(offset=ImageOffset(address - base))


def _is_elsewhere(frame: ReportedFrame, bases: Sequence[int | None]) -> bool:
    """Return whether image and offset do not give the address.

    There is no load address, or there are several, or the offset is unknown and 0 stands for it.
    """
    image, offset = frame.image, frame.offset
    if image is None or image >= len(bases):
        return False
    if offset is None:
        return True
    base = bases[image]
    if base is None or base + offset >= WORD:
        return frame.address is not None
    return frame.address != base + offset


def _object(frame: ReportedFrame, usual: Adjustment, absolute: int) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {}
    symbol, location = frame.symbol, frame.location
    if frame.image is not None:
        entry["imageOffset"] = frame.offset or 0
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


_STATE_KEY = "threadState"
_LISTS = ("x", "r")
"""The lists of 64-bit and 32-bit arm."""


def read_state(thread: dict[str, Any]) -> ReportedRegisters | None:
    """Consume the state from a thread's object."""
    state = thread.get(_STATE_KEY)
    if not isinstance(state, dict):
        return None
    del thread[_STATE_KEY]
    rest: dict[str, Any] = dict(state)
    registers: list[ReportedRegister] = []
    flavor = rest.pop("flavor") if isinstance(rest.get("flavor"), str) else None
    for name, value in state.items():
        if name in _LISTS and isinstance(value, list):
            general = [_register(f"{name}{number}", one) for number, one in enumerate(value)]
            known = [one for one in general if one is not None]
            if known and len(known) == len(general):
                registers += known
                del rest[name]
        elif not _is_listed(name, state) and (register := _register(name, value)) is not None:
            registers.append(register)
            del rest[name]
    return ReportedRegisters(registers=tuple(registers), flavor=flavor, details=rest or NO_DETAILS)


def _is_listed(name: str, state: dict[str, Any]) -> bool:
    """Return whether a list holds a register of this name, so that a separate entry is not one."""
    prefix, digits = name[:1], name[1:]
    return prefix in _LISTS and digits.isdecimal() and (digits == "0" or prefix in state)


def _register(name: str, value: JsonValue) -> ReportedRegister | None:
    if not isinstance(value, dict):
        return None
    number, description = value.get("value"), value.get("description")
    if type(number) is not int or not 0 <= number < WORD:
        return None
    if len(value) == 1:
        return ReportedRegister(name, number)
    text = description if isinstance(description, str) else None
    consumed = ("value",) if text is None else ("value", "description")
    rest = {key: one for key, one in value.items() if key not in consumed}
    return ReportedRegister(name, number, text, rest or NO_DETAILS)


def state_object(registers: ReportedRegisters) -> dict[str, JsonValue]:
    """Return the equivalent object."""
    state: dict[str, JsonValue] = {}
    lists: dict[str, list[JsonValue]] = {}
    for register in registers.registers:
        value: dict[str, JsonValue] = {"value": register.value}
        if register.description is not None:
            value["description"] = register.description
        if register.details:
            value |= register.details
        prefix, digits = register.name[:1], register.name[1:]
        general = lists.get(prefix, [])
        if prefix in _LISTS and digits == str(len(general)):
            general.append(value)
            lists[prefix] = general
            state[prefix] = general
        else:
            state[register.name] = value
    if registers.flavor is not None:
        state["flavor"] = registers.flavor
    return state | dict(registers.details)


_THREADS_KEY = "threads"
_ODD_THREAD = "thread"
"""The detail that stores an entry that is not a thread."""


def read_threads(
    body: dict[str, Any], frames: FrameReader, warnings: list[str]
) -> tuple[ReportedThread, ...]:
    """Read every thread; the innermost frame of each is its pc."""
    entries = body.get(_THREADS_KEY)
    if not isinstance(entries, list) or not entries:
        return ()
    del body[_THREADS_KEY]
    return tuple(_thread(index, one, frames, warnings) for index, one in enumerate(entries))


def _thread(
    index: int, entry: JsonValue, frames: FrameReader, warnings: list[str]
) -> ReportedThread:
    if not isinstance(entry, dict) or _ODD_THREAD in entry:
        warnings.append(f"threads[{index}] is not a thread; stored as is")
        return ReportedThread(index=index, details={_ODD_THREAD: entry})
    rest: dict[str, Any] = dict(entry)
    crashed = rest.get("triggered") is True
    if crashed:
        del rest["triggered"]
    stack: tuple[ReportedFrame, ...] = ()
    frames_value = rest.get("frames")
    if isinstance(frames_value, list) and frames_value:
        del rest["frames"]
        stack = frames.read(frames_value, innermost=Adjustment.EXACT, where=f"thread {index}")
    return ReportedThread(
        index=index,
        id=take_word(rest, "id"),
        name=take_text(rest, "name"),
        queue=take_text(rest, "queue"),
        crashed=crashed,
        registers=read_state(rest),
        frames=stack,
        details=rest or NO_DETAILS,
    )


def thread_object(
    thread: ReportedThread, absolute: int, bases: Sequence[int | None], *, is_of_ips: bool
) -> JsonValue:
    """Return the equivalent entry; ``absolute`` and ``bases`` as in :func:`frame_objects`."""
    if is_of_ips and _ODD_THREAD in thread.details:
        return thread.details[_ODD_THREAD]
    entry: dict[str, JsonValue] = {}
    if thread.crashed:
        entry["triggered"] = True
    if thread.id is not None:
        entry["id"] = thread.id
    if thread.name is not None:
        entry["name"] = thread.name
    if thread.registers is not None:
        entry["threadState"] = state_object(thread.registers)
    if thread.queue is not None:
        entry["queue"] = thread.queue
    if thread.frames or not is_of_ips:
        entry["frames"] = frame_objects(
            thread.frames,
            innermost=Adjustment.EXACT,
            absolute=absolute,
            bases=bases,
            is_of_ips=is_of_ips,
        )
    return entry | dict(thread.details)
