"""Instruction analysis, compared with call-frame information that is valid at every instruction.

The lab runs programs; this covers every instruction, executed or not, of compiled programs and of
shapes that compilers seldom emit (``shapes/arm64.S``).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import capstone
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.structs import EncryptionInfoCommand
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.arm64.decoder import decode
from machtrace.unwinder.arch.arm64.registers import ARM64, ENTRY, VECTORS
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.code.calling_convention import CallerValue, FromCfa
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.functions.bounds import FunctionBounds
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.of_macho import call_frame_rules, instruction_rules
from tests.support.compilers.executables import compile_macho
from tests.support.lab.builds import unpreserved_registers

Build = Callable[..., MachOFileContents]
SHAPES = Path(__file__).parent / "shapes" / "arm64.S"
LR, SP = 30, 31


# --- compared with call-frame information ---


def _disagreements(
    contents: MachOFileContents, unpreserved: frozenset[int] = frozenset()
) -> tuple[int, list[str]]:
    """Count the instructions with call-frame information, and those where analysis differs."""
    call_frames = call_frame_rules(contents)
    rules = instruction_rules(contents, Arch.ARM64)
    assert call_frames is not None
    assert rules is not None
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    compared, wrong = 0, []
    for start, code in _functions(contents):
        flow = Flow([decode(word) for word in code], ENTRY)
        for index, word in enumerate(code):
            pc = Svma(start + 4 * index)
            expected = call_frames.rule_for(pc, interrupted=True)
            if expected is None:
                continue
            compared += 1
            state, rule = flow.state(index), rules.rule_for(pc, interrupted=True)
            if state is None or rule is None or not _agree(state, rule, expected, unpreserved):
                bits = struct.pack("<I", word)
                text = next((f"{i.mnemonic} {i.op_str}" for i in decoder.disasm(bits, pc)), "")
                wrong.append(f"{pc:#x} {text}: {rule}, not {expected}")
    return compared, wrong


def _functions(contents: MachOFileContents) -> Iterator[tuple[Svma, tuple[int, ...]]]:
    section = contents.image.section("__TEXT", "__text")
    assert section is not None
    bounds = FunctionBounds.of_macho(contents)
    at = section.address
    while at < section.end:
        start, end = bounds.at(at) or (at, Svma(at + 4))
        words = contents.read_svma(start, (end - start) & ~3)
        yield start, struct.unpack(f"<{len(words) // 4}I", words)
        at = end


def _agree(
    state: FrameState, rule: UnwindRule, expected: UnwindRule, unpreserved: frozenset[int]
) -> bool:
    """Return whether ``rule`` has all of ``expected``, and nothing different.

    One rule may be relative to sp and the other to fp. While a saved register is unchanged it may
    be recovered from either location.
    """
    assert isinstance(expected.cfa, RegisterOffset)
    assert isinstance(rule.cfa, RegisterOffset)
    for cfa in (expected.cfa, rule.cfa):
        if state.value(cfa.register) != FromCfa(-cfa.offset):
            return False
    saved, said = dict(expected.registers), dict(rule.registers)
    saved[LR] = expected.return_address
    if rule.return_address != InRegister(LR):
        said[LR] = rule.return_address
    for register in {LR, *ARM64.callee_saved} - unpreserved:
        true, actual = saved.get(register), said.get(register)
        if isinstance(true, AtCfa):
            if state.slots.get(true.offset) != CallerValue(register) or actual not in (true, None):
                return False
        elif actual is not None and (
            not isinstance(actual, AtCfa) or state.slots.get(actual.offset) != CallerValue(register)
        ):
            return False
        is_in_register = actual is None or not isinstance(true, AtCfa)
        if is_in_register and state.value(register) != CallerValue(register):
            return False
    return True


@pytest.mark.peer
@pytest.mark.parametrize(
    "build",
    [
        ("leaves", "-O0"),
        ("leaves", "-O2"),
        ("frames", "-O1"),
        ("frames", "-O2 no fp"),
        ("registers", "-Os"),
        ("registers", "-O2 pac"),
        ("switches", "-O0"),
        ("switches", "-O3"),
        ("alike", "-O2"),
        ("async", "-O1"),
    ],
    ids=" ".join,
)
def test_analysis_agrees_with_call_frame_information(build: tuple[str, str], lab_program: Build):
    """At every instruction for which the compiler wrote any."""
    compared, wrong = _disagreements(lab_program(*build, "dwarf"), unpreserved_registers(*build))
    assert compared > 50
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.peer
def test_shapes_that_compilers_seldom_write(tmp_path: Path):
    """Sizes in registers, noreturn calls, tables, base pointers, saves through any register."""
    program = compile_macho(
        [SHAPES],
        tmp_path / "shapes",
        options=("-femit-dwarf-unwind=always", "-march=armv8.3-a"),
    )
    compared, wrong = _disagreements(MachOFileContents(program.read_bytes(), "shapes"))
    assert compared > 100
    assert not wrong, "\n".join(wrong)


# --- one instruction ---

_NAMES = {
    **{f"{kind}{n}": n for n in range(31) for kind in "xw"},
    "fp": 29,
    "lr": LR,
    "sp": SP,
    "wsp": SP,
    **{f"{kind}{n}": VECTORS + n for n in range(32) for kind in "bhsdqv"},
}
# The first operands that these only read, and the index of these stores, it calls written; of a
# system call it knows other registers than Darwin's; signing a pointer changes no address.
_CAPSTONE_IS_WRONG = {"cmp", "cmn", "tst", "st1", "st2", "st3", "st4", "svc"}
_CAPSTONE_IS_WRONG |= {
    f"{verb}{key}" for verb in ("pac", "aut") for key in ("ia", "ib", "da", "db")
} | {f"{verb}{key}" for verb in ("pac", "aut") for key in ("iza", "izb", "dza", "dzb")}
_CAPSTONE_IS_WRONG |= {"xpaci", "xpacd"}


def _written(instruction: Effect) -> set[int]:
    match instruction:
        case Writes(registers):
            return set(registers)
        case Load(registers, _, base, _, write_back):
            return {r for r in registers if r is not None} | ({base} if write_back else set())
        case Store(_, _, base, _, write_back):
            return {base} if write_back else set()
        case Call():
            return {LR}
        case AddConstant() | AddRegister() | MoveRegister() | SetConstant() | InsertConstant():
            return {instruction.destination}
        case _:
            return set()


def _capstone_written(instruction: capstone.CsInsn) -> set[int]:
    _, written = instruction.regs_access()
    names = (instruction.reg_name(register) for register in written)
    return {_NAMES[name] for name in names if name in _NAMES}


def test_every_written_register_is_recognised():
    """Random words, compared with capstone; an update of a base by 0 does not change it."""
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoder.detail = True
    generator = random.Random(20240901)  # noqa: S311 (the same words each time)
    compared = 0
    for _ in range(80_000):
        word = generator.getrandbits(32)
        instruction = next(decoder.disasm(struct.pack("<I", word), 0), None)
        if (
            instruction is None
            or instruction.mnemonic in _CAPSTONE_IS_WRONG
            or "#0" in instruction.op_str
        ):
            continue
        effect = decode(word)
        if isinstance(effect, Jump | IndirectJump | Return | Trap):
            continue
        compared += 1
        missing = _capstone_written(instruction) - _written(effect)
        names = f"{instruction.mnemonic} {instruction.op_str}"
        assert not missing, f"{word:#010x} {names}: {missing}, {effect}"
    assert compared > 10_000


def test_jumps_calls_and_returns_are_distinguished():
    """Random words, compared with capstone's groups; distances, with its operands."""
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoder.detail = True
    generator = random.Random(7)  # noqa: S311 (the same words each time)
    seen: set[str] = set()
    words = [
        generator.getrandbits(26) | top << 26 for top in (5, 37, 21, 13, 45) for _ in range(400)
    ]
    words += [0xD61F0120, 0xD63F0120, 0xD65F03C0, 0xD65F0BFF, 0xD65F0FFF, 0xD71F0912, 0xD73F0D12]
    for word in words:
        instruction = next(decoder.disasm(struct.pack("<I", word), 0), None)
        if instruction is None:
            continue
        effect, name = decode(word), instruction.mnemonic
        if name in ("bl", "blr", "blraa", "blrab"):
            assert isinstance(effect, Call), name
        elif name in ("ret", "retaa", "retab"):
            assert effect == Return(LR), name
        elif name in ("br", "braa", "brab"):
            assert isinstance(effect, IndirectJump), name
        elif capstone.CS_GRP_BRANCH_RELATIVE in instruction.groups:
            assert isinstance(effect, Jump), name
            assert effect.is_conditional == (name != "b")
        else:
            continue
        seen.add(name)
        if isinstance(effect, Jump | Call) and effect.distance is not None:
            target = instruction.operands[-1].imm
            assert effect.distance == target, f"{name} {instruction.op_str}"
    assert {"b", "bl", "cbz", "cbnz", "tbz", "tbnz", "br", "blr", "ret", "retaa", "retab"} <= seen


@given(word=st.integers(0, (1 << 32) - 1))
@settings(max_examples=500, deadline=None)
def test_data_among_the_code_does_not_stop_the_analysis(word: int):
    decode(word)


# --- code without a rule ---


class _Words:
    """Code at address 0, and nothing else."""

    source = "words"

    def __init__(self, words: tuple[int, ...]) -> None:
        self.region = MemoryRegion(Avma(0), struct.pack(f"<{len(words)}I", *words))

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        return memoryview(self.region.read(Avma(address), size))

    read_file = read_svma


def _rules_of(*words: int) -> InstructionRules:
    contents = _Words(words)
    end = Svma(4 * len(words))

    def function_at(address: Svma) -> tuple[Svma, Svma] | None:
        return (Svma(0), end) if 0 <= address < end else None

    return InstructionRules(contents, function_at, [(0, end)])


_INTERESTING = st.one_of(
    st.integers(0, (1 << 32) - 1),
    # Jumps and conditional jumps within reach, so that paths meet.
    st.integers(-20, 20).map(lambda n: 0x14000000 | n & 0x3FFFFFF),
    st.integers(-20, 20).map(lambda n: 0x54000000 | (n & 0x7FFFF) << 5),
    st.integers(-20, 20).map(lambda n: 0x94000000 | n & 0x3FFFFFF),
    st.sampled_from(
        [0xD65F03C0, 0xA9BF7BFD, 0xA8C17BFD, 0x910003FD, 0xD10083FF, 0x910083FF, 0xD61F0100]
    ),
)


@given(words=st.lists(_INTERESTING, min_size=1, max_size=60), interrupted=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_code_has_a_rule_or_none(words: list[int], interrupted: bool):  # noqa: FBT001
    """Any bytes as a function, at each instruction, in a bounded number of steps."""
    rules = _rules_of(*words)
    for index in range(len(words)):
        rule = rules.rule_for(Svma(4 * index + 3), interrupted=interrupted)
        assert rule is None or isinstance(rule.cfa, RegisterOffset)


def test_the_analysis_of_a_function_of_jumps_is_bounded():
    """Every instruction leads to every other; the number of steps depends on the size alone."""
    generator = random.Random(3)  # noqa: S311 (the same code each time)
    count = 5000
    words = []
    for index in range(count):
        to = generator.randrange(count) - index
        words.append(
            0x54000000 | (to & 0x7FFFF) << 5 if index % 3 else 0xD1000400 | index % 32 * 33
        )
    rules = _rules_of(*words)
    rules.rule_for(Svma(4 * count - 4), interrupted=True)


def test_a_function_that_is_too_long_is_not_analysed():
    """Its bounds must be wrong."""
    rules = _rules_of(*[0xD503201F] * ((1 << 16) + 1))
    assert rules.rule_for(Svma(0x1000), interrupted=True) is None


@pytest.mark.peer
def test_compact_unwind_has_precedence_at_calls(lab_program: Build):
    """For a function with its own frame that calls ordinary ones, tables are better."""
    contents = lab_program("registers", "-O2")
    rules = instruction_rules(contents, Arch.ARM64)
    assert rules is not None
    calls = [
        rules.rule_for(Svma(start + 4 * index), interrupted=False)
        for start, code in _functions(contents)
        for index, word in enumerate(code)
        if isinstance(decode(word), Call)
    ]
    assert len(calls) > 20
    assert all(rule is None for rule in calls)


def test_an_unknown_stack_pointer_has_no_rule():
    """It comes from an argument, and a call precedes the return."""
    # mov sp, x0; bl; ret
    rules = _rules_of(0x9100001F, 0x94000100, 0xD65F03C0)
    assert rules.rule_for(Svma(0), interrupted=True) is not None
    assert rules.rule_for(Svma(4), interrupted=True) is None


def test_an_overwritten_return_address_has_no_rule():
    """Another source must supply it, or the walk ends with a reason."""
    # mov x30, x0; nop; ret
    rules = _rules_of(0xAA0003FE, 0xD503201F, 0xD65F03C0)
    assert rules.rule_for(Svma(4), interrupted=True) is None


@pytest.mark.peer
def test_each_architecture_has_its_own_analysis(lab_program: Build):
    """The image's architecture selects it."""
    arm64 = lab_program("leaves", "-O0")
    x86_64 = lab_program("leaves", "-O0", "compact", Arch.X86_64)
    assert isinstance(instruction_rules(arm64, Arch.ARM64), InstructionRules)
    assert isinstance(instruction_rules(x86_64, Arch.X86_64), X86InstructionRules)


@pytest.mark.peer
def test_encrypted_code_is_not_analysed(lab_program: Build):
    """In an encrypted program's file, code and unwind tables are noise; in memory they are not."""
    contents = lab_program("leaves", "-O0")
    encrypted = MachOFileContents(contents.data, "encrypted")
    command = EncryptionInfoCommand(0x2C, 24, 0x1000, 1 << 20, 1)
    encrypted.image = replace(contents.image, encryption_info=command)
    assert instruction_rules(encrypted, Arch.ARM64) is None
    assert CompactRules.of_macho(encrypted, Arch.ARM64) is None
    encrypted.image = replace(contents.image, encryption_info=command._replace(cryptid=0))
    assert instruction_rules(encrypted, Arch.ARM64) is not None
