"""``threads``, and ``threadState``: registers by name, arm's general ones in a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.report import (
    Adjustment,
    ReportedFrame,
    ReportedRegister,
    ReportedRegisters,
    ReportedThread,
)
from machtrace.reports.ips.frames import FrameReader, frame_objects
from machtrace.reports.ips.images import WORD, take_text, take_word

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
_ODD = "thread"
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
    if not isinstance(entry, dict) or _ODD in entry:
        warnings.append(f"threads[{index}] is not a thread; stored as is")
        return ReportedThread(index=index, details={_ODD: entry})
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
    if is_of_ips and _ODD in thread.details:
        return thread.details[_ODD]
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
