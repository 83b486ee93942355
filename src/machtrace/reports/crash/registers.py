"""Lines of a thread's registers, formatted and parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from machtrace.model.report import JsonValue, ReportedRegister, ReportedRegisters
from machtrace.reports.crash.lines import MAX_LINE_LENGTH
from machtrace.reports.json_writer import as_text
from machtrace.reports.log_lines import LINES

_ARM_ROWS: tuple[tuple[str, ...], ...] = (
    *(tuple(f"x{number}" for number in range(first, first + 4)) for first in range(0, 28, 4)),
    ("x28", "fp", "lr"),
    ("sp", "pc", "cpsr"),
    ("far", "esr"),
)
_X86_ROWS = (
    ("rax", "rbx", "rcx", "rdx"),
    ("rdi", "rsi", "rbp", "rsp"),
    ("r8", "r9", "r10", "r11"),
    ("r12", "r13", "r14", "r15"),
    ("rip", "rflags", "cr2"),
)
_ARM_32_ROWS = (
    *(tuple(f"r{number}" for number in range(first, first + 4)) for first in range(0, 12, 4)),
    ("ip", "sp", "lr", "pc"),
    ("cpsr",),
)
_SHOWN_AS = {"rflags": "rfl"}
_READ_AS = {"rfl": "rflags"}
_HALF_WORDS = frozenset({"cpsr", "esr"})
_OTHERWISE = ("cpu", "err", "trap")
_ROW = 4
_NAME_WIDTH = 4
_REGISTER = re.compile(
    r"(?<![0-9a-z])([a-z][a-z0-9_]{0,15}):[ ]?(0x[0-9a-fA-F]{1,16}|<unavailable>)"
)
_UNAVAILABLE = "<unavailable>"
_STATES = {
    "ARM Thread State (64-bit)": "ARM_THREAD_STATE64",
    "ARM Thread State (32-bit)": "ARM_THREAD_STATE",
    "X86 Thread State (64-bit)": "x86_THREAD_STATE",
    "X86 Thread State (32-bit)": "x86_THREAD_STATE32",
}
_ROSETTA = "rosetta"
_TEMPORARIES = ("tmp0", "tmp1", "tmp2")
_FAULT_LABELS = {"Logical CPU": "cpu", "Error Code": "err", "Trap Number": "trap"}
_HEXADECIMAL = 16
_TEXT = "text"
"""The detail of an error code whose digits lack ``0x``."""


_STATE_BY_REGISTER = {
    "rip": "X86 Thread State (64-bit)",
    "eip": "X86 Thread State (32-bit)",
    "x0": "ARM Thread State (64-bit)",
}


def state_name(registers: ReportedRegisters) -> str:
    """Return the heading's name of the state: ``ARM Thread State (64-bit)``.

    Registers without a flavor have that of their names.
    """
    flavor = registers.flavor
    if flavor is None:
        known = {register.name for register in registers.registers}
        of_names = (state for name, state in _STATE_BY_REGISTER.items() if name in known)
        return next(of_names, "ARM Thread State (32-bit)")
    if " " in flavor:
        return flavor
    family = "X86" if flavor.lower().startswith("x86") else "ARM"
    is_wide = "64" in flavor or (family == "X86" and "32" not in flavor)
    return f"{family} Thread State ({64 if is_wide else 32}-bit)"


def flavor_of(name: str) -> str:
    """Return the .ips name of a state from its name in a heading."""
    return _STATES.get(name, name)


def register_lines(registers: ReportedRegisters, *, in_order: bool = False) -> Iterator[str]:
    """Yield Apple's rows; other registers follow, four a row.

    With ``in_order``, registers in an order other than Apple's keep it.
    """
    known = {register.name: register for register in registers.registers}
    is_x86 = "rip" in known or registers.details.get("rip") == _UNAVAILABLE
    fault = {name: known.pop(name) for name in _OTHERWISE if name in known and is_x86}
    shown = [one for one in registers.registers if one.name not in fault]
    texts = _Texts(shown, registers, 8 if "(32-bit)" in state_name(registers) else 16)
    margin = "" if is_x86 else " "
    rows = _X86_ROWS if is_x86 else _ARM_32_ROWS if "r0" in known else _ARM_ROWS
    if in_order and not _is_in_rows(shown, rows):
        rows = ()
    for names in rows:
        row = texts.take(names)
        if row:
            yield margin + row
    for row in texts.rows():
        yield margin + row
    other = registers.details.get(LINES)
    yield from (as_text(line) for line in (other if isinstance(other, list) else ()))
    yield from _rosetta(registers.details.get(_ROSETTA))
    yield from _fault(fault)


def _is_in_rows(shown: Sequence[ReportedRegister], rows: tuple[tuple[str, ...], ...]) -> bool:
    """Return whether the registers are in the rows' order, described ones at the ends of rows."""
    names = {register.name for register in shown}
    places = {name: place for place, name in enumerate(name for row in rows for name in row)}
    ends = {next((name for name in reversed(row) if name in names), None) for row in rows}
    order = [places.get(register.name, len(places)) for register in shown]
    is_at_end = all(
        register.description is None or register.name in ends
        for register in shown
        if register.name in places
    )
    return order == sorted(order) and len(names) == len(shown) and is_at_end


class _Texts:
    """Registers as shown, in the report's order; a name may occur twice."""

    def __init__(
        self, shown: Sequence[ReportedRegister], registers: ReportedRegisters, digits: int
    ) -> None:
        self._texts = [(one.name, _text(one, digits), one.description) for one in shown]
        names = {one.name for one in shown}
        for name, value in registers.details.items():
            if value == _UNAVAILABLE and name not in names:
                self._texts.append((name, f"{_SHOWN_AS.get(name, name):>5s}: {value}", None))

    def take(self, names: Sequence[str]) -> str:
        """Consume a row of the present names."""
        texts = {name: text for name, text, _ in self._texts}
        self._texts = [one for one in self._texts if one[0] not in names]
        return "".join(texts[name] for name in names if name in texts)

    def rows(self) -> Iterator[str]:
        """Yield the remaining ones: four a row, or up to one with a description."""
        row: list[str] = []
        for _, text, description in self._texts:
            row.append(text)
            if description is not None or len(row) == _ROW:
                yield "".join(row)
                row = []
        if row:
            yield "".join(row)


def _text(register: ReportedRegister, digits: int) -> str:
    digits = 8 if register.name in _HALF_WORDS else digits
    name = _SHOWN_AS.get(register.name, register.name)
    meaning = "" if register.description is None else f" {register.description}"
    name = f" {name}" if len(name) > _NAME_WIDTH else name
    return f"{name:>5s}: 0x{register.value:0{digits}x}{meaning}"


def _rosetta(state: JsonValue) -> Iterator[str]:
    """Yield the lines of Rosetta's own state, below its registers."""
    if not isinstance(state, dict):
        return
    shown: list[str] = []
    for name in _TEMPORARIES:
        register = state.get(name)
        value = register.get("value") if isinstance(register, dict) else None
        if type(value) is int and value >= 0:
            shown.append(f"{name}: 0x{value:016x}")
    if shown:
        yield " " + " ".join(shown)
        yield ""
        yield ""


def _fault(fault: dict[str, ReportedRegister]) -> Iterator[str]:
    """Yield the processor's fault registers; the trap is described with the error code."""
    if not fault:
        return
    meaning = fault["trap"].description if "trap" in fault else None
    yield "  "
    if "cpu" in fault:
        yield f"Logical CPU:     {fault['cpu'].value}"
    if "err" in fault:
        own = fault["err"].description
        text = fault["err"].details.get(_TEXT)
        text = text if isinstance(text, str) else f"0x{fault['err'].value:08x}"
        yield f"Error Code:      {text} {meaning or own or ''}"
    if "trap" in fault:
        yield f"Trap Number:     {fault['trap'].value}"


def read_state(name: str, lines: Sequence[str]) -> ReportedRegisters:
    """Parse the state called ``name`` in its heading."""
    registers: list[ReportedRegister] = []
    details: dict[str, JsonValue] = {}
    other: list[JsonValue] = []
    for line in lines:
        row = [*_REGISTER.finditer(line)] if len(line) <= MAX_LINE_LENGTH else []
        if not row:
            other.append(line)
        for match in row:
            register, value = _READ_AS.get(match[1], match[1]), match[2]
            if value == _UNAVAILABLE:
                details[register] = value
            elif register in _TEMPORARIES:
                rosetta = details.setdefault(_ROSETTA, {})
                if isinstance(rosetta, dict):
                    rosetta[register] = {"value": int(value, 16)}
            else:
                registers.append(ReportedRegister(register, int(value, 16)))
        if row and registers and (description := line[row[-1].end() :].rstrip()).strip():
            registers[-1] = registers[-1]._replace(description=description.removeprefix(" "))
    if other:
        details[LINES] = other
    return ReportedRegisters(registers=tuple(registers), flavor=flavor_of(name), details=details)


def read_fault(label: str, value: str) -> tuple[ReportedRegister, str | None] | None:
    """Parse a fault register's line; the error code's describes the trap."""
    name = _FAULT_LABELS.get(label)
    digits, _, description = value.partition(" ")
    if name is None or not digits.isalnum() or len(digits) > _HEXADECIMAL + 2:
        return None
    try:
        number = int(digits, 16 if digits.startswith("0x") or name == "err" else 10)
    except ValueError:
        return None
    if name != "err" and description:
        return None
    is_bare = name == "err" and not digits.startswith("0x")  # some texts have bare digits
    details: dict[str, JsonValue] = {_TEXT: digits} if is_bare else {}
    return ReportedRegister(name, number, details=details), description or None
