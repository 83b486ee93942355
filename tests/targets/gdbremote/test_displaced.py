"""Copies of first instructions: only of those that mean the same at any address."""

import struct

import capstone
import pytest
from capstone import arm64, x86
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.breakpoints import COPY_SIZE, displaced_copy

ADDRESS = 0x1_0000_4000
PACIBSP, STP, SUB_SP = 0xD503237F, 0xA9BF7BFD, 0xD10083FF

DISPUTED = {"ud0", "ud1", "ret", "extrq"}
"""capstone reads no ModR/M of the first two, and has other operands with both 66 and REX."""

words = st.one_of(
    st.integers(0, (1 << 32) - 1),
    # Near those that matter: one or two bits of an instruction with an address changed.
    st.builds(
        lambda word, one, other: word ^ 1 << one ^ 1 << other,
        st.sampled_from([0x10000000, 0x94000010, 0x54000001, 0xB4000000, 0x36000000, 0x58000000]),
        st.integers(0, 31),
        st.integers(0, 31),
    ),
)


def disassembled(mode, code):
    disassembler = capstone.Cs(*mode)
    disassembler.detail = True
    return next(disassembler.disasm(code, ADDRESS), None)


@given(words)
@settings(max_examples=2000)
def test_on_arm64_none_that_uses_its_address_is_copied(word):
    """The oracle is capstone."""
    code = struct.pack("<I", word)
    instruction = disassembled((capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM), code)
    if instruction is None:
        return
    is_jump = (
        capstone.CS_GRP_JUMP in instruction.groups or capstone.CS_GRP_CALL in instruction.groups
    )
    is_literal = instruction.mnemonic in {"ldr", "ldrsw", "prfm"} and any(
        operand.type == arm64.ARM64_OP_IMM and index
        for index, operand in enumerate(instruction.operands)
    )  # fmt: skip
    uses_address = instruction.mnemonic in {"adr", "adrp"} or is_jump or is_literal
    is_indexed = instruction.writeback or "]," in instruction.op_str or "]!" in instruction.op_str
    copy = displaced_copy(Arch.ARM64, code, ADDRESS)
    if uses_address and not is_indexed:
        assert copy is None, f"{instruction.mnemonic} {instruction.op_str}"


@pytest.mark.parametrize("word", [PACIBSP, STP, SUB_SP])
def test_prologues_of_arm64_are_copied(word):
    code = struct.pack("<I", word)
    copy = displaced_copy(Arch.ARM64E, code, ADDRESS)
    assert copy is not None
    assert copy.startswith(code)
    assert len(copy) <= COPY_SIZE
    listing = [
        f"{each.mnemonic} {each.op_str}"
        for each in capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM).disasm(copy[4:12], 4)
    ]
    assert listing == ["ldr x16, #0xc", "ret x16"]
    assert int.from_bytes(copy[12:20], "little") == ADDRESS + 4


@given(st.binary(min_size=15, max_size=15))
@settings(max_examples=2000)
def test_on_x86_64_none_that_uses_its_address_is_copied(code):
    """The oracle is capstone."""
    copy = displaced_copy(Arch.X86_64, code, ADDRESS)
    instruction = disassembled((capstone.CS_ARCH_X86, capstone.CS_MODE_64), code)
    if copy is None or instruction is None or instruction.mnemonic in DISPUTED:
        return
    assert copy.startswith(instruction.bytes)
    assert len(copy) == instruction.size + 14 <= COPY_SIZE
    assert int.from_bytes(copy[-8:], "little") == ADDRESS + instruction.size
    assert capstone.CS_GRP_CALL not in instruction.groups
    assert capstone.CS_GRP_BRANCH_RELATIVE not in instruction.groups
    assert all(
        operand.type != x86.X86_OP_MEM or operand.mem.base not in (x86.X86_REG_RIP, x86.X86_REG_EIP)
        for operand in instruction.operands
    )


@pytest.mark.parametrize(
    "code", [b"\x55", b"\xf3\x0f\x1e\xfa", b"\x41\x57", b"\x48\x83\xec\x18", b"\x48\x89\xf8"]
)
def test_prologues_of_x86_64_are_copied(code):
    copy = displaced_copy(Arch.X86_64, code + bytes(15 - len(code)), ADDRESS)
    assert copy == code + b"\xff\x25" + bytes(4) + (ADDRESS + len(code)).to_bytes(8, "little")


@pytest.mark.parametrize("code", [b"", b"\x55\x48\x89", b"\xe8\0\0\0\0", b"\x06" * 15])
def test_an_incomplete_or_relative_instruction_has_no_copy(code):
    copy = displaced_copy(Arch.X86_64, code, ADDRESS)
    assert (copy is None) == (code[:1] != b"\x55")
    assert displaced_copy(Arch.ARM64, code[:3], ADDRESS) is None
    assert displaced_copy(Arch.I386, code, ADDRESS) is None
