"""Expressions evaluate as the DWARF standard defines, or raise a DwarfError."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ctypes import c_int32, c_int64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import DwarfError, MemoryReadError
from machtrace.formats.dwarf import operations as op
from machtrace.formats.dwarf.expression import STEP_LIMIT, evaluate
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet

STACK = MemoryRegion(Avma(0x7000), struct.pack("<4Q", 0x1122334455667788, 0xFFFFFFFF, 3, 4))
REGISTERS = RegisterSet.of(Arch.X86_64, pc=0x40102B, sp=0x7000, fp=0x7010, general={3: 99})


def value(*code: int, initial: Sequence[int] = (), pointer_size: int = 8) -> int:
    """Evaluate the bytes ``code``."""
    return evaluate(bytes(code), REGISTERS, STACK, initial=initial, pointer_size=pointer_size)


# DWARF 5, appendix D.1.2, "DWARF Stack Operation Examples": on a stack with 17 on top of 29 on
# top of 1000, what each operation leaves, top first.
@pytest.mark.parametrize(
    ("code", "left"),
    [
        ((op.DUP,), (17, 17, 29, 1000)),
        ((op.DROP,), (29, 1000)),
        ((op.PICK, 2), (1000, 17, 29, 1000)),
        ((op.OVER,), (29, 17, 29, 1000)),
        ((op.SWAP,), (29, 17, 1000)),
        ((op.ROT,), (29, 1000, 17)),
    ],
)
def test_stack_operations_equal_the_standards_examples(
    code: tuple[int, ...], left: tuple[int, ...]
) -> None:
    """Each value of the resulting stack is read by a pick."""
    for depth, expected in enumerate(left):
        assert value(*code, op.PICK, depth, initial=(1000, 29, 17)) == expected
    with pytest.raises(DwarfError, match="stack underflow"):
        value(*code, op.PICK, len(left), initial=(1000, 29, 17))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ((op.CONST1S, 0xFF), 2**64 - 1),
        ((op.CONST1U, 0xFF), 0xFF),
        ((op.CONST2S, 0, 0x80), 2**64 - 0x8000),
        ((op.ADDR, 1, 2, 3, 4, 5, 6, 7, 8), 0x0807060504030201),
        ((op.LIT0 + 31,), 31),
        ((op.BREG0 + 7, 8), 0x7008),
        ((op.BREGX, 3, 0x7F), 98),
        ((op.BREG0 + 7, 0, op.DEREF), 0x1122334455667788),
        ((op.BREG0 + 7, 0, op.DEREF_SIZE, 2), 0x7788),
        ((op.LIT0 + 5, op.NEG, op.ABS), 5),
        ((op.LIT0, op.NOT), 2**64 - 1),
        ((op.LIT0 + 5, op.NEG, op.LIT0 + 2, op.DIV), 2**64 - 2),
        ((op.LIT0 + 1, op.NEG, op.LIT0 + 1, op.SHR), 2**63 - 1),
        ((op.LIT0 + 1, op.NEG, op.LIT0 + 1, op.SHRA), 2**64 - 1),
        ((op.LIT0 + 1, op.CONST1U, 64, op.SHL), 0),
        ((op.LIT0 + 1, op.NEG, op.LIT0, op.LT), 1),
        ((op.LIT0 + 7, op.PLUS_UCONST, 0x80, 1), 135),
        # Over the next literal: 1, or 2.
        ((op.LIT0 + 2, op.SKIP, 1, 0, op.LIT0 + 1), 2),
        ((op.LIT0 + 9, op.LIT0, op.BRA, 1, 0, op.LIT0 + 1), 1),
        # Counts down from 5: lit5 lit1 minus dup bra -5.
        ((op.LIT0 + 5, op.LIT0 + 1, op.MINUS, op.DUP, op.BRA, 0xFA, 0xFF), 0),
    ],
)
def test_each_operation_has_its_defined_result(code: tuple[int, ...], expected: int) -> None:
    """As section 2.5.1 describes them."""
    assert value(*code) == expected


def test_the_stub_expression_of_x86_64_counts_the_pushed_number() -> None:
    """In a lazy stub the CFA is 8 bytes higher after the first eleven bytes."""
    code = bytes.fromhex("77088000 3f1a3b2a332422")
    for low_bits in range(16):
        registers = RegisterSet.of(Arch.X86_64, pc=0x401020 + low_bits, sp=0x7000)
        expected = 0x7008 + (8 if low_bits >= 11 else 0)
        assert evaluate(code, registers, STACK) == expected


def test_32_bit_values_wrap_at_32_bits() -> None:
    """Values are as wide as an address of the target."""
    assert value(op.LIT0, op.NOT, pointer_size=4) == 2**32 - 1
    assert value(op.LIT0, op.NOT, op.LIT0 + 1, op.PLUS, pointer_size=4) == 0
    assert value(op.ADDR, 1, 2, 3, 4, pointer_size=4) == 0x04030201


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ((), "stack underflow"),
        ((op.PLUS,), "stack underflow"),
        ((op.CONST4U, 1, 2), "bytes wanted"),
        ((op.LIT0, op.LIT0, op.DIV), "division by zero"),
        ((op.LIT0, op.LIT0, op.MOD), "division by zero"),
        ((op.BREG0 + 12, 0), "register 12 is unknown"),
        ((op.BREGX, 0x80, 0x80, 1, 0), "register 16384 is unknown"),
        ((op.LIT0, op.SKIP, 0xFD, 0xFF), f"longer than {STEP_LIMIT}"),
        ((op.LIT0, op.DUP, op.SKIP, 0xFC, 0xFF), "exceeds"),
        ((op.SKIP, 1, 0), "jumps out of itself"),
        ((op.SKIP, 0xFC, 0xFF), "jumps out of itself"),
        ((op.BREG0 + 7, 0, op.DEREF_SIZE, 9), "reads 9 bytes"),
        ((op.BREG0 + 7, 0, op.DEREF_SIZE, 0), "reads 0 bytes"),
        # No place in call-frame information: DW_OP_reg7, DW_OP_fbreg, DW_OP_call_frame_cfa.
        ((0x57,), "0x57 is not allowed"),
        ((0x91, 0), "0x91 is not allowed"),
        ((0x9C,), "0x9c is not allowed"),
    ],
)
def test_errors_name_the_problem(code: tuple[int, ...], message: str) -> None:
    """No value is returned."""
    with pytest.raises(DwarfError, match=message):
        value(*code)


def test_unreadable_memory_is_distinguished_from_malformed_bytes() -> None:
    """The caller stops for another reason then."""
    with pytest.raises(MemoryReadError) as caught:
        value(op.CONST1U, 64, op.DEREF)
    assert (caught.value.address, caught.value.size) == (64, 8)


@given(
    left=st.integers(-(2**63), 2**63 - 1),
    right=st.integers(-(2**63), 2**63 - 1),
    wide=st.booleans(),
)
def test_arithmetic_equals_that_of_c(left: int, right: int, wide: bool) -> None:  # noqa: FBT001
    """Signed division, comparison and shift of the target's width, everything else modulo it."""
    signed, size = (c_int64, 8) if wide else (c_int32, 4)
    bits = 8 * size
    left, right = signed(left).value, signed(right).value
    quotient = 0 if right == 0 else abs(left) // abs(right) * (1 if left * right >= 0 else -1)
    expected = {
        op.PLUS: left + right,
        op.MINUS: left - right,
        op.MUL: left * right,
        op.AND: left & right,
        op.OR: left | right,
        op.XOR: left ^ right,
        op.LT: left < right,
        op.GE: left >= right,
        op.EQ: left == right,
        op.SHRA: left >> min(right % (1 << bits), bits),
        op.DIV: quotient,
    }
    for operation, result in expected.items():
        if operation == op.DIV and right == 0:
            continue
        found = value(operation, initial=(left, right), pointer_size=size)
        assert found == result % (1 << bits)
