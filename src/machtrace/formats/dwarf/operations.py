"""The operations of DWARF expressions and their encodings (DWARF 5, sections 2.5 and 7.7.1).

Only those that call-frame information may use: no location descriptions (``DW_OP_reg*``,
``DW_OP_piece``), nothing that needs a compilation unit or an object (DWARF 5, section 6.4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from machtrace.errors import DwarfError
from machtrace.formats.cursor import ByteCursor

ADDR = 0x03
DEREF = 0x06
CONST1U, CONST1S, CONST2U, CONST2S = 0x08, 0x09, 0x0A, 0x0B
CONST4U, CONST4S, CONST8U, CONST8S = 0x0C, 0x0D, 0x0E, 0x0F
CONSTU, CONSTS = 0x10, 0x11
DUP, DROP, OVER, PICK, SWAP, ROT = 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
ABS, AND, DIV, MINUS, MOD, MUL, NEG, NOT = 0x19, 0x1A, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F, 0x20
OR, PLUS, PLUS_UCONST, SHL, SHR, SHRA, XOR = 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27
BRA, EQ, GE, GT, LE, LT, NE, SKIP = 0x28, 0x29, 0x2A, 0x2B, 0x2C, 0x2D, 0x2E, 0x2F
LIT0 = 0x30
BREG0 = 0x70
BREGX = 0x92
DEREF_SIZE = 0x94
NOP = 0x96

COUNT = 32
"""The number of ``DW_OP_lit*`` and of ``DW_OP_breg*``."""


_FIXED = {
    # Size in bytes and signedness of the one operand.
    CONST1U: (1, False),
    CONST1S: (1, True),
    CONST2U: (2, False),
    CONST2S: (2, True),
    CONST4U: (4, False),
    CONST4S: (4, True),
    CONST8U: (8, False),
    CONST8S: (8, True),
    PICK: (1, False),
    BRA: (2, True),
    SKIP: (2, True),
    DEREF_SIZE: (1, False),
}
_ULEB = frozenset({CONSTU, PLUS_UCONST})
_SLEB = frozenset({CONSTS, *range(BREG0, BREG0 + COUNT)})
_BARE = frozenset(
    {
        *(DEREF, DUP, DROP, OVER, SWAP, ROT, ABS, AND, DIV, MINUS, MOD, MUL, NEG, NOT, OR, PLUS),
        *(SHL, SHR, SHRA, XOR, EQ, GE, GT, LE, LT, NE, NOP),
        *range(LIT0, LIT0 + COUNT),
    }
)


class Operation(NamedTuple):
    """One operation, with its operands as numbers."""

    code: int
    operand: int = 0
    """The register in ``DW_OP_bregx``."""
    second: int = 0
    """The offset in ``DW_OP_bregx``."""


def read_operation(cursor: ByteCursor, pointer_size: int) -> Operation:
    """Read the operation at ``cursor``.

    Raises:
        DwarfError: it is cut short, unknown, or not allowed in call-frame information.
    """
    start = cursor.offset
    code = cursor.take(1)[0]
    if code in _BARE:
        return Operation(code)
    if code in _SLEB:
        return Operation(code, cursor.sleb128())
    if code in _ULEB:
        return Operation(code, cursor.uleb128())
    fixed = _FIXED.get(code)
    if fixed is not None:
        size, signed = fixed
        return Operation(code, int.from_bytes(cursor.take(size), "little", signed=signed))
    if code == ADDR:
        return Operation(code, cursor.unsigned(pointer_size))
    if code == BREGX:
        return Operation(code, cursor.uleb128(), cursor.sleb128())
    raise DwarfError(
        f"operation {code:#04x} is not allowed in call-frame information",
        source=cursor.source,
        offset=start,
    )


def read_operations(expression: bytes, pointer_size: int) -> Iterator[tuple[int, Operation]]:
    """Yield the operations of ``expression``, each with the offset at which it starts.

    Raises:
        DwarfError: as :func:`read_operation`.
    """
    cursor = ByteCursor(expression, source="DWARF expression", error=DwarfError)
    while not cursor.at_end:
        start = cursor.offset
        yield start, read_operation(cursor, pointer_size)


_LEB_BITS = 7


def _sleb128(value: int) -> bytes:
    encoded = bytearray()
    while not -(1 << _LEB_BITS - 1) <= value < 1 << _LEB_BITS - 1:
        encoded.append(value & (1 << _LEB_BITS) - 1 | 1 << _LEB_BITS)
        value >>= _LEB_BITS
    encoded.append(value & (1 << _LEB_BITS) - 1)
    return bytes(encoded)


def register_plus(register: int, offset: int) -> bytes:
    """Return an expression for a register, by a number below :data:`COUNT`, plus ``offset``."""
    return bytes((BREG0 + register,)) + _sleb128(offset)


def plus_register_times(register: int, factor: int) -> bytes:
    """Return the continuation that adds a register's value times ``factor``."""
    scaled = register_plus(register, 0) + bytes((CONSTS,)) + _sleb128(factor)
    return scaled + bytes((MUL, PLUS))


def load_plus(offset: int) -> bytes:
    """Return the continuation that loads from the address so far and adds ``offset``."""
    if not offset:
        return bytes((DEREF,))
    return bytes((DEREF, CONSTS)) + _sleb128(offset) + bytes((PLUS,))
