"""Frames whose unwind table contradicts the function's code are flagged."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import LayeredMemory, MemoryRegion
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import Claims, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.unwinder import unwind
from tests.support.writers.processes import synthetic_process

OBJDUMP = next((name for name in ("llvm-objdump-19", "llvm-objdump") if shutil.which(name)), None)
CALLS = frozenset({"bl", "blr", "blraa", "blrab", "blraaz", "blrabz", "callq", "call", "calll"})
PROGRAMS = ("frames", "registers", "alike")
BUILDS = [
    (arch, optimisation, tables)
    for arch in (Arch.ARM64, Arch.X86_64)
    for optimisation in ("-O2", "-O2 no fp")
    for tables in ("compact", "dwarf")
]


def call_sites(contents, path):
    """Return the return address of every call in a program, by a disassembler."""
    if OBJDUMP is None:
        pytest.skip("llvm-objdump is not installed")
    path.write_bytes(contents.data)
    command = [OBJDUMP, "-d", "--no-show-raw-insn", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    offsets, is_after_call = [], False
    for line in done.stdout.splitlines():
        parts = re.match(r"\s*([0-9a-f]+):\s+(\S+)", line)
        if parts and is_after_call:
            offsets.append(int(parts[1], 16))
        is_after_call = bool(parts) and parts[2] in CALLS
    assert offsets
    return offsets


def process(contents, change=lambda rules: rules):
    """Return the rules of a process with one image; ``change`` may replace the image's."""
    parsed = contents.image
    rules = change(image_rules(contents, parsed.arch))
    image = BinaryImage(
        path="program",
        uuid=None,
        arch=parsed.arch,
        format=ImageFormat.MACHO,
        load_address=Avma(parsed.header_svma),
        header_svma=parsed.header_svma,
        size=1 << 20,
    )
    return RuleCache(ImageList([image]), parsed.arch, lambda _: rules)


@pytest.mark.peer
@pytest.mark.parametrize(("arch", "optimisation", "tables"), BUILDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_right_tables_are_not_disputed(lab_program, name, arch, optimisation, tables, tmp_path):
    """No call of any of the programs is flagged: a flag on every frame would be worthless."""
    contents = lab_program(name, optimisation, tables, arch)
    rules = process(contents)
    for address in call_sites(contents, tmp_path / "program"):
        lookup = Avma(address - 1)
        rule, trust = rules.find(lookup, interrupted=False)
        assert rules.objection(lookup) is None, (hex(address), trust, str(rule))


@pytest.mark.peer
@pytest.mark.parametrize("optimisation", ["-O2", "-O2 no fp"])
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_inline_assembly_that_pushes_is_not_disputed(lab_program, arch, optimisation, tmp_path):
    """Table and code are both right, each for its own part.

    Three functions do so; of two of them the table is relative to a frame pointer, if one exists,
    which does not move.
    """
    contents = lab_program("pushes", optimisation, "compact", arch)
    rules = process(contents)
    moved = []
    for address in call_sites(contents, tmp_path / "program"):
        lookup = Avma(address - 1)
        _, trust = rules.find(lookup, interrupted=False)
        assert rules.objection(lookup) is None
        if trust is FrameTrust.PROLOGUE:
            moved.append(lookup)
    assert len(moved) == (1 if optimisation == "-O2" else 3)


class Moved:
    """Rules whose CFA is slightly off: those of a function before it was rebuilt."""

    claims = Claims.AT_CALLS

    def __init__(self, source, by):
        self._source = source
        self._by = by
        self.trust = source.trust

    def rule_for(self, lookup, /, *, interrupted):
        """See RuleSource."""
        rule = self._source.rule_for(lookup, interrupted=interrupted)
        if rule is None or not isinstance(rule.cfa, RegisterOffset):
            return rule
        cfa = RegisterOffset(rule.cfa.register, rule.cfa.offset + self._by)
        return UnwindRule(cfa, rule.return_address, rule.registers)


@pytest.mark.peer
@pytest.mark.parametrize(("arch", "optimisation", "tables"), BUILDS)
def test_wrong_tables_are_disputed_at_nearly_every_call(
    lab_program, arch, optimisation, tables, tmp_path
):
    """The CFA is sixteen bytes off."""

    def moved(rules):
        sources = tuple(
            Moved(source, 16) if source.trust in (FrameTrust.COMPACT, FrameTrust.CFI) else source
            for source in rules.sources
        )
        return ImageRules(sources, rules.header_svma, rules.code_check)

    contents = lab_program("frames", optimisation, tables, arch)
    rules = process(contents, moved)
    asked = disputed = 0
    for address in call_sites(contents, tmp_path / "program"):
        lookup = Avma(address - 1)
        _, trust = rules.find(lookup, interrupted=False)
        asked += trust in (FrameTrust.COMPACT, FrameTrust.CFI)
        disputed += rules.objection(lookup) is not None
    assert asked > 5
    # main never returns, so nothing shows that its frame was understood.
    assert disputed >= 0.8 * asked


def patched_table(encoding):
    """Return a process in whose program the one entry for all functions is different."""
    process = synthetic_process(Arch.X86_64, threads=1, images=2, depth=6)
    program = process.regions[0]
    section = MachOMemoryContents(process.snapshot.memory, program.start, "program").image.section(
        "__TEXT", "__unwind_info"
    )
    assert section is not None
    at = section.address - process.images[0].header_svma
    table = bytes(program.data[at : at + section.size])
    assert table.endswith(RBP_FRAME)
    patch = MemoryRegion(Avma(program.start + at), table[:-4] + encoding.to_bytes(4, "little"))
    memory = LayeredMemory((patch, process.snapshot.memory))
    (true,) = process.stacks.values()
    return replace(process.snapshot, memory=memory), true, program


RBP_FRAME = 0x01000000.to_bytes(4, "little")


def test_a_plausible_caller_of_a_stale_table_is_disputed():
    """It is followed, and every such frame has the dispute."""
    # Frameless, 64 bytes: two frames of these functions. The return address is the next frame's.
    snapshot, true, program = patched_table(0x02080000)
    (backtrace,) = unwind(snapshot)

    disputed = [frame for frame in backtrace.addresses if frame.disputed_by]
    assert disputed
    for frame in disputed:
        (dispute,) = frame.disputed_by
        assert FrameTrust.COMPACT is frame.trust
        assert FrameTrust.PROLOGUE is dispute.trust
        assert dispute.address in true
        assert true.index(dispute.address) + 1 == true.index(frame.address)
    # A frame is disputed where its callee is the program's, and was not interrupted.
    inside = [program.start <= frame.address < program.end for frame in backtrace.addresses]
    assert inside[1:-1] == [bool(frame.disputed_by) for frame in backtrace.addresses[2:]]


def test_the_code_is_followed_if_a_stale_table_leads_nowhere():
    """The stack is complete, and has the table's caller in the dispute."""
    # Frameless, 24 bytes: at its return address's offset, the caller's rbp was saved.
    snapshot, true, _ = patched_table(0x02030000)
    (backtrace,) = unwind(snapshot)

    assert true == tuple(frame.address for frame in backtrace.addresses)
    assert backtrace.stop.is_complete
    disputed = [frame for frame in backtrace.addresses if frame.disputed_by]
    assert disputed
    for frame in disputed:
        (dispute,) = frame.disputed_by
        assert FrameTrust.PROLOGUE is frame.trust
        assert FrameTrust.COMPACT is dispute.trust
        assert dispute.address not in true


def test_right_tables_dispute_no_frame():
    """The same process with the unpatched table."""
    process = synthetic_process(Arch.X86_64, threads=3, depth=20)
    for found in unwind(process.snapshot):
        assert not any(address.disputed_by for address in found.addresses)


@pytest.mark.peer
def test_a_wrong_row_of_call_frame_information_is_disputed(lab_program, tmp_path):
    """One byte of ``__eh_frame`` is wrong: the CFA after the prologue."""
    contents = lab_program("frames", "-O2 no fp", "dwarf", Arch.ARM64)
    section = contents.image.section("__TEXT", "__eh_frame")
    assert section is not None
    data = bytearray(contents.data)
    start, end = section.offset, section.offset + section.size
    # DW_CFA_def_cfa_offset and its operand, behind an advance.
    places = [
        at + 1
        for at in range(start, end - 1)
        if data[at] == 0x0E and data[at - 1] & 0xC0 == 0x40 and 0x10 <= data[at + 1] < 0x70
    ]
    assert places
    for at in places:
        data[at] += 16
    rules = process(MachOFileContents(bytes(data), "program"))
    right = process(contents)
    disputed = 0
    for address in call_sites(contents, tmp_path / "program"):
        lookup = Avma(address - 1)
        rule, trust = rules.find(lookup, interrupted=False)
        if rule != right.find(lookup, interrupted=False)[0]:
            assert rules.objection(lookup) is not None, (hex(address), trust, str(rule))
            disputed += 1
        else:
            assert rules.objection(lookup) is None
    assert disputed
