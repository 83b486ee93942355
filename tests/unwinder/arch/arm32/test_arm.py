"""32-bit arm: the Thumb bit, the recognition of Thumb code, d registers, stubs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import machtrace
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.core.writer import core_bytes
from machtrace.formats.macho.tables.compact_encoding import (
    AlignedRegisters,
    FramePointerBased,
    decode,
)
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import StopReason
from machtrace.unwinder.arch.arm32.analysis import InstructionSets
from machtrace.unwinder.arch.arm32.image_tables import instruction_sets_of_macho
from machtrace.unwinder.functions.bounds import FunctionBounds
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.compact import CompactRules, aligned_location
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.sources.of_macho import call_frame_rules
from machtrace.unwinder.sources.stubs import StubRules
from machtrace.unwinder.step import step
from machtrace.unwinder.walker import walk
from tests.support.compilers.executables import COMPACT_TABLES, compile_object
from tests.support.emulated.run import EmulatedRun, Moment
from tests.support.linker32.linker import link_macho

LAB = Path(__file__).parents[3] / "lab" / "programs"
FP, SP, LR = 7, 13, 14
MASK = PacMask()
RED_ZONE = 0x100
DEEP = 5
"""Callers of the function that a thread stands in."""

Program = Callable[..., MachOFileContents]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """``(sources, arch, *options)`` → one linked program; a source is a path or assembly."""
    pytest.importorskip("ziglang", reason="ziglang, the compiler, is not installed")

    def link(*sources: Path | str, arch: Arch, options: tuple[str, ...]) -> MachOFileContents:
        directory = tmp_path_factory.mktemp("arm")
        objects = []
        for number, source in enumerate(sources):
            if isinstance(source, str):
                path = directory / f"{number}.S"
                path.write_text(source)
            else:
                path = source
            output = directory / f"{path.stem}.o"
            compile_object(path, output, arch=arch, options=(*COMPACT_TABLES, *options))
            objects.append(output.read_bytes())
        return MachOFileContents(link_macho(objects), "program")

    return link


def image_of(contents: MachOFileContents, path: str, end: int | None = None) -> BinaryImage:
    """Return the image at its stated address; ``end``: of its code, if not its segment's."""
    text = contents.image.text_segment
    assert text is not None
    return BinaryImage(
        path=path,
        uuid=contents.image.uuid,
        arch=contents.image.arch,
        format=ImageFormat.MACHO,
        load_address=Avma(text.vmaddr),
        header_svma=text.vmaddr,
        size=text.vmsize if end is None else end - text.vmaddr,
    )


def registers(general: dict[int, int], *, pc: int = 0x8000, sp: int = 0x1000) -> RegisterSet:
    """Return the registers of an armv7k thread."""
    return RegisterSet.of(Arch.ARMV7K, pc=pc, sp=sp, general=general)


# --- the Thumb bit ---


@pytest.mark.parametrize("saved", [0x5000, 0x5001])
def test_the_thumb_bit_is_removed_from_return_addresses(saved: int) -> None:
    """In memory and in the link register."""
    stack = MemoryRegion(Avma(0x1000), saved.to_bytes(4, "little") * 4)
    for recovery in (AtCfa(-4), InRegister(LR)):
        rule = UnwindRule(RegisterOffset(SP, 8), recovery)
        caller = step(rule, registers({LR: saved}), stack, MASK)
        assert isinstance(caller, RegisterSet)
        assert caller.pc == 0x5000


def test_saved_registers_keep_all_their_bits() -> None:
    """A caller's lr, or another register, can be odd."""
    stack = MemoryRegion(Avma(0x1000), (0x5001).to_bytes(4, "little") * 4)
    rule = UnwindRule(RegisterOffset(SP, 8), AtCfa(-4), ((4, AtCfa(-8)), (LR, AtCfa(-4))))
    caller = step(rule, registers({}), stack, MASK)
    assert isinstance(caller, RegisterSet)
    assert (caller.get(4), caller.lr) == (0x5001, 0x5001)


@pytest.mark.peer
def test_a_call_at_the_end_of_an_image_is_looked_up_inside_it(program: Program) -> None:
    """The byte before a Thumb return address, bit removed, is in the call instruction."""
    contents = program(
        """
        .syntax unified
        .thumb
        .globl _main
        .thumb_func _main
        _main: push {r7, lr}
        mov r7, sp
        bl _last
        .thumb_func _last
        _last: push {r4, r7, lr}
        blx r4
        """,
        arch=Arch.ARMV7,
        options=("-mthumb",),
    )
    rules = image_rules(contents, Arch.ARMV7)
    (text,) = contents.image.code_sections
    image = image_of(contents, "program", end=text.end)
    process = RuleCache(ImageList([image]), Arch.ARMV7, lambda _: rules)
    words = (0x44, 0x77, text.address + 8 + 1, 0, 0x20000001)
    stack = MemoryRegion(Avma(0x1000), b"".join(word.to_bytes(4, "little") for word in words))
    # Just called by the last instruction, through a pointer that is null.
    thread = RegisterSet.of(Arch.ARMV7, pc=0, sp=0x1000, lr=text.end + 1)
    found = walk(thread, stack, process, MASK)
    addresses = [frame.address for frame in found.addresses]
    assert addresses == [0, text.end, text.address + 8, 0x20000000]
    assert found.stop.reason is not StopReason.NO_PROGRESS


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize(("arch", "mode"), [(Arch.ARMV7, "-mthumb"), (Arch.ARMV7K, "-marm")])
def test_a_core_has_the_stack_that_lldb_prints(
    program: Program, tmp_path: Path, arch: Arch, mode: str
) -> None:
    """At the entry of a recursive function: addresses without the bit, and names."""
    sources = (LAB / "leaves.c", LAB / "support.c", LAB / "support.S")
    contents = program(*sources, arch=arch, options=(mode, "-O2"))
    moments: list[tuple[RegisterSet, MemoryRegion, tuple[Avma, ...]]] = []

    def visit(moment: Moment) -> None:
        if len(moment.callers) == DEEP and not moments:
            low = Avma((moment.registers.sp or 0) - RED_ZONE)
            stack = MemoryRegion(low, moment.memory.read(low, RED_ZONE + 0x200))
            moments.append((moment.registers, stack, moment.addresses))

    EmulatedRun(contents).run(visit)
    ((thread_registers, stack, truth),) = moments
    path, core = tmp_path / "program", tmp_path / "program.core"
    path.write_bytes(contents.read_file(FileOffset(0), len(contents.data)))
    thread = ThreadSnapshot(
        info=ThreadInfo(id=ThreadId(1), index=1, is_main=True),
        registers=thread_registers,
        stack=stack,
    )
    process = ProcessInfo(pid=1, path=str(path), arch=arch)
    images = ImageList([image_of(contents, str(path))])
    snapshot = Snapshot(process=process, threads=(thread,), images=images)
    loaded = [
        MemoryRegion(
            Avma(segment.vmaddr), bytes(contents.read_file(segment.fileoff, segment.filesize))
        )
        for segment in contents.image.segments
        if segment.filesize
    ]
    core.write_bytes(core_bytes(snapshot, loaded))
    (found,) = machtrace.backtraces(core)
    assert tuple(frame.address.address for frame in found.frames) == truth
    names = [frame.symbol.name for frame in found.frames if frame.symbol is not None]
    assert names == ["fibonacci"] * (DEEP - 1) + ["main"]
    lldb = shutil.which("lldb-19") or shutil.which("lldb")
    if lldb is None:
        pytest.skip("lldb is not installed")
    command = (lldb, "--batch", "-o", f"target create {path} --core {core}", "-o", "bt")
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    addresses = [int(segment, 16) for segment in re.findall(r"frame #\d+: 0x(\w+)", shown)]
    assert addresses == list(truth[:-1])


# --- instruction sets ---


@pytest.mark.peer
@pytest.mark.parametrize("mode", ["-mthumb", "-marm"])
def test_the_instruction_set_is_recognised_by_the_code(program: Program, mode: str) -> None:
    """Every function of a program, by its bytes alone, as its symbol states it."""
    sources = (LAB / "registers.c", LAB / "support.c", LAB / "support.S")
    contents = program(*sources, arch=Arch.ARMV7, options=(mode, "-O1"))
    stated, guessed = instruction_sets_of_macho(contents), InstructionSets({})
    bounds = FunctionBounds.of_macho(contents)
    (text,) = contents.image.code_sections
    at, compared = Svma(text.address), 0
    while at < text.end:
        function = bounds.at(at)
        assert function is not None
        code = bytes(contents.read_svma(function[0], function[1] - function[0]))
        assert stated.is_thumb(function[0], code) == (mode == "-mthumb")
        assert guessed.is_thumb(function[0], code) == (mode == "-mthumb"), hex(function[0])
        at, compared = function[1], compared + 1
    assert compared > 12


# --- d registers of armv7k ---


@pytest.mark.parametrize(
    ("encoding", "saved", "aligned"),
    [
        (0x02000000, (8,), ()),
        (0x02000147, (10, 8), ()),
        (0x02000203, (12, 10, 8), ()),
        (0x02000300, (14, 12, 10, 8), ()),
        (0x02000400, (14, 12), (8, 9, 10)),
        (0x02000500, (14,), (8, 9, 10, 11, 12)),
        (0x02000608, (), (8, 9, 10, 11, 12, 13, 14)),
        (0x02000700, (), (8, 9, 10, 11, 12, 13, 14, 15)),
    ],
)
def test_patterns_of_saved_doubles(
    encoding: int, saved: tuple[int, ...], aligned: tuple[int, ...]
) -> None:
    """Apple's unwinder expects pushes, then registers stored from an aligned sp up."""
    decoded = decode(encoding, Arch.ARMV7K, source="test", at=0)
    assert isinstance(decoded, FramePointerBased)
    pushed = [number - ARM_DOUBLES.start for number, _ in decoded.saved if number in ARM_DOUBLES]
    assert pushed == list(saved)
    lowest = min([-decoded.cfa_offset, *(place for _, place in decoded.saved)])
    if not aligned:
        assert decoded.aligned is None
        return
    registers = tuple(ARM_DOUBLES[number] for number in aligned)
    assert decoded.aligned == AlignedRegisters(lowest - 8 * len(aligned), 16, registers)


@pytest.mark.parametrize("fp", [0x1070, 0x1074, 0x1078, 0x107C])
def test_an_aligned_location_is_found_for_any_frame_address(fp: int) -> None:
    """``(fp - 40) & -16``, and eight bytes further."""
    where = ((fp - 40) & -16) + 8
    data = bytearray(0x100)
    data[where - 0x1000 : where - 0x1000 + 8] = (0x1122334455667788).to_bytes(8, "little")
    data[fp - 0x1000 + 4 : fp - 0x1000 + 8] = (0x5001).to_bytes(4, "little")
    rule = UnwindRule(
        RegisterOffset(FP, 8), AtCfa(-4), ((ARM_DOUBLES[9], aligned_location(-48, 16, 8)),)
    )
    found = step(rule, registers({FP: fp}), MemoryRegion(Avma(0x1000), bytes(data)), MASK)
    assert isinstance(found, RegisterSet)
    assert found.get(ARM_DOUBLES[9]) == 0x1122334455667788


@pytest.mark.emulated
@pytest.mark.peer
def test_doubles_are_recovered_at_calls_by_tables_alone(program: Program) -> None:
    """By compact encodings and their FDEs, frame by frame, in a real program."""
    sources = (LAB / "registers.c", LAB / "support.c", LAB / "support.S")
    contents = program(*sources, arch=Arch.ARMV7K, options=("-mthumb", "-O2"))
    tables = CompactRules.of_macho(contents, Arch.ARMV7K, call_frame_rules(contents))
    assert tables is not None
    everything = image_rules(contents, Arch.ARMV7K)
    seen: set[int] = set()
    compared = 0

    def visit(moment: Moment) -> None:
        nonlocal compared
        pc = moment.registers.pc
        if pc in seen:
            return
        seen.add(pc)
        here: RegisterSet | object = moment.registers
        for depth, caller in enumerate(moment.callers[:-1]):
            assert isinstance(here, RegisterSet)
            rule = (
                next(islice(_rules(everything, pc), 1))
                if depth == 0
                else tables.rule_for(Svma(here.pc - 1), interrupted=False)
            )
            assert rule is not None
            here = step(rule, here, moment.memory, MASK)
            assert isinstance(here, RegisterSet)
            assert here.pc == caller.return_address
            for number in ARM_DOUBLES[8:16]:
                assert here.get(number) == caller.registers.get(number), (hex(pc), depth, number)
                compared += 1

    EmulatedRun(contents).run(visit)
    assert compared > 500


def _rules(rules: ImageRules, pc: int):
    for source in rules.sources:
        rule = source.rule_for(Svma(pc), interrupted=True)
        if rule is not None:
            yield rule


# --- stubs ---


@pytest.mark.peer
def test_stubs_and_their_helpers_have_a_caller(program: Program) -> None:
    """As ld64 wrote them: the return address stays in lr, while words are pushed for dyld."""
    contents = program(
        """
        .syntax unified
        .globl _main
        _main: bx lr
        .section __TEXT,__stubs,regular,pure_instructions
        ldr r12, 1f
        add r12, pc, r12
        ldr pc, [r12]
        1: .long 0x1234
        .section __TEXT,__stub_helper,regular,pure_instructions
        str r12, [sp, #-4]!
        ldr r12, 2f
        add r12, pc, r12
        str r12, [sp, #-4]!
        ldr r12, 3f
        add r12, pc, r12
        ldr pc, [r12]
        2: .long 0x1234
        3: .long 0x1234
        ldr r12, 4f
        b 4f
        4: .long 0
        """,
        arch=Arch.ARMV7,
        options=("-marm",),
    )
    rules = StubRules.of_macho(contents, Arch.ARMV7)
    assert rules is not None

    def sizes(name: str, count: int) -> list[int]:
        section = contents.image.section("__TEXT", name)
        assert section is not None
        rules_found = []
        for at in range(section.address, section.address + 4 * count, 4):
            rule = rules.rule_for(Svma(at), interrupted=True)
            assert rule is not None
            assert rule.return_address == InRegister(LR)
            assert isinstance(rule.cfa, RegisterOffset)
            assert rule.cfa.register == SP
            rules_found.append(rule.cfa.offset)
        return rules_found

    assert sizes("__stubs", 3) == [0, 0, 0]
    assert sizes("__stub_helper", 11) == [0, 4, 4, 4, 8, 8, 8, 0, 0, 0, 0]
