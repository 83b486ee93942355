"""``threads`` and their ``threadState``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import Adjustment
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters, ReportedThread
from machtrace.report.ips.frames import frame_objects, read_frames
from machtrace.report.taking import Taking

_WORD = 1 << 64
_GENERAL = re.compile("x([0-9]{1,2})")


def read_threads(taking: Taking, images: Sequence[ReportedImage]) -> tuple[ReportedThread, ...]:
    """Every thread; the innermost frame of each is where it was."""
    return tuple(
        _thread(index, Taking.of(one, f"threads[{index}]", taking.warnings), images)
        for index, one in enumerate(taking.objects("threads"))
    )


def _thread(index: int, taking: Taking, images: Sequence[ReportedImage]) -> ReportedThread:
    return ReportedThread(
        index=index,
        id=taking.integer("id"),
        name=taking.text("name"),
        queue=taking.text("queue"),
        crashed=bool(taking.boolean("triggered")),
        registers=_registers(taking),
        frames=read_frames(
            taking.objects("frames"),
            images,
            innermost=Adjustment.EXACT,
            where=f"thread {index}",
            warnings=taking.warnings,
        ),
        details=taking.details(),
    )


def _registers(taking: Taking) -> ReportedRegisters | None:
    if not isinstance(taking.left.get("threadState"), dict):
        return None
    state = Taking.of(taking.left.pop("threadState"), taking.where, taking.warnings)
    found: list[ReportedRegister] = []
    flavor = state.text("flavor")
    for name in tuple(state.left):
        value = state.left[name]
        if name == "x" and isinstance(value, list):
            general = [_register(f"x{number}", one) for number, one in enumerate(value)]
            found += (one for one in general if one is not None)
            if all(one is not None for one in general):
                del state.left[name]
        elif (one := _register(name, value)) is not None:
            found.append(one)
            del state.left[name]
    return ReportedRegisters(registers=tuple(found), flavor=flavor, details=state.details())


def _register(name: str, value: JsonValue) -> ReportedRegister | None:
    if not isinstance(value, dict):
        return None
    number, description = value.get("value"), value.get("description")
    if type(number) is not int or not 0 <= number < _WORD:
        return None
    taken = {"value", "description"} if isinstance(description, str) else {"value"}
    return ReportedRegister(
        name,
        number,
        description if isinstance(description, str) else None,
        {key: one for key, one in value.items() if key not in taken},
    )


def thread_object(thread: ReportedThread, absolute: int) -> dict[str, JsonValue]:
    """The entry that says the same; ``absolute`` as in :func:`frame_objects`."""
    entry: dict[str, JsonValue] = {}
    if thread.crashed:
        entry["triggered"] = True
    if thread.id is not None:
        entry["id"] = thread.id
    if thread.name is not None:
        entry["name"] = thread.name
    if thread.registers is not None:
        entry["threadState"] = _state(thread.registers)
    if thread.queue is not None:
        entry["queue"] = thread.queue
    entry["frames"] = frame_objects(thread.frames, innermost=Adjustment.EXACT, absolute=absolute)
    return entry | dict(thread.details)


def _state(registers: ReportedRegisters) -> dict[str, JsonValue]:
    state: dict[str, JsonValue] = {}
    general: list[JsonValue] = []
    for register in registers.registers:
        value: dict[str, JsonValue] = {"value": register.value}
        if register.description is not None:
            value["description"] = register.description
        value |= register.details
        number = _GENERAL.fullmatch(register.name)
        if number is not None and int(number[1]) == len(general):
            general.append(value)
            state.setdefault("x", general)
        else:
            state[register.name] = value
    if registers.flavor is not None:
        state["flavor"] = registers.flavor
    return state | dict(registers.details)
