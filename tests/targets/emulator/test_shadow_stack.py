"""The oracle for unwinding: calls and returns, recorded as they execute."""

import struct

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import TargetError
from machtrace.model.address import Avma
from machtrace.targets.emulator.machine import ShadowStack, is_call, is_return

BL, RET, NOP = 0x94000010, 0xD65F03C0, 0xD503201F
CALLS = {"bl", "blr", "blraa", "blrab", "blraaz", "blrabz"}
RETURNS = {"ret", "retaa", "retab"}

words = st.one_of(
    st.integers(0, (1 << 32) - 1),
    # Near the encodings that matter: one or two bits of a call or return changed.
    st.builds(
        lambda word, one, other: word ^ 1 << one ^ 1 << other,
        st.sampled_from([BL, RET, 0xD63F0100, 0xD63F091F, 0xD73F0921, 0xD65F0BFF, 0xD65F0FFF]),
        st.integers(0, 31),
        st.integers(0, 31),
    ),
)


@given(words)
def test_only_calls_and_returns_are_classified_as_such(word):
    """The oracle is capstone: both name an instruction a call or return, or neither does."""
    disassembler = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    for found in disassembler.disasm(struct.pack("<I", word), 0):
        assert (found.mnemonic in CALLS) == is_call(word)
        assert (found.mnemonic in RETURNS) == is_return(word)


def test_a_call_is_recorded_only_after_it_executed():
    """A thread that stops before a call has not made it."""
    shadow = ShadowStack()
    shadow.come_to(Avma(0x100), BL)
    shadow.forget_next()
    assert shadow.return_addresses == ()
    shadow.come_to(Avma(0x100), BL)
    shadow.come_to(Avma(0x140), RET)
    assert shadow.return_addresses == (0x104,)
    shadow.come_to(Avma(0x104), NOP)
    assert shadow.return_addresses == ()
    assert shadow.instructions == 3


def test_a_return_to_another_address_is_refused():
    """Such a program would falsify the oracle."""
    shadow = ShadowStack()
    shadow.come_to(Avma(0x100), BL)
    shadow.come_to(Avma(0x140), RET)
    with pytest.raises(TargetError, match="0x108"):
        shadow.come_to(Avma(0x108), NOP)
