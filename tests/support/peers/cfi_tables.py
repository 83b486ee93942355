"""Call-frame tables as LLVM and GNU print them, to compare ours with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from machtrace.formats.dwarf import cfi_rows as dwarf
from machtrace.formats.dwarf import operations
from machtrace.model.arch import Arch

_LLVM_FDE = re.compile(r"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ FDE cie=\w+ pc=(\w+)\.\.\.(\w+)")
_LLVM_ROW = re.compile(r"  0x([0-9a-f]+): CFA=(.*)")
_GNU_ROW = re.compile(r"[0-9a-f]{8,} (?:\S+[+-]\d+|exp) ")
_GNU_FDE = re.compile(r"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ FDE cie=\w+ pc=(\w+)\.\.(\w+)")


@dataclass(slots=True)
class PeerFunction:
    """One FDE."""

    offset: int
    start: int
    end: int
    rows: dict[int, str] = field(default_factory=dict)
    """The rows by address, as the peer writes them."""


def _function(found: re.Match[str]) -> PeerFunction:
    offset, start, end = (int(group, 16) for group in found.groups())
    return PeerFunction(offset, start, end)


def llvm_functions(printed: str) -> list[PeerFunction]:
    """Parse the FDEs in output of ``llvm-dwarfdump --eh-frame`` or ``--debug-frame``."""
    functions: list[PeerFunction] = []
    for line in printed.splitlines():
        if found := _LLVM_FDE.match(line):
            functions.append(_function(found))
        elif functions and (found := _LLVM_ROW.match(line)):
            functions[-1].rows[int(found[1], 16)] = f"CFA={found[2]}"
    return functions


def llvm_row(row: dwarf.CallFrameRow, register_name: Callable[[int], str]) -> str:
    """Our row as LLVM would write it; ``register_name`` has LLVM's names."""

    def expression(code: bytes) -> str:
        return ", ".join(_llvm_operations(code, register_name))

    if isinstance(row.cfa, dwarf.CfaRegister):
        cfa = f"CFA={register_name(row.cfa.register)}{_signed(row.cfa.offset)}"
    else:
        cfa = f"CFA={expression(row.cfa.expression)}"
    places = [
        f"{register_name(own)}={_llvm_place(rule, register_name, expression)}"
        for own, rule in row.registers
    ]
    if row.ra_signed:
        places.append("reg34=1")
    return f"{cfa}: {', '.join(places)}" if places else cfa


def _llvm_place(  # noqa: PLR0911 - one a kind
    rule: dwarf.RegisterRule,
    register_name: Callable[[int], str],
    expression: Callable[[bytes], str],
) -> str:
    match rule:
        case dwarf.Undefined():
            return "undefined"
        case dwarf.SameValue():
            return "same"
        case dwarf.Offset(offset):
            return f"[CFA{_signed(offset)}]"
        case dwarf.ValueOffset(offset):
            return f"CFA{_signed(offset)}"
        case dwarf.InOtherRegister(register):
            return register_name(register)
        case dwarf.Expression(code):
            return f"[{expression(code)}]"
        case dwarf.ValueExpression(code):
            return expression(code)


def _signed(value: int) -> str:
    return f"{value:+d}" if value else ""


def llvm_register_names(arch: Arch) -> Callable[[int], str]:
    """Return a function from a register to LLVM's name."""
    names: Mapping[int, str]
    if arch.is_arm64:
        names = {n: f"W{n}" for n in range(31)} | {31: "WSP"} | {64 + n: f"B{n}" for n in range(32)}
    else:
        names = {n: name.upper() for n, name in enumerate(arch.registers.names)}
    return lambda number: names.get(number, f"reg{number}")


_OPERATION_NAMES = {
    value: name.lower()
    for name, value in vars(operations).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, int) and name != "COUNT"
}


_SHOWN_IN_HEX = frozenset(
    {
        *(operations.ADDR, operations.CONST1U, operations.CONST2U, operations.CONST4U),
        *(operations.CONST8U, operations.CONSTU, operations.PLUS_UCONST, operations.PICK),
        operations.DEREF_SIZE,
    }
)
_SHOWN_SIGNED = frozenset(
    {
        *(operations.CONST1S, operations.CONST2S, operations.CONST4S, operations.CONST8S),
        operations.CONSTS,
    }
)


def _llvm_operations(code: bytes, register_name: Callable[[int], str]) -> Iterator[str]:
    for _, (kind, operand, second) in operations.read_operations(code, 8):
        if operations.LIT0 <= kind < operations.LIT0 + operations.COUNT:
            yield f"DW_OP_lit{kind - operations.LIT0}"
        elif operations.BREG0 <= kind < operations.BREG0 + operations.COUNT:
            register = kind - operations.BREG0
            yield f"DW_OP_breg{register} {register_name(register)}{operand:+d}"
        elif kind == operations.BREGX:
            yield f"DW_OP_bregx {register_name(operand)}{second:+d}"
        elif kind in (operations.BRA, operations.SKIP):
            yield f"DW_OP_{_OPERATION_NAMES[kind]} {operand:+d}"
        elif kind in _SHOWN_IN_HEX:
            yield f"DW_OP_{_OPERATION_NAMES[kind]} {operand:#x}"
        elif kind in _SHOWN_SIGNED:
            yield f"DW_OP_{_OPERATION_NAMES[kind]} {operand}"
        else:
            yield f"DW_OP_{_OPERATION_NAMES[kind]}"


def gnu_functions(printed: str) -> list[PeerFunction]:
    """Parse the FDEs in output of ``readelf --debug-dump=frames-interp``.

    Rows are the CFA and then, by the names of the columns, the rule of each register that is
    not unknown. A function of one row that is its CIE's has none here.
    """
    functions: list[PeerFunction] = []
    columns: list[str] = []
    for line in printed.splitlines():
        if found := _GNU_FDE.match(line):
            functions.append(_function(found))
        elif line.startswith("   LOC"):
            columns = line.split()[2:]
        elif functions and _GNU_ROW.match(line):
            # A register is given by its number first: r1 (rdx).
            address, cfa, *places = re.sub(r"\br\d+ \((\w+)\)", r"\1", line).split()
            said = sorted(
                f"{column}={place}"
                for column, place in zip(columns, places, strict=True)
                if place not in "un"
            )
            functions[-1].rows[int(address, 16)] = " ".join([cfa, *said])
        elif " CIE " in line:
            # Its row looks like a function's; it has address 0 and belongs to none.
            functions.append(PeerFunction(offset=-1, start=0, end=0))
    return [function for function in functions if function.offset >= 0]


def gnu_row(row: dwarf.CallFrameRow, names: Sequence[str]) -> str:
    """Our row as :func:`gnu_functions` gives theirs; ``names`` are of registers, by number."""
    if isinstance(row.cfa, dwarf.CfaRegister):
        cfa = f"{names[row.cfa.register]}{row.cfa.offset:+d}"
    else:
        cfa = "exp"
    said = [
        f"{'ra' if own == row.return_column else names[own]}={_gnu_place(rule, names)}"
        for own, rule in row.registers
        if not isinstance(rule, dwarf.Undefined)
    ]
    return " ".join([cfa, *sorted(said)])


def _gnu_place(rule: dwarf.RegisterRule, names: Sequence[str]) -> str:
    simple = {dwarf.SameValue: "s", dwarf.Expression: "exp", dwarf.ValueExpression: "vexp"}
    match rule:
        case dwarf.Offset(offset):
            return f"c{offset:+d}"
        case dwarf.ValueOffset(offset):
            return f"v{offset:+d}"
        case dwarf.InOtherRegister(register):
            return names[register]
        case _:
            return simple.get(type(rule), "u")
