"""What x86 instructions have in common: the registers they name, and what they do to them.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, chapter 2.
"""

from __future__ import annotations

from machtrace.unwinder.code.effects import NOTHING, Effect, Load, Store, Writes
from machtrace.unwinder.arch.x86.encoding import REX_W, Encoding

AX, CX, DX, BX, SP, BP, SI, DI = range(8)
"""As instructions number registers; effects have DWARF numbers."""

Effects = tuple[Effect, ...]
"""What one instruction does, in order: ``leave`` is two effects."""

NO_EFFECTS: Effects = (NOTHING,)


def register(found: Encoding, number: int) -> int:
    """The DWARF number of a register by its number in instructions."""
    return found.mode.by_encoding[number & 15]


def reg(found: Encoding, *, of_bytes: bool = False) -> int:
    """The register of ModR/M's middle bits, or of the opcode's low ones."""
    number = found.reg
    if of_bytes and found.rex < 0:
        number &= 3  # ah, ch, dh and bh are parts of the first four
    return register(found, number)


def rm(found: Encoding, *, of_bytes: bool = False) -> int | None:
    """The register that ModR/M's low bits name; None where they name memory."""
    number = found.rm
    if number is None:
        return None
    if of_bytes and found.rex < 0:
        number &= 3
    return register(found, number)


def writes(*registers: int | None) -> Effects:
    """Something that does not matter goes into ``registers``, by DWARF number."""
    return (Writes(tuple(number for number in registers if number is not None)),)


def changes(found: Encoding, *numbers: int) -> Effects:
    """The same of registers as instructions number them."""
    return (Writes(tuple(register(found, number) for number in numbers)),)


def base(found: Encoding) -> int | None:
    """The register that, with the displacement, is the whole address; None of any other kind."""
    memory = found.memory
    if memory is None or memory.base is None or memory.has_index:
        return None
    return register(found, memory.base)


def size(found: Encoding) -> int:
    """Bytes of the operands."""
    if found.rex >= 0 and found.rex & REX_W:
        return 8
    return 2 if found.has_16_bit_operands else 4


def push(found: Encoding, pushed: int | None) -> Effects:
    """A register, or None for anything else."""
    return changes(found, SP) if found.has_16_bit_operands else push_word(found, pushed)


def push_word(found: Encoding, pushed: int | None) -> Effects:
    """The same, whatever the size of the operands."""
    word = found.mode.word
    return (Store((pushed,), word, found.mode.sp, -word, -word),)


def pop(found: Encoding, popped: int | None) -> Effects:
    """Into a register, or None for anything else."""
    if found.has_16_bit_operands:
        return writes(found.mode.sp, popped)
    word = found.mode.word
    return (Load((popped,), word, found.mode.sp, 0, word),)


def store(found: Encoding, stored: int | None, count: int) -> Effects:
    """``count`` bytes of a register, or of anything else (None), where ModR/M says."""
    at = base(found)
    if at is None or found.memory is None:
        return NO_EFFECTS
    return (Store((stored,), count, at, found.memory.displacement),)


def stored_over(found: Encoding, count: int) -> Effects:
    """Something else than a register in memory, or in the register that ModR/M names."""
    if found.memory is None:
        return writes(rm(found, of_bytes=count == 1))
    return store(found, None, count)
