"""Compact unwind: the section compared with llvm-objdump, the rules with emulated programs."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachOError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.compact_encoding import (
    Frameless,
    FramelessIndirect,
    FramePointerBased,
    InDwarf,
    decode,
    permuted,
)
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import ImageOffset, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.of_macho import call_frame_rules
from machtrace.unwinder.sources.stubs import StubRules
from machtrace.unwinder.step import step
from tests.support.emulated.run import OUTSIDE, EmulatedRun, Moment

Build = Callable[..., MachOFileContents]
MASK = PacMask.of_width(47)
X86_BUILDS = [
    ("frames", "-O0"),
    ("frames", "-O2 no fp"),
    ("registers", "-O2"),
    ("registers", "-O2 no fp"),
    ("registers", "-Oz no fp"),
    ("switches", "-O2 no fp"),
]


def _info(contents: MachOFileContents) -> UnwindInfo:
    section = contents.image.section("__TEXT", "__unwind_info")
    assert section is not None
    return UnwindInfo(contents.read_svma(section.address, section.size), "test")


def _rules(contents: MachOFileContents) -> CompactRules:
    call_frames = call_frame_rules(contents)
    rules = CompactRules.of_macho(contents, contents.image.arch, call_frames)
    assert rules is not None
    return rules


# --- the section ---


@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "optimisation", "arch"),
    [
        ("frames", "-O0", Arch.ARM64),
        ("registers", "-O2", Arch.ARM64),
        ("frames", "-O2 no fp", Arch.X86_64),
        ("registers", "-O2 no fp", Arch.X86_64),
    ],
)
def test_every_entry_equals_llvm_objdumps(
    name: str, optimisation: str, arch: Arch, lab_program: Build, tmp_path: Path
):
    """At each entry's start, at its last byte, and after the last entry."""
    objdump = next(filter(None, map(shutil.which, ("llvm-objdump-19", "llvm-objdump"))), None)
    if objdump is None:
        pytest.skip("llvm-objdump is not installed; it is the peer that reads the section")
    contents = lab_program(name, optimisation, "compact", arch)
    path = tmp_path / "program"
    path.write_bytes(contents.data)
    printed = subprocess.run(
        [objdump, "--macho", "--unwind-info", path], capture_output=True, text=True, check=True
    ).stdout
    entry = re.compile(r"function offset=0x(\w+), encoding(?:\[\d+\])?=0x(\w+)")
    expected = [(int(offset, 16), int(bits, 16)) for offset, bits in entry.findall(printed)]
    ends = re.findall(r"\[\d+\]: function offset=0x(\w+), 2nd level page offset=0x0+,", printed)
    assert len(expected) > 3, "llvm-objdump printed the entries"
    end = int(ends[0], 16)
    info = _info(contents)
    for (start, encoding), next_start in zip(
        expected, [start for start, _ in expected[1:]] + [end], strict=True
    ):
        for offset in (start, next_start - 1):
            found = info.find(ImageOffset(offset))
            assert found is not None
            assert (found.function_offset, found.end_offset, found.encoding) == (
                start,
                next_start,
                encoding,
            )
    assert info.find(ImageOffset(expected[0][0] - 1)) is None
    assert info.find(ImageOffset(end)) is None
    assert info.function_starts().tolist() == sorted({start for start, _ in expected})


def _section(
    pages: list[tuple[int, bytes]],
    end: int,
    *,
    common: tuple[int, ...] = (),
    personalities: tuple[int, ...] = (),
    lsda: tuple[tuple[int, int], ...] = (),
) -> bytes:
    """Build a section of ``(first function, page)``, laid out as the header permits."""
    common_at = 28
    personality_at = common_at + 4 * len(common)
    index_at = personality_at + 4 * len(personalities)
    lsda_at = index_at + 12 * (len(pages) + 1)
    page_at = lsda_at + 8 * len(lsda)
    index, body = b"", b""
    for number, (first, page) in enumerate(pages):
        lsda_start = lsda_at if number == 0 else lsda_at + 8 * len(lsda)
        index += struct.pack("<3I", first, page_at + len(body), lsda_start)
        body += page
    index += struct.pack("<3I", end, 0, lsda_at + 8 * len(lsda))
    return (
        struct.pack(
            "<7I",
            1,
            common_at,
            len(common),
            personality_at,
            len(personalities),
            index_at,
            len(pages) + 1,
        )
        + struct.pack(f"<{len(common)}I", *common)
        + struct.pack(f"<{len(personalities)}I", *personalities)
        + index
        + b"".join(struct.pack("<2I", *row) for row in lsda)
        + body
    )


def _regular(*entries: tuple[int, int]) -> bytes:
    return struct.pack("<IHH", 2, 8, len(entries)) + b"".join(
        struct.pack("<2I", *entry) for entry in entries
    )


def _compressed(entries: list[tuple[int, int]], encodings: tuple[int, ...]) -> bytes:
    header = struct.pack("<I4H", 3, 12, len(entries), 12 + 4 * len(entries), len(encodings))
    words = [number << 24 | delta for delta, number in entries]
    return header + struct.pack(f"<{len(words)}I{len(encodings)}I", *words, *encodings)


PAGES = _section(
    [
        (0x1000, _regular((0x1000, 0x02001000), (0x1100, 0x54000001))),
        (0x2000, _compressed([(0, 0), (0x40, 2), (0x90, 1)], (0x04000003,))),
    ],
    0x3000,
    common=(0x02000000, 0x03000010),
    personalities=(0x8000,),
    lsda=((0x1100, 0x7000),),
)


@pytest.mark.parametrize(
    ("offset", "start", "end", "encoding"),
    [
        (0x1000, 0x1000, 0x1100, 0x02001000),
        (0x1FFF, 0x1100, 0x2000, 0x54000001),
        (0x203F, 0x2000, 0x2040, 0x02000000),
        (0x2040, 0x2040, 0x2090, 0x04000003),
        (0x2FFF, 0x2090, 0x3000, 0x03000010),
    ],
)
def test_both_kinds_of_pages(offset: int, start: int, end: int, encoding: int):
    """Regular pages have encodings; compressed ones index common encodings, then their own."""
    found = UnwindInfo(PAGES, "test").find(ImageOffset(offset))
    assert found is not None
    assert (found.function_offset, found.end_offset, found.encoding) == (start, end, encoding)


def test_personality_and_lsda():
    """Both are offsets from the Mach-O header: of a pointer, and of data."""
    info = UnwindInfo(PAGES, "test")
    with_both, without = info.find(ImageOffset(0x1100)), info.find(ImageOffset(0x1000))
    assert with_both is not None
    assert without is not None
    assert (info.personality(with_both), info.lsda(with_both)) == (0x8000, 0x7000)
    assert (info.personality(without), info.lsda(without)) == (None, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut short"),
        (struct.pack("<7I", 2, 28, 0, 28, 0, 28, 0), "version 2"),
        (struct.pack("<7I", 1, 28, 1 << 30, 28, 0, 28, 0), "common encodings do not fit"),
        (struct.pack("<7I", 1, 28, 0, 28, 0, 28, 1 << 31), "first-level index do not fit"),
        (_section([(0x2000, _regular()), (0x1000, _regular())], 0x3000), "not in order"),
    ],
)
def test_a_malformed_section_has_a_stated_problem(data: bytes, message: str):
    """Counts are checked against the section's size before anything is read or allocated."""
    with pytest.raises(MachOError, match=message):
        UnwindInfo(data, "test")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (struct.pack("<IHH", 7, 8, 0), "page of kind 7"),
        (struct.pack("<IHH", 2, 8, 9999), "page entries do not fit"),
        (_compressed([(0, 5)], (1,)), "encoding 5 of a page that has 1"),
    ],
)
def test_a_malformed_page_is_an_error_when_it_is_queried(page: bytes, message: str):
    """Other pages are read."""
    info = UnwindInfo(_section([(0, _regular((0, 1))), (0x1000, page)], 0x2000), "test")
    assert info.find(ImageOffset(0x10)) is not None
    with pytest.raises(MachOError, match=message):
        info.find(ImageOffset(0x1000))


def test_pages_that_share_bytes_are_limited_by_the_section():
    """A small section cannot claim more functions than fit in it."""
    page = _regular(*((0x1000 + i, 0) for i in range(50)))
    header = 28 + 12 * 1001
    index = b"".join(struct.pack("<3I", 0x1000, header, 0) for _ in range(1000))
    data = struct.pack("<7I", 1, 28, 0, 28, 0, 28, 1001) + index
    data += struct.pack("<3I", 0x2000, 0, 0) + page
    with pytest.raises(MachOError, match="overlap"):
        UnwindInfo(data, "test").function_starts()


@given(data=st.binary(max_size=300), offset=st.integers(0, 1 << 32))
@settings(deadline=None)
def test_random_bytes_are_a_value_or_an_error(data: bytes, offset: int):
    """No other exception is raised."""
    _ask_everything(data, offset)


@given(
    at=st.integers(0, len(PAGES) - 4),
    word=st.integers(0, (1 << 32) - 1),
    offset=st.integers(0, 0x3000),
)
@settings(max_examples=300, deadline=None)
def test_altered_sections_are_a_value_or_an_error(at: int, word: int, offset: int):
    """The sections are nearly well formed."""
    data = bytearray(PAGES)
    data[at : at + 4] = struct.pack("<I", word)
    _ask_everything(bytes(data), offset)


def _ask_everything(data: bytes, offset: int) -> None:
    try:
        info = UnwindInfo(data, "test")
    except MachtraceError:
        return
    for ask in (info.function_starts, lambda: info.find(ImageOffset(offset))):
        try:
            found = ask()
            if found is not None and not hasattr(found, "dtype"):
                info.lsda(found)
                info.personality(found)
        except MachtraceError:
            pass


# --- encodings ---


def test_the_permutation_is_the_rank_of_the_chosen_registers():
    """All ordered choices of n of six, in lexicographic order."""
    for count in range(7):
        for rank, chosen in enumerate(permutations("abcdef", count)):
            assert permuted(tuple("abcdef"), count, rank) == chosen  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("encoding", "arch", "expected"),
    [
        # sub sp, #416; stp x28, x27, [sp, #400]
        (0x0201A010, Arch.ARM64, Frameless(416, ((27, -8), (28, -16)))),
        (0x04000103, Arch.ARM64, FramePointerBased(
            16, ((19, -24), (20, -32), (21, -40), (22, -48), (72, -56), (73, -64))
        )),
        (0x03000123, Arch.ARM64, InDwarf(0x123)),
        (0x04000018, Arch.X86_64, InDwarf(0x18)),
        # pushq %r15, %r14, %rbx; subq $24000
        (0x03088C0A, Arch.X86_64, FramelessIndirect(8, 32, ((3, -32), (14, -24), (15, -16)))),
        # movl %esp, %ebp; pushl %edi; pushl %esi: esi is at ebp - 8
        (0x01020025, Arch.I386, FramePointerBased(8, ((6, -16), (7, -12)))),
        # push {r4, r5, r6, r7, lr}; add r7, sp, #12; push {r8, r10, r11}
        (0x0100006F, Arch.ARMV7K, FramePointerBased(
            8, ((6, -12), (5, -16), (4, -20), (11, -24), (10, -28), (8, -32))
        )),
        (0x00000000, Arch.ARM64, None),
        (0x80000000, Arch.X86_64, None),
    ],
)  # fmt: skip
def test_encodings(encoding: int, arch: Arch, expected: object):
    """Computed by hand from the header and from the code beside each."""
    assert decode(encoding, arch, source="test", at=0) == expected


@given(encoding=st.integers(0, (1 << 32) - 1), arch=st.sampled_from(list(Arch)))
@settings(deadline=None)
def test_any_encoding_is_a_value_or_an_error(encoding: int, arch: Arch):
    """Modes, registers and permutations that do not exist are errors."""
    with suppress(MachOError):
        decode(encoding, arch, source="test", at=0)


# --- rules, compared with running programs ---


def _calls(contents: MachOFileContents) -> list[tuple[RegisterSet, Moment]]:
    """Yield each caller once for each stack depth: its registers, and the state at the call."""
    seen: set[tuple[int, int | None]] = set()
    steps: list[tuple[RegisterSet, Moment]] = []

    def visit(moment: Moment) -> None:
        caller = moment.callers[0]
        key = (caller.return_address, caller.registers.sp)
        if caller.return_address == OUTSIDE or key in seen:
            return
        seen.add(key)
        rule = rules.rule_for(Svma(caller.return_address - 1), interrupted=False)
        if rule is None:
            without.append(caller.return_address)
            return
        stepped = step(rule, caller.registers, moment.memory, MASK)
        expected = moment.callers[1]
        assert isinstance(stepped, RegisterSet), f"{caller.return_address:#x}: {stepped}"
        assert stepped.pc == expected.return_address
        for number in contents.image.arch.registers.callee_saved:
            assert stepped.get(number) == expected.registers.get(number), (
                f"register {number} of the caller of {caller.return_address:#x}, by {rule}"
            )
        steps.append((stepped, moment))

    rules = _rules(contents)
    without: list[int] = []
    EmulatedRun(contents).run(visit)
    assert not without, "a call in a function without a rule"
    return steps


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize(("name", "optimisation"), X86_BUILDS)
def test_x86_64_callers_are_recovered_exactly(name: str, optimisation: str, lab_program: Build):
    """At every call: the return address, sp, and each callee-saved register."""
    assert len(_calls(lab_program(name, optimisation, "compact", Arch.X86_64))) > 20


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize("optimisation", ["-O0", "-O2"])
@pytest.mark.parametrize("name", ["frames", "registers"])
def test_arm64_callers_are_recovered_exactly(name: str, optimisation: str, lab_program: Build):
    """The same, with pairs of general and floating-point registers."""
    assert len(_calls(lab_program(name, optimisation))) > 20


@pytest.mark.peer
def test_the_programs_use_every_x86_64_mode(lab_program: Build):
    """The tests above depend on it."""
    kinds: set[type] = set()
    saved: set[tuple[int, ...]] = set()
    for name, optimisation in X86_BUILDS:
        contents = lab_program(name, optimisation, "compact", Arch.X86_64)
        info = _info(contents)
        for start in info.function_starts().tolist():
            entry = info.find(ImageOffset(start))
            assert entry is not None
            decoded = decode(entry.encoding, Arch.X86_64, source="test", at=start)
            kinds.add(type(decoded))
            if isinstance(decoded, Frameless | FramelessIndirect):
                saved.add(tuple(register for register, _ in decoded.saved))
    assert {FramePointerBased, Frameless, FramelessIndirect} <= kinds
    assert any(6 in registers for registers in saved), "rbp is saved like any other register"
    assert len({len(registers) for registers in saved}) > 3


FRAMELESS_WITH_PAIRS = """
__attribute__((noinline)) long leaf(long a) {
    volatile long slots[50];
    for (int i = 0; i < 50; i++) slots[i] = a + i;
    __asm__ volatile("mov x27, #1\\n mov x28, #2\\n mov x19, #3\\n hint #0x7e"
                     ::: "x27", "x28", "x19");
    return slots[a & 7];
}
int main(void) { return (int)leaf(5); }
"""


@pytest.mark.emulated
@pytest.mark.peer
def test_arm64_frameless_functions_that_save_pairs(compiled: Build):
    """The return address is still in lr; pairs are below sp plus the frame's size."""
    contents = compiled(FRAMELESS_WITH_PAIRS, "-O1", "-fomit-frame-pointer")
    rules = _rules(contents)
    checked = []

    def visit(moment: Moment) -> None:
        pc = moment.registers.pc
        if bytes(moment.memory.read(pc, 4)) != struct.pack("<I", 0xD5032FDF):
            return
        rule = rules.rule_for(Svma(pc), interrupted=True)
        assert rule is not None
        assert rule.return_address == InRegister(30)
        stepped = step(rule, moment.registers, moment.memory, MASK)
        expected = moment.callers[0]
        assert isinstance(stepped, RegisterSet)
        assert stepped.pc == expected.return_address
        for number in (19, 20, 27, 28, 31):
            assert stepped.get(number) == expected.registers.get(number)
        checked.append(rule)

    EmulatedRun(contents).run(visit)
    assert checked
    assert dict(checked[0].registers)[27] == AtCfa(-24)


@pytest.mark.peer
def test_a_gap_has_no_rule(lab_program: Build):
    """Encoding 0 is neither a leaf nor the end of the stack: the next source is queried."""
    contents = lab_program("leaves", "-O2", "compact", Arch.X86_64)
    data = _section([(0, _regular((0, 0)))], 0x1000000)
    rules = CompactRules(contents, Arch.X86_64, UnwindInfo(data, "test"))
    header = contents.image.header_svma
    assert rules.rule_for(Svma(header + 0x1234), interrupted=False) is None
    assert rules.rule_for(Svma(header + 0x1234), interrupted=True) is None


class _OneFde:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def rule_at_fde_offset(self, offset: int, lookup: Svma, /) -> UnwindRule | None:
        self.asked.append((offset, lookup))
        return UnwindRule(RegisterOffset(31, 99), AtCfa(-8))


@pytest.mark.peer
def test_dwarf_mode_uses_the_fde_of_the_encoding(lab_program: Build):
    """Offset 0 names none."""
    contents = lab_program("leaves", "-O2")
    data = _section([(0, _regular((0, 0x03000044), (0x100, 0x03000000)))], 0x1000)
    fdes = _OneFde()
    rules = CompactRules(contents, Arch.ARM64, UnwindInfo(data, "test"), fdes)
    header = contents.image.header_svma
    rule = rules.rule_for(Svma(header + 0x10), interrupted=False)
    assert rule is not None
    assert rule.cfa == RegisterOffset(31, 99)
    assert rules.rule_for(Svma(header + 0x110), interrupted=False) is None
    assert fdes.asked == [(0x44, header + 0x10)]


@pytest.mark.peer
def test_an_x86_frame_too_small_for_its_registers_is_malformed(lab_program: Build):
    """It has no room for the return address."""
    contents = lab_program("leaves", "-O2", "compact", Arch.X86_64)
    data = _section([(0, _regular((0, 0x02010C00)))], 0x1000)
    rules = CompactRules(contents, Arch.X86_64, UnwindInfo(data, "test"))
    with pytest.raises(MachOError, match="frame of 8 bytes with 3 saved registers"):
        rules.rule_for(contents.image.header_svma, interrupted=False)


# --- stubs ---

STUBS = """
int outside(int);
int other(int);
__attribute__((noinline)) int calls(int a) { return other(a) + outside(a + 1); }
int main(void) { return calls(3) + 1; }
"""


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_every_instruction_of_a_stub_and_its_helper(arch: Arch, compiled: Build):
    """Up to the jump into dyld, where the run ends."""
    contents = compiled(STUBS, "-O1", arch=arch, link_options=("-Wl,-undefined,dynamic_lookup",))
    rules = StubRules.of_macho(contents, arch)
    got = next(section for section in contents.image.sections if section.name == "__got")
    assert rules is not None
    sections: list[str] = []

    def visit(moment: Moment) -> None:
        pc = Svma(moment.registers.pc)
        section = contents.image.section_at(pc)
        assert section is not None
        assert rules is not None
        rule = rules.rule_for(pc, interrupted=True)
        if section.name == "__text":
            assert rule is None
            return
        sections.append(section.name)
        assert rule is not None
        stepped = step(rule, moment.registers, moment.memory, MASK)
        assert isinstance(stepped, RegisterSet)
        assert stepped.pc == moment.callers[0].return_address, f"{pc:#x}: {rule}"
        assert stepped.sp == moment.callers[0].registers.sp
        assert rules.rule_for(pc, interrupted=False) is None

    EmulatedRun(contents, {got.address: struct.pack("<Q", OUTSIDE)}).run(visit)
    assert set(sections) == {"__stubs", "__stub_helper"}
    assert len(sections) == (11 if arch is Arch.ARM64 else 6)


@pytest.mark.peer
@given(data=st.binary(min_size=64, max_size=64), offset=st.integers(0, 63))
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_a_helper_section_are_a_rule_or_none(
    lab_stub: dict[Arch, MachOFileContents], data: bytes, offset: int
):
    """A shape that no linker writes has no rule, or a harmless one."""
    for arch, contents in lab_stub.items():
        section = contents.image.section("__TEXT", "__stub_helper")
        assert section is not None
        altered = bytearray(contents.data)
        altered[section.offset : section.offset + 64] = data
        rules = StubRules.of_macho(MachOFileContents(bytes(altered), "altered"), arch)
        assert rules is not None
        address = Svma(section.address + min(offset, section.size - 1))
        rules.rule_for(address, interrupted=True)


@pytest.fixture(scope="module")
def lab_stub(compiled: Build) -> dict[Arch, MachOFileContents]:
    """A program with stubs, for each architecture."""
    options = ("-Wl,-undefined,dynamic_lookup",)
    return {
        arch: compiled(STUBS, "-O1", arch=arch, link_options=options)
        for arch in (Arch.ARM64, Arch.X86_64)
    }
