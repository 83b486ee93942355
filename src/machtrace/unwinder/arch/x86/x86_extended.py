"""What x86 instructions with longer opcodes, and vector instructions, do.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, tables A-3 to
A-5 and the pages of the instructions.
"""

# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's maps)

from __future__ import annotations

from machtrace.unwinder.code.effects import TRAP, Jump
from machtrace.unwinder.arch.x86.encoding import Encoding
from machtrace.unwinder.arch.x86.x86_operands import (
    AX,
    BP,
    BX,
    CX,
    DX,
    NO_EFFECTS,
    Effects,
    changes,
    pop,
    push,
    reg,
    register,
    rm,
    size,
    stored_over,
    writes,
)

_ASYNC_TAG_BIT = 60
"""Of the frame pointer that Swift's async functions save: it is still the caller's."""
_TO_REG_0F = frozenset(
    (
        *(*range(0x40, 0x50), 0x02, 0x03, 0x50, 0xAF, 0xB2, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8),
        *(0xBC, 0xBD, 0xBE, 0xBF, 0xC5, 0xD7, 0x2C, 0x2D),
    )
)
"""CMOV, MOVZX, IMUL, BSF, MOVMSKPS, …: a general register that ModR/M's reg names."""
_TO_RM_0F = frozenset((*range(0x90, 0xA0), 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xB3, 0xBB, 0xC3))
"""SET, SHLD, BTS, MOVNTI, …: what ModR/M names."""
_WRITTEN_0F = {
    0x05: (AX, DX, CX),
    0x31: (AX, DX),
    0x32: (AX, DX),
    0x33: (AX, DX),
    0xA2: (AX, BX, CX, DX),
}
"""SYSCALL, RDTSC, RDMSR, RDPMC, CPUID."""
_R11 = 11


def two_bytes(found: Encoding) -> Effects:
    """Of an instruction of map 1, whose opcode starts with 0F."""
    opcode = found.opcode
    if 0x80 <= opcode < 0x90:
        return (Jump(found.length + found.operand, is_conditional=True),)
    if opcode in _TO_REG_0F:
        return writes(reg(found))
    if opcode in _TO_RM_0F:
        is_set = opcode in range(0x90, 0xA0)
        return stored_over(found, 1 if is_set else size(found))
    if opcode in _WRITTEN_0F:
        keeps_flags = (_R11,) if opcode == 0x05 and found.mode.is_64 else ()
        return changes(found, *_WRITTEN_0F[opcode], *keeps_flags)
    if opcode in (0x0B, 0xB9, 0xFF):
        return (TRAP,)
    if opcode in (0xA0, 0xA8, 0xA1, 0xA9):  # of FS and GS
        return pop(found, None) if opcode & 1 else push(found, None)
    if 0xC8 <= opcode < 0xD0:
        return writes(reg(found))
    return _rare_two_bytes(found)


def _rare_two_bytes(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0xB0, 0xB1):  # CMPXCHG
        return writes(register(found, AX), rm(found, of_bytes=opcode == 0xB0))
    if opcode in (0xC0, 0xC1):  # XADD
        of_bytes = opcode == 0xC0
        return writes(reg(found, of_bytes=of_bytes), rm(found, of_bytes=of_bytes))
    if opcode == 0xC7:  # CMPXCHG16B, RDRAND, RDSEED
        return (*changes(found, AX, DX), *writes(rm(found)))
    if opcode == 0xBA and found.reg & 7 != 4:  # BTS, BTR, BTC
        is_async_tag = found.operand == _ASYNC_TAG_BIT and rm(found) == register(found, BP)
        return NO_EFFECTS if is_async_tag else stored_over(found, size(found))
    if opcode == 0x7E and found.prefix != 0xF3:  # MOVD, MOVQ
        return writes(rm(found))
    if opcode == 0x1E and found.prefix == 0xF3:  # RDSSP; ENDBR is told from it by its ModR/M
        return writes(rm(found)) if found.reg & 7 == 1 else NO_EFFECTS
    if opcode == 0x01:  # SMSW; XGETBV, RDTSCP, …
        return writes(rm(found)) if found.reg & 7 == 4 else changes(found, AX, DX, CX)
    if opcode in (0x00, 0x20, 0x21) or (opcode == 0xAE and found.prefix == 0xF3):
        return writes(rm(found))  # SLDT, MOV of control registers, RDFSBASE
    return NO_EFFECTS


def three_bytes(found: Encoding) -> Effects:
    """Of an instruction of map 2 or 3, whose opcode starts with 0F 38 or 0F 3A."""
    opcode = found.opcode
    if found.opcode_map == 2:
        # CRC32, MOVBE, ADCX, ADOX
        return writes(reg(found)) if 0xF0 <= opcode < 0xF8 else NO_EFFECTS
    return _three_bytes_with_operand(found)


def _three_bytes_with_operand(found: Encoding) -> Effects:
    opcode = found.opcode
    if 0x14 <= opcode < 0x18:  # PEXTRB, PEXTRW, PEXTRD, EXTRACTPS
        return writes(rm(found))
    if opcode in (0x61, 0x63):  # PCMPESTRI, PCMPISTRI
        return changes(found, CX)
    return writes(reg(found)) if opcode == 0xF0 and found.is_vector else NO_EFFECTS  # RORX


def vector(found: Encoding) -> Effects:
    """Of an instruction with a VEX or EVEX prefix."""
    opcode, opcode_map = found.opcode, found.opcode_map
    if opcode_map == 3:
        return _three_bytes_with_operand(found)
    if opcode_map == 2:
        if opcode == 0xF3:  # BLSR, BLSI, BLSMSK
            return writes(register(found, found.vvvv))
        if opcode == 0xF6:  # MULX
            return writes(reg(found), register(found, found.vvvv))
        return writes(reg(found)) if 0xF2 <= opcode < 0xF8 else NO_EFFECTS
    if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7):
        return writes(reg(found))
    if opcode == 0x7E and found.prefix != 0xF3:
        return writes(rm(found))
    return NO_EFFECTS
