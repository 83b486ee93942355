"""The time of effect analysis is bounded by the available code, not by a file's claims."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

import numpy as np
import pytest

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.arch.arm64 import analysis
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.arm64.registers import ENTRY, INSTRUCTION_SIZE
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    AddConstant,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
)
from machtrace.unwinder.functions import starts as function_starts
from machtrace.unwinder.functions.bounds import FunctionBounds, code_ranges
from machtrace.unwinder.functions.branch_scan import call_targets
from machtrace.unwinder.sources.of_macho import instruction_rules
from machtrace.unwinder.step_budget import WALK_STEPS, StepBudget

Build = Callable[..., MachOFileContents]
LR, SP = 30, 31
ADD_SP_32, NOP, RET, B = 0x910083FF, 0xD503201F, 0xD65F03C0, 0x14000000
SECTION_SIZE = 40
"""The offset of ``size`` in a ``section_64``."""


def _with_text_size(contents: MachOFileContents, size: int) -> MachOFileContents:
    data = bytearray(contents.data)
    struct.pack_into("<Q", data, data.index(b"__text\0\0") + SECTION_SIZE, size)
    return MachOFileContents(bytes(data), "stated")


@pytest.mark.peer
@pytest.mark.parametrize("size", [1 << 52, 1 << 63])
def test_a_section_ends_where_its_segment_has_no_more_bytes(lab_program: Build, size: int):
    """The size that it states is ignored, and its functions are still found."""
    true = lab_program("frames", "-O2", "compact")
    stated = _with_text_size(true, size)
    segment = stated.image.segment("__TEXT")
    assert segment is not None
    ((low, high),) = code_ranges(stated)[:1]
    assert low == code_ranges(true)[0][0]
    assert high <= segment.vmaddr + segment.filesize
    text = true.image.section("__TEXT", "__text")
    assert text is not None
    inside = Svma(text.address + INSTRUCTION_SIZE)
    assert FunctionBounds.of_macho(stated).at(inside) == FunctionBounds.of_macho(true).at(inside)
    assert instruction_rules(stated, Arch.ARM64) is not None


@pytest.mark.peer
def test_sections_of_a_valid_file_are_unchanged(lab_program: Build):
    """They lie within their segments."""
    contents = lab_program("frames", "-O2", "compact")
    sections = contents.image.code_sections
    assert code_ranges(contents) == tuple((section.address, section.end) for section in sections)


@pytest.mark.peer
def test_calls_are_searched_for_only_as_far_as_code_can_be_read(lab_program: Build):
    """Not over the whole size that a section claims."""
    contents = lab_program("frames", "-O2", "compact")
    before = thread_time()
    assert not list(call_targets(contents, [(1 << 40, 1 << 60)]))
    assert thread_time() - before < 5


def test_starts_in_sections_are_retained():
    """At both ends of each, and at the end of the address space."""
    starts = np.array([1, 16, 31, 32, 63, 64, 95, (1 << 64) - 4], np.uint64)
    sections = ((16, 32), (64, 95), ((1 << 64) - 8, 1 << 64))
    kept = function_starts._in_code(starts, sections)  # noqa: SLF001 - has no other way in
    assert kept.tolist() == [16, 31, 64, (1 << 64) - 4]


def test_code_that_nothing_reaches_takes_linear_time():
    """Each such instruction searches for the nearest reached call, and none exists."""
    before = thread_time()
    flow = Flow([Return(LR)] * 20_000, ENTRY, budget=StepBudget(1 << 18))
    assert thread_time() - before < 6  # it once took half a minute
    assert flow.state(19_999) == ENTRY


def test_the_frame_of_the_nearest_call_is_used():
    """It may be thousands of instructions away, on either side."""
    frame = [AddConstant(SP, SP, -32), Call(None), AddConstant(SP, SP, 32)]
    far = [Return(LR)] * 3000
    landing_pad = [AddConstant(SP, SP, 32), Return(LR)]
    flow = Flow([*frame, *far, *landing_pad], ENTRY)
    state = flow.state(len(frame) + len(far))
    assert state is not None
    assert state.sp_offset == -32
    flow = Flow([Jump(4 * (len(far) + 3), is_conditional=False), *landing_pad, *far, *frame], ENTRY)
    state = flow.state(1)
    assert state is not None
    assert state.sp_offset == -32


def test_results_beyond_the_budget_are_not_certain():
    """Indirect jumps, all with different frames, are compared pairwise."""
    code = [
        instruction
        for _ in range(10_000)
        for instruction in (
            AddConstant(SP, SP, -16),
            Jump(8, is_conditional=True),
            IndirectJump(16),
        )
    ]
    before = thread_time()
    flow = Flow([*code, Return(LR)], ENTRY)
    assert thread_time() - before < 20
    assert not flow.is_complete
    assert flow.state(0) is None


class _FanIn:
    """Functions of AArch64 code, each the target of jumps from eight others, in three levels.

    Each starts by raising sp, which only code that shares a frame does.
    """

    source = "fan-in"

    def __init__(self, size: int) -> None:
        self.size = size
        count = 1 + 8 + 64
        words = [NOP] * (count * size)
        for function in range(count):
            words[function * size] = ADD_SP_32
            words[(function + 1) * size - 1] = RET
            if function:
                at = (function + 1) * size - 1
                words[at] = B | ((function - 1) // 8 * size - at) & 0x03FFFFFF
        self.code = struct.pack(f"<{len(words)}I", *words)

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        if not 0 <= address <= address + size <= len(self.code):
            raise MemoryReadError(address, size)
        return memoryview(self.code)[address : address + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        raise MemoryReadError(offset, size)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        start = address // (4 * self.size) * (4 * self.size)
        return Svma(start), Svma(start + 4 * self.size)


def test_callers_are_analysed_within_one_budget(monkeypatch: pytest.MonkeyPatch):
    """Functions jump into functions that jump, eight each: not all are followed."""
    analysed = 0

    def counted(code: Sequence[Effect], *others: Any, **named: Any) -> Flow:
        nonlocal analysed
        analysed += len(code)
        return Flow(code, *others, **named)

    monkeypatch.setattr(analysis, "Flow", counted)
    contents = _FanIn(2000)
    rules = InstructionRules(contents, contents.function_at, [(0, len(contents.code))])
    rules.rule_for(Svma(4), interrupted=True)
    own = 2 * contents.size
    assert own < analysed <= own + WALK_STEPS
