"""``threadState``: registers by name, the general ones of arm in a list."""

from __future__ import annotations

from typing import Any

from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters
from machtrace.reports.ips.values import WORD

_STATE_KEY = "threadState"
_LISTS = ("x", "r")
"""Of 64-bit and 32-bit arm."""


def read_state(thread: dict[str, Any]) -> ReportedRegisters | None:
    """The state of a thread, taken out of its object."""
    state = thread.get(_STATE_KEY)
    if not isinstance(state, dict):
        return None
    del thread[_STATE_KEY]
    rest: dict[str, Any] = dict(state)
    found: list[ReportedRegister] = []
    flavor = rest.pop("flavor") if isinstance(rest.get("flavor"), str) else None
    for name, value in state.items():
        if name in _LISTS and isinstance(value, list):
            general = [_register(f"{name}{number}", one) for number, one in enumerate(value)]
            known = [one for one in general if one is not None]
            if known and len(known) == len(general):
                found += known
                del rest[name]
        elif not _is_listed(name, state) and (register := _register(name, value)) is not None:
            found.append(register)
            del rest[name]
    return ReportedRegisters(registers=tuple(found), flavor=flavor, details=rest or NO_DETAILS)


def _is_listed(name: str, state: dict[str, Any]) -> bool:
    """Whether a register of this name is one of a list, and thus none where it is beside it."""
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
    said = description if isinstance(description, str) else None
    taken = ("value",) if said is None else ("value", "description")
    rest = {key: one for key, one in value.items() if key not in taken}
    return ReportedRegister(name, number, said, rest or NO_DETAILS)


def state_object(registers: ReportedRegisters) -> dict[str, JsonValue]:
    """The object that says the same."""
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
