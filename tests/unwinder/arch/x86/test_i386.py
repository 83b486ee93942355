"""Instruction analysis of i386 code: lengths, effects, and frames."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.arch.x86.decoder import decode
from machtrace.unwinder.arch.x86.encoding import MAX_LENGTH, parse
from machtrace.unwinder.arch.x86.registers import EAX, EBP, EBX, ECX, EDI, ESI, ESP, MODE_32
from machtrace.unwinder.code.effects import NOTHING, AddConstant, Call, Return, Store, Trap
from machtrace.unwinder.rules import AtCfa, CallSiteRules, Lost, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.stubs import StubRules
from tests.support.compilers.executables import compile_object

pytest.importorskip("capstone", reason="capstone, which knows instructions, is not installed")
from tests.support.peers.x86_instructions import X86Peer

LIBRARIES = [Path("/lib32/libc.so.6"), Path("/lib/i386-linux-gnu/libc.so.6")]
"""Where distributions put the C library for i386."""


def _random_code(seed: int, count: int) -> Iterator[bytes]:
    """Return random bytes, many with a prefix of the larger opcode maps."""
    generator = random.Random(seed)  # noqa: S311 (the same bytes each time)
    firsts = (b"\x0f", b"\x0f", b"\xc5", b"\xc4", b"\x62", b"\x66", b"\x67", b"\x65", b"", b"", b"")
    for _ in range(count):
        first = generator.choice(firsts)
        yield first + generator.randbytes(18 - len(first))


def test_random_bytes_match_capstone():
    """Where each instruction ends and leads, and no written register is missed."""
    peer = X86Peer(MODE_32)
    verdicts = [peer.objections(code) for code in _random_code(3, 30_000)]
    known = [verdict for verdict in verdicts if verdict is not None]
    assert [objection for verdict in known for objection in verdict] == []
    assert len(known) > 20_000


def test_a_real_librarys_code_matches_capstone():
    """Every instruction of a stretch of a C library, assembly included."""
    path = next((path for path in LIBRARIES if path.exists()), None)
    if path is None:
        pytest.skip("no C library for i386 is installed")
    contents = ElfFileContents(path.read_bytes(), path.name)
    section = contents.image.section(".text")
    assert section is not None
    peer, compared = X86Peer(MODE_32), 0
    size = 1 << 14
    for start in range(section.address, section.end - size, (section.end - section.address) // 6):
        code = bytes(contents.read_svma(Svma(start), size))
        at = 64  # where a misaligned decoding may have synchronised again
        while at < size - MAX_LENGTH:
            objections = peer.objections(code, at)
            assert not objections, objections
            compared += objections is not None
            at += decode(code, at, MODE_32)[0]
    assert compared > 20_000


@given(code=st.binary(max_size=20), at=st.integers(0, 20))
@settings(max_examples=300, deadline=None)
def test_any_bytes_have_a_length(code: bytes, at: int):
    """At least one byte, so that a sweep ends; never more than are available."""
    length, effects = decode(code, at, MODE_32)
    assert 1 <= length <= MAX_LENGTH
    assert effects
    found = parse(code, at, MODE_32)
    assert found is None or at + found.length <= len(code)


@pytest.mark.parametrize(
    ("code", "effects"),
    [
        ("50", (Store((EAX,), 4, ESP, -4, -4),)),  # push eax
        ("44", (AddConstant(ESP, ESP, 1),)),  # inc esp, a prefix in 64-bit mode
        ("4d", (AddConstant(EBP, EBP, -1),)),  # dec ebp
        ("e800000000", (Store((None,), 4, ESP, -4, -4),)),  # call of what follows
        ("e801000000", (Call(6),)),
        ("c20800", (Return(8, 8),)),  # ret 8
        ("8d6424f0", (AddConstant(ESP, ESP, -16),)),  # lea esp, [esp - 16]
        ("9a0000000000ff", (Trap(),)),  # a far call
        ("83342400", (NOTHING,)),  # xor [esp], 0: a probe, which changes nothing
        ("83342401", (Store((None,), 4, ESP, 0),)),
    ],
)
def test_effects_of_instructions_on_the_stack(code: str, effects: tuple[object, ...]):
    """Words of four bytes, and the instructions that 64-bit mode removed."""
    data = bytes.fromhex(code)
    assert decode(data, 0, MODE_32) == (len(data), effects)


def test_pusha_and_popa_move_eight_words():
    """The stack pointer's word is skipped."""
    (size, pushed), (_, popped) = decode(b"\x60", 0, MODE_32), decode(b"\x61", 0, MODE_32)
    assert size == 1
    assert sum(effect.write_back for effect in pushed) == -32
    assert sum(effect.write_back for effect in popped) == 32
    order = [effect.registers[0] for effect in pushed]
    assert order == [EAX, ECX, 2, EBX, None, EBP, ESI, EDI]
    assert [effect.registers[0] for effect in popped] == order[::-1]


# --- frames ---


class _Code:
    """Code at address 0x1000, and no other memory."""

    source = "code"

    def __init__(self, code: bytes) -> None:
        self.region = MemoryRegion(Avma(0x1000), code)

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        return memoryview(self.region.read(Avma(address), size))

    read_file = read_svma


def _rules_of(*functions: str) -> X86InstructionRules:
    """Build consecutive functions from 0x1000 on; code beyond them is unknown."""
    codes = [bytes.fromhex(function) for function in functions]
    bounds, at = [], 0x1000
    for code in codes:
        bounds.append((Svma(at), Svma(at + len(code))))
        at += len(code)

    def function_at(address: Svma) -> tuple[Svma, Svma] | None:
        return next((b for b in bounds if b[0] <= address < b[1]), None)

    return X86InstructionRules(_Code(b"".join(codes)), function_at, mode=MODE_32)


def _rule(rules: X86InstructionRules, at: int) -> UnwindRule:
    rule = rules.rule_for(Svma(0x1000 + at), interrupted=True)
    assert rule is not None
    return rule


def _cfa(rules: X86InstructionRules, at: int) -> tuple[int, int]:
    cfa = _rule(rules, at).cfa
    assert isinstance(cfa, RegisterOffset)
    return cfa.register, cfa.offset


def test_a_frame_from_its_first_instruction_to_its_last():
    """Each instruction of push ebp; mov ebp, esp; push esi; push eax; …; pop ebp; ret."""
    # push ebp; mov ebp, esp; push esi; push eax; xor esi, esi; add esp, 4; pop esi; pop ebp; ret
    rules = _rules_of("55 89e5 56 50 31f6 83c404 5e 5d c3")
    assert [_cfa(rules, at) for at in (0, 1)] == [(ESP, 4), (ESP, 8)]
    assert {_cfa(rules, at) for at in (3, 4, 5, 7, 10, 11)} == {(EBP, 8)}
    assert _cfa(rules, 12) == (ESP, 4)
    assert dict(_rule(rules, 7).registers) == {EBP: AtCfa(-8), ESI: AtCfa(-12)}
    assert _rule(rules, 11).registers == ((EBP, AtCfa(-8)),)
    assert _rule(rules, 12).registers == ()
    assert {_rule(rules, at).return_address for at in (0, 4, 12)} == {AtCfa(-4)}


def test_the_base_of_position_independent_code_is_not_a_call():
    """Call; pop: the word is on the stack for one instruction."""
    # push ebx; call 6; pop ebx; pop ebx; ret
    rules = _rules_of("53 e800000000 5b 5b c3")
    assert [_cfa(rules, at) for at in (1, 6, 7, 8)] == [(ESP, 8), (ESP, 12), (ESP, 8), (ESP, 4)]


def test_a_known_function_pops_its_hidden_argument():
    """It returns a structure."""
    # sub esp, 8; push eax; call +2 (the next function); add esp, 8; ret — and: ret 4
    rules = _rules_of("83ec08 50 e804000000 83c408 c3", "c20400")
    assert [_cfa(rules, at) for at in (4, 9, 12)] == [(ESP, 16), (ESP, 12), (ESP, 4)]


@pytest.mark.parametrize(
    ("popped", "cleaned"), [(0, 28), (4, 24), (8, 20), (12, 16), (20, 8), (28, 0)]
)
def test_the_pops_of_an_unknown_function_are_inferred_from_the_return(popped: int, cleaned: int):
    """Words are pushed, a function is called through a pointer, and the rest is removed."""
    add = f"83c4{cleaned:02x}" if cleaned else "90"
    rules = _rules_of(f"83ec0c 50505050 ffd0 {add} c3")
    assert _cfa(rules, 7) == (ESP, 32)
    assert _cfa(rules, 9) == (ESP, 32 - popped)
    assert _cfa(rules, 9 + len(bytes.fromhex(add))) == (ESP, 4)


def test_the_pops_of_an_unknown_function_are_inferred_from_the_next_call():
    """Calls are aligned, so a push that restores the alignment shows how much was popped."""
    # sub esp, 12; call eax; sub esp, 4; call eax; mov esp from elsewhere; jump
    rules = _rules_of("83ec0c ffd0 83ec04 ffd0 8b20 ffe1")
    assert [_cfa(rules, at) for at in (3, 5, 8)] == [(ESP, 16), (ESP, 12), (ESP, 16)]


def test_code_that_is_entered_with_words_pushed():
    """As dyld_stub_binder, which pops the words of stub helpers."""
    # push ebp; mov ebp, esp; call eax; leave; add esp, 8; jmp eax
    rules = _rules_of("55 89e5 ffd0 c9 83c408 ffe0")
    assert _cfa(rules, 0) == (ESP, 12)
    assert _cfa(rules, 3) == (EBP, 16)
    assert _cfa(rules, 9) == (ESP, 4)
    call = CallSiteRules(rules).rule_for(Svma(0x1004), interrupted=False)
    assert call is not None
    assert (call.cfa, call.return_address) == (RegisterOffset(EBP, 16), AtCfa(-4))
    assert CallSiteRules(rules).rule_for(Svma(0x1004), interrupted=True) is None


def test_an_overwritten_register_is_lost():
    """It has no rule."""
    rules = _rules_of("31db c3")  # xor ebx, ebx; ret
    assert dict(_rule(rules, 2).registers) == {EBX: Lost()}


@given(code=st.binary(min_size=1, max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_code_has_a_rule_or_none(code: bytes):
    """Any bytes as a function, at each instruction."""
    rules = _rules_of(code.hex())
    for at in range(len(code)):
        rules.rule_for(Svma(0x1000 + at), interrupted=True)


def test_many_unknown_calls_are_inspected_within_bounds():
    """Code of nothing but calls through pointers has no lookahead after each of them."""
    rules = _rules_of("ffd0" * 20_000 + "c3")
    rules.rule_for(Svma(0x1000), interrupted=True)


# --- stubs ---

OLD_STUBS = """
    .text
    .globl _main
_main:
    ret
    .section __TEXT,__picsymbolstub2,symbol_stubs,pure_instructions,25
_outside_stub:
    .indirect_symbol _outside
    calll 1f
1:  popl %eax
    movl _outside_pointer-1b(%eax), %edx
    jmpl *%edx
_outside_binder:
    leal _outside_pointer-1b(%eax), %eax
    pushl %eax
    jmp _main
    .section __IMPORT,__jump_table,symbol_stubs,self_modifying_code+pure_instructions,5
_other_stub:
    .indirect_symbol _outside
    hlt; hlt; hlt; hlt; hlt
    .section __DATA,__la_symbol_ptr,lazy_symbol_pointers
_outside_pointer:
    .indirect_symbol _outside
    .long _outside_binder
"""


@pytest.mark.peer
def test_stubs_of_old_compilers(tmp_path: Path):
    """Position-independent ones with their own helpers, and those that dyld overwrites."""
    pytest.importorskip("ziglang", reason="ziglang, which assembles for i386, is not installed")
    source = tmp_path / "stubs.S"
    source.write_text(OLD_STUBS)
    unit = compile_object(source, tmp_path / "stubs.o", arch=Arch.I386)
    contents = MachOFileContents(unit.read_bytes(), "stubs.o")
    rules = StubRules.of_macho(contents, Arch.I386)
    section = contents.image.section("__TEXT", "__picsymbolstub2")
    other = contents.image.section("__IMPORT", "__jump_table")
    assert rules is not None
    assert section is not None
    assert other is not None
    # call; pop; mov; jmp; lea; push; jmp
    places = {0: 4, 5: 8, 6: 4, 12: 4, 14: 4, 20: 4, 21: 8}
    found = {at: rules.rule_for(Svma(section.address + at), interrupted=True) for at in places}
    wanted = {at: UnwindRule(RegisterOffset(ESP, n), AtCfa(-4)) for at, n in places.items()}
    assert found == wanted
    assert rules.rule_for(Svma(section.address + 7), interrupted=True) is None
    first = rules.rule_for(other.address, interrupted=True)
    assert first == UnwindRule(RegisterOffset(ESP, 4), AtCfa(-4))
    assert rules.rule_for(other.address, interrupted=False) is None
