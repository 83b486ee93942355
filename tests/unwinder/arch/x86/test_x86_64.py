"""Instruction analysis of x86-64: lengths and effects by capstone, frames by tables."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import capstone
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.function_starts import parse_data_in_code
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.arch.x86.decoder import decode
from machtrace.unwinder.arch.x86.encoding import MAX_LENGTH, parse
from machtrace.unwinder.arch.x86.registers import MODE_64
from machtrace.unwinder.code.effects import (
    Call,
    IndirectJump,
    Jump,
    Return,
    Trap,
)
from machtrace.unwinder.functions.bounds import FunctionBounds
from machtrace.unwinder.rules import AtCfa, InRegister, Recovery, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.of_macho import call_frame_rules, instruction_rules
from tests.support.peers.x86_instructions import X86Peer

Build = Callable[..., MachOFileContents]


def _random_code(seed: int, count: int) -> Iterator[bytes]:
    """Return random bytes, many with a prefix of the larger opcode maps."""
    generator = random.Random(seed)  # noqa: S311 (the same bytes each time)
    firsts = (b"\x0f", b"\x0f", b"\x48", b"\x4d", b"\xc5", b"\xc4", b"\x62", b"\x66", b"", b"", b"")
    for _ in range(count):
        first = generator.choice(firsts)
        yield first + generator.randbytes(18 - len(first))


def test_lengths_and_writes_match_capstone():
    """For random bytes, instructions end where capstone's do, and no written register is missed."""
    peer, compared = X86Peer(MODE_64), 0
    for code in _random_code(11, 40_000):
        objections = peer.objections(code)
        assert not objections
        compared += objections is not None
    assert compared > 20_000


def test_jumps_calls_and_returns_are_distinguished():
    """For random bytes, by capstone's groups; distances, by its operands."""
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    seen: set[str] = set()
    for code in (*_random_code(5, 30_000), b"\xf3\xc3" + bytes(16), b"\xff\xe0" + bytes(16)):
        peer = next(decoder.disasm(code, 0), None)
        if peer is None or b"\x66" in code[: peer.size] or peer.mnemonic.startswith("x"):
            continue
        effect, groups = decode(code, 0)[1][-1], peer.groups
        name = peer.mnemonic.rpartition(" ")[2]
        if isinstance(effect, Trap):
            continue  # far jumps and calls, which compilers do not emit
        if name in ("call", "jmp") or capstone.CS_GRP_BRANCH_RELATIVE in groups:
            assert isinstance(effect, Call | Jump | IndirectJump), name
            assert isinstance(effect, Call) == (name == "call")
            if isinstance(effect, Jump):
                assert effect.is_conditional == (name != "jmp")
                assert effect.distance % (1 << 64) == peer.operands[0].imm % (1 << 64)
            seen.add(name)
        elif name == "ret":
            assert isinstance(effect, Return)
            seen.add(name)
        else:
            assert not isinstance(effect, Call | Jump | IndirectJump | Return), name
    assert {"call", "jmp", "ret", "je", "jrcxz", "loop"} <= seen


@given(code=st.binary(max_size=20), at=st.integers(0, 20))
@settings(max_examples=500, deadline=None)
def test_any_bytes_have_a_length(code: bytes, at: int):
    """At least one byte, so that a sweep ends; never more than an instruction can have."""
    length, effects = decode(code, at)
    assert 1 <= length <= MAX_LENGTH
    assert effects
    found = parse(code, at)
    assert found is None or at + found.length <= len(code)


# --- frames ---


@pytest.mark.peer
@pytest.mark.parametrize(
    "build",
    [
        ("leaves", "-O0"),
        ("leaves", "-O2 no fp"),
        ("frames", "-Os"),
        ("frames", "-O2 no fp"),
        ("registers", "-O1"),
        ("registers", "-Oz no fp"),
        ("switches", "-O2 no fp"),
        ("alike", "-O3"),
    ],
    ids=" ".join,
)
def test_analysis_agrees_with_the_tables_at_calls(build: tuple[str, str], lab_program: Build):
    """Compact unwind is right there, and analysis has followed the whole prologue."""
    contents = lab_program(*build, "compact", Arch.X86_64)
    analysis = instruction_rules(contents, Arch.X86_64)
    tables = CompactRules.of_macho(contents, Arch.X86_64, call_frame_rules(contents))
    assert analysis is not None
    assert tables is not None
    compared = 0
    for pc in _calls(contents):
        expected = tables.rule_for(pc, interrupted=False)
        rule = analysis.rule_for(pc, interrupted=True)
        if expected is None:
            continue  # assembly without tables
        assert rule is not None, f"{pc:#x}"
        assert rule.return_address == expected.return_address == AtCfa(-8)
        assert isinstance(rule.cfa, RegisterOffset)
        if rule.cfa.register == expected.cfa.register:  # type: ignore[union-attr]
            assert rule.cfa == expected.cfa, f"{pc:#x}"
        saved = dict(expected.registers)
        for register, recovery in rule.registers:
            assert saved[register] == recovery, f"{pc:#x}: register {register}"
        assert analysis.rule_for(pc, interrupted=False) is None
        compared += 1
    assert compared > 10


def _calls(contents: MachOFileContents) -> Iterator[Svma]:
    bounds = FunctionBounds.of_macho(contents)
    section = contents.image.section("__TEXT", "__text")
    assert section is not None
    data = parse_data_in_code(contents)
    at = int(section.address)
    while at < section.end:
        start, end = bounds.at(Svma(at)) or (at, at + 1)
        code = bytes(contents.read_svma(Svma(start), end - start))
        offset = 0
        while offset < len(code):
            length, effects = decode(code, offset)
            pc = Svma(start + offset)
            if isinstance(effects[0], Call) and not any(low <= pc < high for low, high in data):
                yield pc
            offset += length
        at = end


class _Code:
    """Code at address 0, and no other memory."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self.region = MemoryRegion(Avma(0), code)

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        return memoryview(self.region.read(Avma(address), size))

    read_file = read_svma


def _rules_of(code: bytes, data: tuple[tuple[int, int], ...] = ()) -> X86InstructionRules:
    def function_at(address: Svma) -> tuple[Svma, Svma] | None:
        return (Svma(0), Svma(len(code))) if 0 <= address < len(code) else None

    return X86InstructionRules(_Code(code), function_at, data)


def _cfa(rules: X86InstructionRules, at: int) -> tuple[int, int] | None:
    rule = rules.rule_for(Svma(at), interrupted=True)
    if rule is None:
        return None
    assert isinstance(rule.cfa, RegisterOffset)
    return rule.cfa.register, rule.cfa.offset


def _changed(rule: UnwindRule) -> dict[int, Recovery]:
    """Return the recoveries of registers that are not where the caller left them."""
    return {number: at for number, at in rule.registers if at != InRegister(number)}


def test_a_frame_from_its_first_instruction_to_its_last():
    """Each instruction of push rbp; mov rbp, rsp; push rbx; …; leave; ret."""
    # push rbp; mov rbp, rsp; push rbx; push rax; mov rbx, rdi; mov rbx, [rbp-8]; leave; ret
    code = bytes.fromhex("55 4889e5 53 50 4889fb 488b5df8 c9 c3")
    rules = _rules_of(code)
    offsets = [(0, 8), (1, 16), (4, 16), (5, 24), (6, 32), (9, 32), (13, 32), (14, 8)]
    assert [_cfa(rules, at) for at, _ in offsets] == [(7, offset) for _, offset in offsets]
    inside = rules.rule_for(Svma(9), interrupted=True)
    assert inside is not None
    assert _changed(inside) == {3: AtCfa(-24), 6: AtCfa(-16)}
    at_return = rules.rule_for(Svma(14), interrupted=True)
    assert at_return is not None
    assert not _changed(at_return)


def test_an_unlisted_function_behind_a_call_that_does_not_return():
    """Its return would leave the frame of the function that makes the call."""
    # push rbx; call; nop; xor eax, eax; test eax, eax; je 2; xor edx, edx; ret
    code = bytes.fromhex("53 85ff 7402 5bc3 e800010000 90 31c0 85c0 7402 31d2 c3")
    rules = _rules_of(code)
    assert _cfa(rules, 7) == (7, 16)
    assert [_cfa(rules, at) for at in (13, 15, 19, 21)] == [(7, 8)] * 4


def test_code_behind_a_call_that_returns_has_its_frame():
    """Another return of the function that is wrong does not change that."""
    # push rbx; test; je; call; pop rbx; ret; call; nop; ret
    code = bytes.fromhex("53 85ff 7407 e800010000 5b c3 e800010000 90 c3")
    rules = _rules_of(code)
    assert _cfa(rules, 10) == (7, 16)
    assert _cfa(rules, 11) == (7, 8)


def test_an_address_inside_an_instruction_has_no_rule():
    """Such a pc is wrong."""
    assert _cfa(_rules_of(bytes.fromhex("55 4889e5 5d c3")), 2) is None


def test_a_table_among_the_code_is_not_decoded():
    """Its bytes would swallow the first instruction after it."""
    # jmp over 3 bytes that start a longer instruction; push rbx; pop rbx; ret
    code = bytes.fromhex("eb03 e80000 53 5b c3")
    assert _cfa(_rules_of(code, ((2, 5),)), 6) == (7, 16)
    assert _cfa(_rules_of(code), 6) is None


@given(code=st.binary(min_size=1, max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_code_has_a_rule_or_none(code: bytes):
    """Any bytes as a function, at each instruction."""
    rules = _rules_of(code)
    for at in range(len(code)):
        _cfa(rules, at)


@pytest.mark.peer
def test_data_in_code_entries_are_inside_the_code(lab_program: Build):
    """A program with jump tables among its code has entries."""
    contents = lab_program("switches", "-O2 no fp", "compact", Arch.X86_64)
    section = contents.image.section("__TEXT", "__text")
    ranges = parse_data_in_code(contents)
    assert section is not None
    assert ranges
    assert all(section.address <= start < end <= section.end for start, end in ranges)
    tables = [bytes(contents.read_svma(start, end - start)) for start, end in ranges]
    for (start, _), table in zip(ranges, tables, strict=True):
        for (distance,) in struct.iter_unpack("<i", table[: len(table) // 4 * 4]):
            assert section.address <= start + distance < section.end


@pytest.mark.peer
def test_data_in_code_beyond_the_file_is_an_error(lab_program: Build):
    contents = lab_program("switches", "-O2 no fp", "compact", Arch.X86_64)
    with pytest.raises(MachOError, match="data in code"):
        parse_data_in_code(MachOFileContents(contents.data[: len(contents.data) // 2], "cut"))
