"""A stub's registers and their offsets: as it describes them, never assumed.

Sources: *Debugging with GDB*, "Target Description Format" (``target.xml``, whose ``<reg>`` take
the next number where they state none, and lie in ``g`` consecutively by number); lldb's
``docs/resources/lldbgdbremote.md``, "qRegisterInfo", whose attributes (``offset``,
``dwarf_regnum``, ``generic``) its stubs put into ``target.xml`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from machtrace.errors import RemoteProtocolError
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet
from machtrace.targets.gdbremote.replies import parse_pairs
from machtrace.targets.gdbremote.xml_documents import Element, elements

_MAX_REGISTERS = 4096
_MAX_BITS = 1 << 16
"""Bits of a register: no machine has any that long."""
_MAX_INCLUDES = 64
_GENERIC = {"sp": "sp", "fp": "fp", "ra": "lr"}


class RemoteRegister(NamedTuple):
    """One register of a stub."""

    name: str
    number: int
    """The register's number in ``p`` and stop replies."""
    size: int
    """In bytes."""
    offset: int | None
    """Where it begins in a reply to ``g``, in bytes; None for one that is a part of another."""
    dwarf: int | None = None
    """Its DWARF number, where the stub states one."""
    generic: str = ""
    """``pc``, ``sp``, ``fp`` or ``ra``, if the stub states it."""
    other_name: str = ""


@dataclass(frozen=True, slots=True)
class RegisterTable:
    """All registers of a stub, and its description of the machine."""

    registers: tuple[RemoteRegister, ...]
    architecture: str = ""
    """The name in ``target.xml``, such as ``i386:x86-64``; empty if unknown."""
    system: str = ""
    """``osabi``, such as ``GNU/Linux``."""

    def find(self, *names: str) -> RemoteRegister | None:
        """Find the first register with any of these names."""
        return next((register for register in self.registers if register.name in names), None)


def parse_register_documents(read: Callable[[str], bytes | None]) -> RegisterTable | None:
    """Parse the registers in ``target.xml`` and its includes; None if they have none.

    Args:
        read: a document of the stub's by name; None where it has no such.

    Raises:
        RemoteProtocolError: a document makes no sense.
    """
    first = read("target.xml")
    if first is None:
        return None
    elements: list[Element] = []
    left = [_MAX_INCLUDES]
    _include("target.xml", first, read, elements, left)
    registers: list[RemoteRegister] = []
    number = 0
    for element in elements:
        if element.name != "reg":
            continue
        register = _of_element(element, number)
        registers.append(register)
        number = register.number + 1
        if len(registers) > _MAX_REGISTERS:
            raise _senseless("target.xml", f"more than {_MAX_REGISTERS} registers")
    return RegisterTable(
        _placed(registers),
        next((e.text.strip() for e in elements if e.name == "architecture"), ""),
        next((e.text.strip() for e in elements if e.name == "osabi"), ""),
    )


def _include(
    name: str,
    document: bytes,
    read: Callable[[str], bytes | None],
    collected: list[Element],
    left: list[int],
) -> None:
    for element in elements(document, name):
        if element.name.rpartition(":")[2] != "include":
            collected.append(element)
            continue
        left[0] -= 1
        if left[0] < 0:
            raise _senseless(name, f"more than {_MAX_INCLUDES} includes")
        inner = element.attributes.get("href", "")
        included = read(inner) if inner else None
        if included is not None:
            _include(inner, included, read, collected, left)


def parse_register_info(read: Callable[[int], bytes]) -> RegisterTable | None:
    """Parse the replies to ``qRegisterInfo``; None if they have no registers.

    Args:
        read: the reply for a number.
    """
    registers: list[RemoteRegister] = []
    for number in range(_MAX_REGISTERS):
        pairs = parse_pairs(read(number))
        name, size = pairs.get("name", ""), _number(pairs.get("bitsize", ""))
        if not name or size is None or size > _MAX_BITS:
            break
        whole = "container-regs" not in pairs
        registers.append(
            RemoteRegister(
                name,
                number,
                size // 8,
                _number(pairs.get("offset", "")) if whole else None,
                _number(pairs.get("dwarf", pairs.get("ehframe", pairs.get("gcc", "")))),
                pairs.get("generic", ""),
                pairs.get("alt-name", ""),
            )
        )
    return RegisterTable(_placed(registers)) if registers else None


def _of_element(element: Element, following: int) -> RemoteRegister:
    facts = element.attributes
    size = _number(facts.get("bitsize", ""))
    number = _number(facts.get("regnum", "")) if "regnum" in facts else following
    if size is None or size > _MAX_BITS or number is None or number > _MAX_BITS:
        raise _senseless("target.xml", f"register {facts.get('name', '')!r} of no size")
    return RemoteRegister(
        facts.get("name", ""),
        number,
        size // 8,
        None if _is_part(facts) else _number(facts.get("offset", "")),
        _number(facts.get("dwarf_regnum", facts.get("ehframe_regnum", ""))),
        facts.get("generic", ""),
        facts.get("altname", ""),
    )


def _is_part(facts: Mapping[str, str]) -> bool:
    return "value_regnums" in facts


def _placed(registers: Iterable[RemoteRegister]) -> tuple[RemoteRegister, ...]:
    """``registers`` by number; where none states an offset, one lies behind the other."""
    ordered = sorted(registers, key=lambda register: register.number)
    if any(register.offset is not None for register in ordered):
        return tuple(ordered)
    placed: list[RemoteRegister] = []
    at = 0
    for register in ordered:
        placed.append(register._replace(offset=at))
        at += register.size
    return tuple(placed)


def dwarf_numbers(table: RegisterTable, arch: Arch) -> dict[int, int]:
    """DWARF numbers by the stub's own, of the registers that walks know; pc is not among them.

    Names count for more than stated numbers: on i386 Darwin's differ from everybody else's.
    """
    names = {name: number for number, name in enumerate(arch.registers.names) if name}
    numbers = arch.registers
    names |= _ALIASES.get(arch.registers.names[0], {})
    generic = {"sp": numbers.sp, "fp": numbers.fp, "lr": numbers.lr}
    by_stub: dict[int, int] = {}
    for register in table.registers:
        number = names.get(register.name.lower(), names.get(register.other_name.lower()))
        if number is None and register.generic in _GENERIC:
            number = generic[_GENERIC[register.generic]]
        if number is not None and register.size <= _WIDEST and number not in by_stub.values():
            by_stub[register.number] = number
    return by_stub


_FLAGS = frozenset({"rflags", "eflags", "cpsr", "fs_base", "gs_base"})
_FAULTS = frozenset({"far", "esr", "exception", "trapno", "err", "faultvaddr"})
_WIDEST = 8
"""Bytes of a general register; vectors are left out."""
_ALIASES: Mapping[str, Mapping[str, int]] = {
    "x0": {"x29": 29, "x30": 30, "x31": 31},
    "r0": {"r13": 13, "r14": 14, "r15": 15, "lr": 14, "sp": 13, "pc": 15},
}


def program_counter(table: RegisterTable, arch: Arch) -> RemoteRegister | None:
    """Return the register that has the program counter."""
    generic = next((register for register in table.registers if register.generic == "pc"), None)
    names = {"x86_64": ("rip",), "i386": ("eip",)}.get(arch.value, ("pc", "r15", "rip"))
    return generic or table.find(*names)


@dataclass(frozen=True, slots=True)
class RegisterReader:
    """Makes register sets of what a stub sends."""

    table: RegisterTable
    arch: Arch
    pc: RemoteRegister
    dwarf: Mapping[int, int]
    """By the stub's numbers."""

    @classmethod
    def of(cls, table: RegisterTable, arch: Arch) -> RegisterReader:
        """For a table of a machine.

        Raises:
            RemoteProtocolError: it has no program counter, or no stack pointer.
        """
        pc, dwarf = program_counter(table, arch), dwarf_numbers(table, arch)
        if pc is None or arch.registers.sp not in dwarf.values():
            missing = "program counter" if pc is None else "stack pointer"
            raise _senseless("registers", f"no {missing} of {arch.value}", table)
        return cls(table, arch, pc, dwarf)

    @property
    def wanted(self) -> tuple[RemoteRegister, ...]:
        """Those that a register set is made of, by number."""
        known = self.dwarf.keys() | {self.pc.number}
        return tuple(register for register in self.table.registers if register.number in known)

    @property
    def others(self) -> tuple[RemoteRegister, ...]:
        """Registers that no register set has: flags, and what the processor states of a fault."""
        names = _FLAGS | _FAULTS
        return tuple(
            register
            for register in self.table.registers
            if register.name in names and register.size <= _WIDEST
        )

    def others_of(
        self, values: Mapping[int, bytes], *, with_fault: bool
    ) -> tuple[tuple[str, int], ...]:
        """Return names and values of :attr:`others`, as far as the stub sent them.

        Args:
            values: by the stub's numbers.
            with_fault: whether fault registers are of the thread's own stop: else they are stale.
        """
        names = _FLAGS | _FAULTS if with_fault else _FLAGS
        wide = {"eflags": "rflags"} if self.table.find("rip") is not None else {}
        return tuple(
            (wide.get(other.name, other.name), self._integer(values[other.number]))
            for other in self.others
            if other.number in values and other.name in names
        )

    def has_all(self, values: Mapping[int, bytes]) -> bool:
        """Whether ``values``, by the stub's numbers, hold all that unwinding may read."""
        numbers = self.arch.registers
        needed = {n for n, dwarf in self.dwarf.items() if dwarf in numbers.callee_saved}
        needed |= {n for n, dwarf in self.dwarf.items() if dwarf in (numbers.sp, numbers.lr)}
        return values.keys() >= needed | {self.pc.number}

    def of_values(
        self, values: Mapping[int, bytes], mask: PacMask = PacMask()
    ) -> RegisterSet | None:
        """Build registers from the stub's values; None without pc and sp. ``mask`` is for pc."""
        by_dwarf: dict[int, int] = {}
        for number, dwarf in self.dwarf.items():
            data = values.get(number)
            if data:
                by_dwarf[dwarf] = self._integer(data)
        pc = values.get(self.pc.number)
        sp = by_dwarf.get(self.arch.registers.sp)
        if not pc or sp is None:
            return None
        return RegisterSet.of(self.arch, pc=mask.strip(self._integer(pc)), sp=sp, general=by_dwarf)

    def split(self, reply: bytes) -> dict[int, bytes]:
        """Parse the values in a reply to ``g``, by number; unavailable ones are left out."""
        text = reply.decode("ascii", "replace")
        values: dict[int, bytes] = {}
        for register in (*self.wanted, *self.others):
            if register.offset is None:
                continue
            data = register_bytes(text[2 * register.offset : 2 * (register.offset + register.size)])
            if len(data) == register.size:
                values[register.number] = data
        return values

    def _integer(self, data: bytes) -> int:
        return int.from_bytes(data[:_WIDEST], "little")


def register_bytes(text: str) -> bytes:
    """Decode hexadecimal ``text``; empty if it is not hex, such as ``xxxx``."""
    try:
        return bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        return b""


def _number(text: str) -> int | None:
    return int(text[:_DIGITS]) if text.isascii() and text.isdecimal() else None


_DIGITS = 9


def _senseless(asked: str, came: str, table: RegisterTable | None = None) -> RemoteProtocolError:
    names = "" if table is None else ", ".join(register.name for register in table.registers[:40])
    return RemoteProtocolError(
        "the stub's registers are not usable",
        request=asked,
        reply=f"{came} ({names})" if names else came,
    )
