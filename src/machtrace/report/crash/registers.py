"""The lines of a thread's registers."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters

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
_NAMES = {"rflags": "rfl"}
_HALF_WORDS = frozenset({"cpsr", "esr"})
_ROW = 4


def flavor_name(flavor: str | None) -> str:
    """What the heading calls the state: ``ARM Thread State (64-bit)``."""
    text = flavor or ""
    family = "X86" if text.lower().startswith("x86") else "ARM"
    bits = "64" if "64" in text or family == "X86" else "32"
    return f"{family} Thread State ({bits}-bit)"


def register_lines(registers: ReportedRegisters) -> Iterator[str]:
    """Apple's rows; registers that it has no place for follow, four a row."""
    known = {register.name: register for register in registers.registers}
    is_x86 = "rip" in known
    margin = "" if is_x86 else " "
    for names in _X86_ROWS if is_x86 else _ARM_ROWS:
        row = [known.pop(name) for name in names if name in known]
        if row:
            yield margin + "".join(_text(register) for register in row)
    rest = list(known.values())
    for first in range(0, len(rest), _ROW):
        yield margin + "".join(_text(register) for register in rest[first : first + _ROW])


def _text(register: ReportedRegister) -> str:
    digits = 8 if register.name in _HALF_WORDS else 16
    name = _NAMES.get(register.name, register.name)
    said = "" if register.description is None else f" {register.description}"
    return f"{name:>5s}: 0x{register.value:0{digits}x}{said}"
