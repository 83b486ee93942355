"""Copies of first instructions, to continue from a breakpoint without removing it.

A copy is executed at another address and then jumps behind the original. It is made only of an
instruction that means the same at any address.

Sources: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A; *Arm
Architecture Reference Manual for A-profile*, C4.1 "A64 instruction set encoding".
"""

from __future__ import annotations

from machtrace.model.arch import Arch
from machtrace.unwinder.arch.x86.encoding import LONGEST, Encoding, parse

COPY_SIZE = 32
"""Bytes that a copy has room for."""
CODE_SIZE = LONGEST
"""Bytes of a function that determine a copy."""
_WORD = 4
_LDR_X16_8 = (0x58000050).to_bytes(_WORD, "little")
_RET_X16 = (0xD65F0200).to_bytes(_WORD, "little")
"""Unlike ``br``, it may land where branch targets are checked."""
_JMP_RIP = b"\xff\x25\x00\x00\x00\x00"
_A64_RELATIVE = (
    (0x1F000000, 0x10000000),  # adr, adrp
    (0x7C000000, 0x14000000),  # b, bl
    (0xFF000000, 0x54000000),  # b.cond, bc.cond
    (0x7E000000, 0x34000000),  # cbz, cbnz
    (0x7E000000, 0x36000000),  # tbz, tbnz
    (0x3B000000, 0x18000000),  # ldr (literal), prfm (literal)
)
"""Masks and values of instructions that use their own address."""
_X86_RELATIVE = frozenset((*range(0x70, 0x80), *range(0xE0, 0xE4), 0xC7, 0xCC, 0xE8, 0xE9, 0xEB))
"""Conditional jumps, loops, int3, call and jmp; C7 may begin a transaction."""
_X86_RELATIVE_0F = frozenset(range(0x80, 0x90))
_GROUP_FIVE, _CALLS = 0xFF, (2, 3)
"""Calls store the address behind them."""
_A64_BL_REGISTER = (0xFE000000, 0xD6000000)


def displaced_copy(arch: Arch, code: bytes, address: int) -> bytes | None:
    """Return code that does what the first instruction of ``code`` does, and continues behind it.

    On arm64 the jump back changes x16, which every call may change.

    Args:
        arch: of the code; others than arm64 and x86-64 have no copies.
        code: the function's first bytes, :data:`CODE_SIZE` of them at most.
        address: theirs.

    Returns:
        None if the instruction uses its own address, or is invalid.
    """
    if arch.is_arm64:
        return _copy_a64(code, address)
    return _copy_x86(code, address) if arch is Arch.X86_64 else None


def _copy_a64(code: bytes, address: int) -> bytes | None:
    if len(code) < _WORD:
        return None
    word = int.from_bytes(code[:_WORD], "little")
    transfers = word & _A64_BL_REGISTER[0] == _A64_BL_REGISTER[1]
    if transfers or any(word & mask == value for mask, value in _A64_RELATIVE):
        return None
    target = (address + _WORD).to_bytes(8, "little")
    return code[:_WORD] + _LDR_X16_8 + _RET_X16 + target


def _copy_x86(code: bytes, address: int) -> bytes | None:
    parsed = parse(code, 0)
    if parsed is None or _uses_rip(parsed):
        return None
    target = (address + parsed.length).to_bytes(8, "little")
    return code[: parsed.length] + _JMP_RIP + target


def _uses_rip(parsed: Encoding) -> bool:
    """Whether an instruction uses its own address, or may."""
    memory = parsed.memory
    if memory is not None and memory.base is None and not memory.has_index:
        return True
    if parsed.is_vector:
        return False
    if parsed.opcode_map == 0:
        is_indirect_call = parsed.opcode == _GROUP_FIVE and parsed.reg & 7 in _CALLS
        return parsed.opcode in _X86_RELATIVE or is_indirect_call
    return parsed.opcode_map == 1 and parsed.opcode in _X86_RELATIVE_0F
