"""x86 instructions, as far as a walk cares for what they do, in 32-bit and 64-bit mode.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A and
the pages of the instructions. Taking them apart is :mod:`machtrace.unwinder.arch.x86.encoding`'s.
"""

from __future__ import annotations

from machtrace.unwinder.code.effects import TRAP
from machtrace.unwinder.arch.x86.x86_extended import three_bytes, two_bytes, vector
from machtrace.unwinder.arch.x86.encoding import parse_with_head
from machtrace.unwinder.arch.x86.opcodes import one_byte
from machtrace.unwinder.arch.x86.x86_operands import Effects
from machtrace.unwinder.arch.x86.registers import MODE_64, Mode


def decode(code: bytes | memoryview, at: int, mode: Mode = MODE_64) -> tuple[int, Effects]:
    """The size of the instruction at ``code[at]``, and what it does.

    Distances of jumps and calls count in bytes from the instruction's start. Where there is no
    instruction, one byte that traps.
    """
    length, effects, _ = decode_with_head(code, at, mode)
    return length, effects


def decode_with_head(code: bytes | memoryview, at: int, mode: Mode) -> tuple[int, Effects, int]:
    """The same, and how many bytes say what it is; 0 where not even those are all there."""
    found, head = parse_with_head(code, at, mode)
    if found is None:
        return 1, (TRAP,), head
    if found.opcode_map == 0:
        effects = one_byte(found)
    elif found.is_vector:
        effects = vector(found)
    elif found.opcode_map == 1:
        effects = two_bytes(found)
    else:
        effects = three_bytes(found)
    return found.length, effects, head
