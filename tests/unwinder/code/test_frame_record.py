"""The frame pointer leads to the frame record if the function was seen to create it."""

from __future__ import annotations

import pytest

from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.code.code_check import BEGINNING_SIZE, follows_record, record_end
from machtrace.unwinder.functions.bounds import FunctionBounds
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule, frame_pointer_rule
from machtrace.unwinder.sources.of_macho import instruction_rules


def words(*instructions):
    """Encode AArch64 code."""
    return b"".join(word.to_bytes(4, "little") for word in instructions)


STP_PRE, STP_AT_16 = 0xA9BF7BFD, 0xA9017BFD
"""``stp x29, x30, [sp, #-16]!``; ``stp x29, x30, [sp, #16]``."""
MOV_FP, ADD_FP_16, SUB_SP_32 = 0x910003FD, 0x910043FD, 0xD10083FF
PACIBSP, BL, RET = 0xD503237F, 0x94000001, 0xD65F03C0


@pytest.mark.parametrize(
    ("code", "behind"),
    [
        (words(STP_PRE, MOV_FP, RET), 8),
        (words(PACIBSP, SUB_SP_32, STP_AT_16, ADD_FP_16), 16),
        (words(STP_PRE, BL, MOV_FP), None),  # a call first: what it calls has no record of ours
        (words(SUB_SP_32, STP_AT_16, MOV_FP), None),  # not where the pair is
        (words(STP_PRE, SUB_SP_32, MOV_FP), None),
        (words(MOV_FP), None),
        (b"", None),
        (b"\xfd\x7b", None),
    ],
)
def test_arm64_records(code, behind):
    """The pair is stored, and the frame pointer set to it."""
    assert behind == record_end(code, Arch.ARM64)


def test_x86_records():
    """``push rbp; mov rbp, rsp``, of either size and encoding."""
    assert record_end(b"\x55\x48\x89\xe5\x90", Arch.X86_64) == 4
    assert record_end(b"\x55\x48\x8b\xec", Arch.X86_64H) == 4
    assert record_end(b"\x55\x89\xe5", Arch.I386) == 3
    assert record_end(b"\x55\x89\xe5\x90", Arch.X86_64) is None
    assert record_end(b"\x55\x48\x89", Arch.X86_64) is None


def test_rules_of_frame_records_are_recognised():
    """Other registers that they restore are ignored."""
    for arch in (Arch.ARM64, Arch.X86_64, Arch.I386):
        rule = frame_pointer_rule(arch)
        assert follows_record(rule, arch)
        more = (*rule.registers, (3, AtCfa(-64)))
        assert follows_record(UnwindRule(rule.cfa, rule.return_address, more), arch)
        sp = RegisterOffset(arch.registers.sp, 2 * arch.pointer_size)
        assert not follows_record(UnwindRule(sp, rule.return_address, rule.registers), arch)


@pytest.mark.peer
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_the_frame_pointers_rule_is_right_after_the_record(lab_program, arch):
    """Instruction analysis, which follows every instruction, is the oracle."""
    contents = lab_program("registers", "-O2", "compact", arch)
    rules = instruction_rules(contents, arch)
    bounds = FunctionBounds.of_macho(contents)
    section = contents.image.section("__TEXT", "__text")
    assert rules is not None
    assert section is not None
    at, seen = section.address, 0
    while (function := bounds.at(Svma(at))) is not None:
        start, at = function
        code = contents.read_svma(start, min(BEGINNING_SIZE, at - start))
        behind = record_end(code, arch)
        if behind is None:
            continue
        count = behind // 4 if arch is Arch.ARM64 else 2
        state = rules.state_behind_start(Svma(at - 1), count)
        assert state is not None
        fp = state.value(arch.registers.fp)
        assert fp.offset == -16, hex(start)
        assert state.slots[-8] == state.machine.return_address
        seen += 1
    assert seen > 3
