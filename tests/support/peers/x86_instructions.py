"""x86 instructions decoded by capstone, in the terms of instruction analysis."""

from __future__ import annotations

from collections.abc import Iterable

import capstone  # type: ignore[import-untyped]

from machtrace.unwinder.arch.x86.decoder import decode
from machtrace.unwinder.arch.x86.registers import Mode
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)

_TRANSFERS = (Jump, IndirectJump, Return, Trap, Call)
# It calls an operand written that TEST only reads, takes CDQ to write its source, and knows of
# UD0 and UD1 without operands, of VIA's and AMD's own instructions and of the kernel's. It takes
# what BOUND compares with its limits for written.
_IS_WRONG = frozenset(
    (
        *("test", "cdq", "cqo", "cwd", "ud0", "ud1", "getsec", "vmread", "vmwrite", "bound"),
        *("extrq", "insertq"),
    )
)
_FIRST_EIGHT = (*(f"{n}x" for n in "acdb"), "sp", "bp", "si", "di")


class X86Peer:
    """Capstone for one mode."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        bits = capstone.CS_MODE_64 if mode.is_64 else capstone.CS_MODE_32
        self._decoder = capstone.Cs(capstone.CS_ARCH_X86, bits)
        self._decoder.detail = True
        names = {
            f"{prefix}{name}": mode.by_encoding[number]
            for number, name in enumerate(_FIRST_EIGHT)
            for prefix in ("r", "e", "")
        }
        names |= {f"{n}{p}": mode.by_encoding[i] for i, n in enumerate("acdb") for p in "lh"}
        names |= {f"{n}l": mode.by_encoding[i] for i, n in enumerate(_FIRST_EIGHT) if i > 3}
        names |= {f"r{n}{p}": n for n in range(8, 16) for p in ("", "d", "w", "b")}
        self._numbers = names
        """DWARF numbers."""

    def objections(self, code: bytes, at: int = 0) -> list[str] | None:
        """Return its objections to :func:`decode` of ``code[at]``; None if it decodes none.

        Raises nothing.
        """
        peer = next(self._decoder.disasm(code[at : at + 18], at), None)
        if peer is None or peer.mnemonic in _IS_WRONG or peer.mnemonic[0] == "x":
            return None  # those with x are VIA's, and transactions
        prefixes = bytes(code[at : at + peer.size - 1])
        is_jump = capstone.CS_GRP_BRANCH_RELATIVE in peer.groups
        if is_jump and (b"\x66" in prefixes or b"\x67" in prefixes):
            return None  # no compiler writes them, and neither processors nor capstone agree
        length, effects = decode(code, at, self._mode)
        label = f"{bytes(peer.bytes).hex()} {peer.mnemonic} {peer.op_str}"
        if length != peer.size:
            return [f"{label}: {length} bytes"]
        last = effects[-1]
        if isinstance(last, Jump) and (last.distance + at - peer.operands[0].imm) % (1 << 32):
            return [f"{label}: leads to {at + last.distance:#x}"]
        if isinstance(last, _TRANSFERS):
            return []
        names = (peer.reg_name(register) for register in peer.regs_access()[1])
        missing = {self._numbers[name] for name in names if name in self._numbers}
        missing -= written(effects)
        return [f"{label}: writes {number} too" for number in missing]


def written(effects: Iterable[Effect]) -> set[int]:
    """Return the registers, by DWARF number, that an instruction changes."""
    changed: set[int] = set()
    for effect in effects:
        match effect:
            case Writes(registers):
                changed.update(registers)
            case Load(registers, _, base, _, write_back):
                changed.update(register for register in registers if register is not None)
                changed.update((base,) if write_back else ())
            case Store(_, _, base, _, write_back):
                changed.update((base,) if write_back else ())
            case AddConstant() | AddRegister() | InsertConstant() | MoveRegister() | SetConstant():
                changed.add(effect.destination)
            case _:
                pass
    return changed
