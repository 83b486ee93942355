"""The Darwin core's copy of an emulated thread is walked to that thread's true stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.thread_state import read_native_state
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory

pytest.importorskip("unicorn", reason="unicorn runs the core and the thread that it copies")
from machtrace.formats.macho.thread_state import thread_command
from tests.support.emulated.inprocess_core import CaptureCore, Outcome
from tests.support.emulated.mach import MachRegion, MachThread
from tests.support.emulated.run import EmulatedRun, Moment, main_stack
from tests.support.lab.builds import Built, builds, make
from tests.support.lab.policies import MASK, all_rules, rules_policy

PROGRAMS = Path(__file__).parents[2] / "lab" / "programs"
STATE_OFFSET = 16
"""Offset of a thread command's registers, after its own header and the state's."""
FLAGS_OFFSET = 268
NO_PTRAUTH, IB_SIGNED_LR = 1, 2
SIGNED_PLACES = {"fp": 29, "lr": 30, "sp": 31, "pc": 32}


@pytest.mark.parametrize(
    ("architecture", "program", "optimisation"),
    [
        ("arm64", "leaves", "-O2"),
        ("arm64", "frames", "-O2 no fp"),
        ("arm64", "fibers", "-O2"),
        ("arm64e", "async", "-O1"),
        ("x86_64", "leaves", "-O2"),
        ("x86_64", "frames", "-O2 no fp"),
        ("x86_64", "fibers", "-O2"),
    ],
)
def test_the_stack_is_the_true_one_at_every_place(
    architecture: str,
    program: str,
    optimisation: str,
    core_library: Callable[[Arch], MachOFileContents],
    tmp_path: Path,
) -> None:
    """The thread is captured before each of its instructions, the first time it is reached."""
    (build,) = builds([program], [architecture], [optimisation], ["compact"])
    made = make(build, PROGRAMS, tmp_path)
    arch = build.architecture.arch
    thread = MachThread(7)
    core = CaptureCore(core_library(arch), [thread])
    conditions = made.conditions
    run = EmulatedRun(made.contents, conditions.patches, prepare=conditions.prepare)
    core.task.regions = regions(made, run)
    walked = rules_policy(all_rules(made.contents))
    text = made.contents.image.text_segment
    assert text is not None
    code = MemoryRegion(Avma(text.vmaddr), made.contents.read_svma(text.vmaddr, text.filesize))
    looked_at = 0

    def visit(moment: Moment) -> bool:
        nonlocal looked_at
        if any(moment.registers.pc in between for between in conditions.between):
            return False  # either of two stacks is right there
        thread.state = state_of(moment, core, arch)
        (copy,) = core.capture([7], stack_limit=1 << 20)
        assert copy.outcome is Outcome.COPIED
        core.assert_released()
        assert core.task.most_suspended == 1
        registers = read_native_state(copy.registers, arch, MASK, "a copy")
        assert registers.pc == moment.registers.pc
        assert registers.lr == moment.registers.lr
        assert registers.fp == as_copied(moment.registers.fp, arch)
        sp = registers.sp
        assert sp is not None
        assert sp == moment.registers.sp
        assert copy.stack_start <= sp < copy.stack_start + len(copy.stack)
        stack = MemoryRegion(Avma(copy.stack_start), copy.stack)
        assert copy.stack == run.memory.read(stack.start, len(copy.stack))
        found = walked(replace(moment, registers=registers, memory=RegionMemory([stack, code])))
        assert found == moment.addresses
        looked_at += 1
        return False

    run.run(visit, every=1009, each_place=True, limit=conditions.limit)
    assert looked_at > 60


def regions(made: Built, run: EmulatedRun) -> list[MachRegion]:
    """The stack, a guard below it, and the program's segments."""
    stack = main_stack(made.contents)
    mapped = [
        MachRegion(segment.vmaddr, segment.vmaddr + segment.vmsize, run.memory, tag=0)
        for segment in made.contents.image.segments
        if segment.vmsize and segment.name != "__PAGEZERO"
    ]
    guard = MachRegion(stack.start - 0x4000, stack.start, None)
    return sorted(
        [*mapped, guard, MachRegion(stack.start, stack.stop, run.memory)], key=lambda one: one.start
    )


def as_copied(fp: int | None, arch: Arch) -> int | None:
    """The tag of Swift's frames is taken off with the kernel's signature."""
    return fp if fp is None or arch is not Arch.ARM64E else MASK.strip(fp)


def state_of(moment: Moment, core: CaptureCore, arch: Arch) -> bytes:
    """Return the kernel's state: between arm64e programs, pointers are signed."""
    state = bytearray(thread_command(moment.registers)[STATE_OFFSET:])
    if arch is not Arch.ARM64E:
        if arch is Arch.ARM64:
            state[FLAGS_OFFSET] = NO_PTRAUTH
        return bytes(state)
    lr = moment.registers.lr or 0
    is_signed = lr != MASK.strip(lr)
    state[FLAGS_OFFSET] = IB_SIGNED_LR if is_signed else 0
    for number in SIGNED_PLACES.values():
        place = slice(8 * number, 8 * number + 8)
        value = int.from_bytes(state[place], "little")
        if value and not (number == SIGNED_PLACES["lr"] and is_signed):
            # The tag of an asynchronous frame's pointer is not part of what is signed.
            signed = core.library.cpu.signed(MASK.strip(value), 0, number)
            assert signed != value
            state[place] = signed.to_bytes(8, "little")
    return bytes(state)
