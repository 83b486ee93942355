"""Call-frame rules of ELF and Mach-O images equal the rows that LLVM prints."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.errors import DwarfError, FormatError, MachtraceError
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.elf.eh_frame_hdr import SearchTable
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind, FrameTrust, Stop, StopReason
from machtrace.unwinder.rules import (
    AtCfa,
    ExpressionValue,
    InRegister,
    Lost,
    RegisterOffset,
    UnwindRule,
    describe,
)
from machtrace.unwinder.sources.cfi import CallFrameRules, sections_of_elf
from machtrace.unwinder.sources.of_macho import call_frame_rules
from machtrace.unwinder.step import step
from tests.support.compilers.executables import DWARF_TABLES, compile_elf, compile_macho
from tests.support.peers.cfi_tables import PeerFunction, llvm_functions, llvm_register_names

PROGRAMS = Path(__file__).parents[2] / "formats" / "dwarf" / "programs"
MASK = PacMask.of_width(47)
Dump = Callable[..., list[PeerFunction]]


@pytest.fixture(scope="module")
def dump() -> Dump:
    """Return the call-frame table of a file, as LLVM prints it."""
    program = shutil.which("llvm-dwarfdump-19") or shutil.which("llvm-dwarfdump")

    def run(path: Path, option: str = "--eh-frame") -> list[PeerFunction]:
        if program is None:
            pytest.skip("llvm-dwarfdump is not installed; it is the peer here")
        done = subprocess.run(
            [program, option, path], capture_output=True, text=True, timeout=60, check=True
        )
        return llvm_functions(done.stdout)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this module's programs."""
    return tmp_path_factory.mktemp("cfi")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """A program of this machine, without frame pointers."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    sources = [PROGRAMS / "frames.c", PROGRAMS / "main.c"]
    return compile_elf(sources, folder / "program", options=("-O2", "-fomit-frame-pointer"))


@pytest.fixture(scope="module")
def zig(folder: Path) -> Callable[..., Path]:
    """Build a library for another machine."""

    def build(target: str, *options: str) -> Path:
        if find_spec("ziglang") is None:
            pytest.skip("ziglang is not installed; it compiles for other machines")
        output = folder / "-".join((target, *options)).replace("/", "_").replace("=", "_")
        if not output.exists():
            options = ("-shared", "-O2", "-fomit-frame-pointer", *options)
            compile_elf([PROGRAMS / "frames.c"], output, target=target, options=options)
        return output

    return build


@pytest.fixture(scope="module")
def macho(folder: Path) -> Callable[[Arch], Path]:
    """A Mach-O library with ``__eh_frame``."""

    def build(arch: Arch) -> Path:
        if find_spec("ziglang") is None:
            pytest.skip("ziglang is not installed; it links Mach-O files")
        output = folder / f"{arch.value}.dylib"
        if not output.exists():
            compile_macho(
                [PROGRAMS / "frames.c"],
                output,
                arch=arch,
                options=(
                    "-O2",
                    "-fomit-frame-pointer",
                    *DWARF_TABLES,
                ),
                link_options=("-shared", "-Wl,-undefined,dynamic_lookup"),
            )
        return output

    return build


@pytest.fixture(scope="module")
def libc() -> Path:
    """The C library of this process."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    found = next((line.split()[-1] for line in lines if line.endswith("/libc.so.6")), None)
    if found is None:
        pytest.skip("this process has no libc.so.6")
    return Path(found)


def _elf(path: Path) -> ElfFileContents:
    return ElfFileContents(path.read_bytes(), path.name)


def _rules(contents: ElfFileContents | ElfMemoryContents) -> CallFrameRules:
    rules = CallFrameRules.of_elf(contents)
    assert rules is not None
    return rules


def _of_macho(contents: MachOFileContents) -> CallFrameRules:
    rules = call_frame_rules(contents)
    assert rules is not None
    return rules


def _ours(rule: UnwindRule, arch: Arch) -> str:
    """Return a rule in LLVM's words: the CFA, the return address and other registers."""
    name = llvm_register_names(arch)
    numbers = range(len(arch.registers.names))
    return describe(rule, {n: name(n) for n in numbers}).replace(" ", "")


def _theirs(row: str, arch: Arch) -> str:
    """Return LLVM's row in a rule's notation: ``CFA=RSP+16: RBX=[CFA-16], RIP=[CFA-8]``."""
    name = llvm_register_names(arch)
    tracked = {name(n): n for n in range(len(arch.registers.names))}
    column = name(arch.registers.return_column)
    cfa, _, rest = row.partition(": ")
    said = dict(place.split("=", 1) for place in rest.split(", ") if place)
    for flag in ("reg34", "RA_SIGN_STATE"):
        said.pop(flag, None)
    places = {
        register: place.replace("[CFA", "*(cfa").replace("]", ")").replace("undefined", "lost")
        for register, place in said.items()
    }
    parts = [cfa.replace("CFA=", "cfa="), f"pc={places.get(column, column)}"]
    pc = {"RIP", "EIP", "PC"}
    parts += [
        f"{register}={places[register]}" for register in places if register in tracked.keys() - pc
    ]
    return ",".join(parts)


def _places(functions: list[PeerFunction]) -> Iterator[tuple[Svma, str]]:
    """Return the first and the last byte of each row, with the row."""
    for function in functions:
        starts = [start for start in sorted(function.rows) if start < function.end]
        for start, end in zip(starts, [*starts[1:], function.end], strict=True):
            yield Svma(start), function.rows[start]
            yield Svma(end - 1), function.rows[start]


def _compare(rules: CallFrameRules, functions: list[PeerFunction], arch: Arch) -> int:
    compared = 0
    for address, row in _places(functions):
        if "DW_OP" in row or "=same" in row:
            continue
        rule = rules.rule_for(address, interrupted=compared % 2 == 0)
        assert rule is not None, hex(address)
        assert _ours(rule, arch) == _theirs(row, arch), hex(address)
        compared += 1
    return compared


@pytest.mark.peer
@pytest.mark.parametrize("name", ["program", "libc"])
def test_rules_of_this_machines_files_equal_llvms(
    name: str, request: pytest.FixtureRequest, dump: Dump
) -> None:
    """At both ends of every row of a sample of the functions."""
    path: Path = request.getfixturevalue(name)
    contents = _elf(path)
    assert _compare(_rules(contents), dump(path)[::4], contents.image.arch) > 20


@pytest.mark.peer
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("aarch64-linux-musl", ()),
        ("aarch64-linux-musl", ("-mbranch-protection=standard",)),
        ("x86-linux-musl", ()),
        ("x86_64-linux-musl", ()),
    ],
)
def test_rules_of_other_machines_files_equal_llvms(
    zig: Callable[..., Path], dump: Dump, target: str, options: tuple[str, ...]
) -> None:
    """The machines are arm64, its return address signed and not, and both widths of x86."""
    path = zig(target, *options)
    contents = _elf(path)
    assert _compare(_rules(contents), dump(path), contents.image.arch) > 30


@pytest.mark.peer
def test_rules_of_arm_are_in_the_section_for_debuggers(
    zig: Callable[..., Path], dump: Dump
) -> None:
    """Its own unwind tables have another format; compilers write both with ``-g``."""
    path = zig("arm-linux-musleabihf", "-g")
    rules = _rules(_elf(path))
    assert _compare(rules, dump(path, "--debug-frame"), Arch.ARM) > 20


@pytest.mark.peer
def test_functions_missing_in_eh_frame_are_found_in_debug_frame(folder: Path, dump: Dump) -> None:
    """One rule source answers from both sections."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = folder / "debug_frame"
    options = ("-g", "-O2", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables")
    compile_elf([PROGRAMS / "frames.c", PROGRAMS / "main.c"], path, options=options)
    contents = _elf(path)
    rules, arch = _rules(contents), contents.image.arch
    assert _compare(rules, dump(path, "--debug-frame"), arch) > 20
    assert _compare(rules, dump(path, "--eh-frame"), arch) > 4


@pytest.mark.peer
@pytest.mark.parametrize(("arch", "places"), [(Arch.ARM64, 30), (Arch.X86_64, 2)])
def test_rules_of_mach_o_equal_llvms(
    macho: Callable[[Arch], Path], dump: Dump, arch: Arch, places: int
) -> None:
    """``__eh_frame`` has no search table: it is read sequentially.

    On x86-64 linkers retain only the FDEs that compact unwind cannot express.
    """
    path = macho(arch)
    rules = _of_macho(MachOFileContents(path.read_bytes(), path.name))
    assert rules.trust is FrameTrust.CFI
    assert _compare(rules, dump(path), arch) >= places


@pytest.mark.peer
def test_compact_unwind_names_an_fde_by_its_offset(
    macho: Callable[[Arch], Path], dump: Dump
) -> None:
    """The same rule by the offset as by the address, and none by a neighbour's."""
    path = macho(Arch.ARM64)
    rules = _of_macho(MachOFileContents(path.read_bytes(), path.name))
    functions = [f for f in dump(path) if f.rows]
    for function, other in pairwise(functions):
        for start in map(Svma, function.rows):
            by_offset = rules.rule_at_fde_offset(function.offset, start)
            assert by_offset == rules.rule_for(start, interrupted=True)
            assert rules.rule_at_fde_offset(other.offset, start) is None
    with pytest.raises(DwarfError, match="not an FDE"):
        rules.rule_at_fde_offset(0, Svma(functions[0].start))
    with pytest.raises(DwarfError):
        rules.rule_at_fde_offset(0xFFFFFF, Svma(functions[0].start))


@pytest.mark.peer
def test_apples_i386_numbers_are_translated(folder: Path) -> None:
    """In its ``__eh_frame`` 4 is ebp and 5 is esp.

    At a function's start the return address is at esp, on any i386; after the usual prologue ebp is
    saved below it and the CFA is 8 bytes above ebp.
    """
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles for Apple's i386")
    unit = folder / "i386.o"
    options = ("-target", "i386-apple-macos10.12", "-O1", "-fno-omit-frame-pointer", "-c")
    command = [sys.executable, "-m", "ziglang", "clang", *options, PROGRAMS / "frames.c"]
    subprocess.run([*command, "-o", unit], check=True, timeout=120)
    contents = MachOFileContents(unit.read_bytes(), "i386.o")
    rules = _of_macho(contents)
    text = contents.image.section("__TEXT", "__text")
    assert text is not None
    code = bytes(contents.read_svma(text.address, text.size))
    prologue = code.index(b"\x55\x89\xe5")  # push ebp; mov ebp, esp
    start = Svma(text.address + prologue)
    at_entry = rules.rule_for(start, interrupted=True)
    assert at_entry == UnwindRule(RegisterOffset(4, 4), AtCfa(-4))
    pushed = rules.rule_for(Svma(start + 1), interrupted=True)
    assert pushed == UnwindRule(RegisterOffset(4, 8), AtCfa(-4), ((5, AtCfa(-8)),))
    inside = rules.rule_for(Svma(start + 3), interrupted=True)
    assert inside is not None
    assert inside.cfa == RegisterOffset(5, 8)
    assert dict(inside.registers)[5] == AtCfa(-8)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["program", "libc", "zig"])
def test_the_table_of_the_header_and_the_section_itself_agree(
    name: str, request: pytest.FixtureRequest
) -> None:
    """For every FDE, by the linker's binary search table and by a sequential scan."""
    found = request.getfixturevalue(name)
    path: Path = found("aarch64_be-linux-musl") if name == "zig" else found
    indexed = sections_of_elf(_elf(path))[0]
    by_header, by_scan = indexed.index, build_index(indexed.section)
    assert isinstance(by_header, SearchTable)
    assert by_scan.malformed_at is None
    assert (by_header.starts == by_scan.starts).all()
    assert (by_header.offsets == by_scan.offsets).all()
    starts = by_scan.starts.tolist()
    for start, after in zip(starts, [*starts[1:], starts[-1] + 1], strict=True):
        for address in (start, after - 1):
            assert by_header.find(address) == by_scan.find(address)
    assert by_header.find(starts[0] - 1) is None


@pytest.mark.peer
def test_without_a_usable_header_the_section_is_scanned(
    zig: Callable[..., Path], dump: Dump
) -> None:
    """The header has an unknown version, or no table."""
    path = zig("aarch64-linux-musl")
    section = _elf(path).image.section(".eh_frame_hdr")
    assert section is not None
    for place, byte in ((0, 9), (3, 0xFF), (3, 0x50)):
        data = bytearray(path.read_bytes())
        data[section.offset + place] = byte
        rules = _rules(ElfFileContents(bytes(data), "broken"))
        assert _compare(rules, dump(path), Arch.ARM64) > 30


def _loaded(contents: ElfFileContents, slide: int) -> RegionMemory:
    return RegionMemory(
        MemoryRegion(
            Avma(segment.address + slide),
            bytes(contents.read_svma(segment.address, segment.file_size)),
        )
        for segment in contents.image.load_segments
    )


@pytest.mark.peer
def test_rules_of_an_image_in_memory(zig: Callable[..., Path], dump: Dump, libc: Path) -> None:
    """By its program headers alone, with any slide."""
    for path in (zig("aarch64-linux-musl"), libc):
        contents, slide = _elf(path), 0x7F00_1234_0000
        memory = _loaded(contents, slide)
        loaded = ElfMemoryContents(memory, Avma(contents.image.header_svma + slide), "memory")
        functions = dump(path)[:150]
        assert _compare(_rules(loaded), functions, contents.image.arch) > 30


@pytest.mark.peer
def test_rules_of_the_vdso(tmp_path: Path, dump: Dump) -> None:
    """It is in no file, and threads enter the kernel through it."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    line = next((line for line in lines if line.endswith("[vdso]")), None)
    if line is None:
        pytest.skip("this process has no vdso")
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    pages = ctypes.string_at(start, end - start)
    (tmp_path / "vdso").write_bytes(pages)
    contents = ElfMemoryContents(MemoryRegion(Avma(start), pages), Avma(start), "[vdso]")
    assert _compare(_rules(contents), dump(tmp_path / "vdso"), contents.image.arch) > 5


@pytest.mark.peer
def test_an_undefined_return_address_is_a_root(libc: Path, dump: Dump) -> None:
    """A new thread has no caller after ``clone``."""
    rules = _rules(_elf(libc))
    rows = [(at, row) for f in dump(libc) for at, row in f.rows.items() if "RIP=undefined" in row]
    if not rows:
        pytest.skip("this libc marks no root so")
    for address, _ in rows:
        rule = rules.rule_for(Svma(address), interrupted=False)
        assert rule is not None
        assert rule.return_address == Lost()
        registers = RegisterSet.of(Arch.X86_64, pc=address, sp=0x7000)
        assert step(rule, registers, RegionMemory(), MASK) == Stop(StopReason.ROOT)


@pytest.mark.peer
def test_the_program_start_is_a_root(program: Path) -> None:
    """``_start``, by its entry point."""
    contents = _elf(program)
    entry = contents.image.header.entry
    rule = _rules(contents).rule_for(Svma(entry + 8), interrupted=False)
    assert rule is not None
    assert rule.return_address == Lost()


# ``struct ucontext`` as the kernel leaves it on x86-64 (asm/ucontext.h, asm/sigcontext.h): 40
# bytes of flags, link and stack, then the registers in this order, by DWARF number.
SIGNAL_REGISTERS = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)


@pytest.mark.peer
def test_every_register_interrupted_by_a_signal_is_recovered(libc: Path, dump: Dump) -> None:
    """From the kernel's frame, by libc's expressions for its return code."""
    functions = [f for f in dump(libc) if any("DW_OP_breg7 RSP+168" in r for r in f.rows.values())]
    if not functions:
        pytest.skip("this libc is not one for x86-64, or does not describe signal frames")
    # The FDE starts a byte before the code, so that a lookup of the return address less 1 is in it.
    code = Svma(functions[0].start + 1)
    rules = _rules(_elf(libc))
    rule = rules.rule_for(code, interrupted=True)
    assert rule is not None
    assert rule == rules.rule_for(Svma(code - 1), interrupted=False)
    assert rule.is_signal_frame
    assert rule.caller_kind is AddressKind.PROGRAM_COUNTER

    values = {number: 0x7000_1000 + 0x100 * number for number in SIGNAL_REGISTERS}
    context = bytes(40) + struct.pack("<17Q", *(values[n] for n in SIGNAL_REGISTERS))
    memory = MemoryRegion(Avma(0x8000), context)
    caller = step(rule, RegisterSet.of(Arch.X86_64, pc=code, sp=0x8000), memory, MASK)
    assert isinstance(caller, RegisterSet)
    assert caller.pc == values[16]
    assert {n: caller.get(n) for n in SIGNAL_REGISTERS[:-1]} == {
        n: values[n] for n in SIGNAL_REGISTERS[:-1]
    }


@pytest.mark.peer
def test_a_lazy_stub_has_a_caller_at_every_instruction(program: Path) -> None:
    """One expression covers all stubs: the number is pushed after the first eleven bytes."""
    contents = _elf(program)
    section = contents.image.section(".plt")
    if section is None or contents.image.arch is not Arch.X86_64:
        pytest.skip("this machine's programs have no lazy stubs")
    rules, stub = _rules(contents), section.address + 16
    stack = MemoryRegion(Avma(0x7000), struct.pack("<2Q", 0x401111, 0x402222))
    for offset, expected in ((0, 0x401111), (6, 0x401111), (11, 0x402222)):
        rule = rules.rule_for(Svma(stub + offset), interrupted=True)
        assert rule is not None
        assert isinstance(rule.cfa, ExpressionValue)
        caller = step(rule, RegisterSet.of(Arch.X86_64, pc=stub + offset, sp=0x7000), stack, MASK)
        assert isinstance(caller, RegisterSet)
        assert caller.pc == expected


@pytest.mark.peer
def test_code_that_no_fde_describes_has_no_rule(program: Path, dump: Dump) -> None:
    """Before the first, between two, and after the last."""
    rules = _rules(_elf(program))
    functions = sorted(dump(program), key=lambda f: f.start)
    assert rules.rule_for(Svma(functions[0].start - 1), interrupted=True) is None
    assert rules.rule_for(Svma(functions[-1].end), interrupted=True) is None
    gaps = [a.end for a, b in pairwise(functions) if a.end < b.start]
    assert gaps
    assert all(rules.rule_for(Svma(gap), interrupted=True) is None for gap in gaps)


@pytest.mark.peer
def test_one_malformed_function_does_not_affect_the_others(
    zig: Callable[..., Path], dump: Dump
) -> None:
    """The error names the malformed record."""
    path = zig("aarch64-linux-musl")
    functions = dump(path)
    section = _elf(path).image.section(".eh_frame")
    assert section is not None
    data = bytearray(path.read_bytes())
    bad = functions[1]
    data[section.offset + bad.offset + 17] = 0x3F  # the first instruction
    rules = _rules(ElfFileContents(bytes(data), "broken"))
    with pytest.raises(FormatError, match=rf"0x3f: broken \.eh_frame.*{bad.offset:#x}"):
        rules.rule_for(Svma(bad.start), interrupted=True)
    assert _compare(rules, [functions[0], *functions[2:]], Arch.ARM64) > 20


@pytest.mark.peer
@given(data=st.data())
# The first example of each file compiles it, and a busy machine is slow.
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_changed_bytes_give_a_rule_or_an_error(
    zig: Callable[..., Path], macho: Callable[[Arch], Path], data: st.DataObject
) -> None:
    """By every lookup of a rule, as a file and as memory; each rule can be applied."""
    is_elf = data.draw(st.booleans())
    path = zig("aarch64-linux-musl") if is_elf else macho(Arch.ARM64)
    changed = bytearray(path.read_bytes())
    places = st.integers(0, min(len(changed), 0x1800) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=16)):
        changed[place] = byte
    try:
        rules = _any_rules(bytes(changed), is_elf=is_elf, in_memory=data.draw(st.booleans()))
    except MachtraceError:
        return
    if rules is None:
        return
    registers = RegisterSet.of(Arch.ARM64, pc=0x4000, sp=0x7000, fp=0x7010, lr=0x5000)
    for address in data.draw(st.lists(st.integers(0, 0x20000), max_size=20)):
        for lookup in (address, 0x1_0000_0000 + address):
            for ask in (rules.rule_for, _by_offset(rules)):
                try:
                    rule = ask(Svma(lookup), interrupted=False)
                except MachtraceError:
                    continue
                if rule is not None:
                    step(rule, registers, MemoryRegion(Avma(0x7000), bytes(64)), MASK)


def _any_rules(data: bytes, *, is_elf: bool, in_memory: bool) -> CallFrameRules | None:
    memory = MemoryRegion(Avma(0x10000), data)
    if is_elf:
        loaded = ElfMemoryContents(memory, memory.start, "memory") if in_memory else None
        return CallFrameRules.of_elf(loaded or ElfFileContents(data, "file"))
    linked = MachOMemoryContents(memory, memory.start, "memory") if in_memory else None
    return call_frame_rules(linked or MachOFileContents(data, "file"))


def _by_offset(rules: CallFrameRules) -> Callable[..., UnwindRule | None]:
    def ask(lookup: Svma, *, interrupted: bool) -> UnwindRule | None:
        del interrupted
        return rules.rule_at_fde_offset(lookup & 0xFFF, lookup)

    return ask


@pytest.mark.peer
def test_images_without_call_frame_information_have_no_rules(
    zig: Callable[..., Path], folder: Path
) -> None:
    """None is returned, so that other sources are queried; object files are not linked yet."""
    bare = zig("x86_64-linux-musl", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-s")
    assert CallFrameRules.of_elf(_elf(bare)) is None
    unit = folder / "unit.o"
    compile_elf([PROGRAMS / "frames.c"], unit, target="aarch64-linux-musl", options=("-c",))
    assert CallFrameRules.of_elf(_elf(unit)) is None


def test_return_addresses_in_other_registers_are_followed() -> None:
    """As in outlined code on arm64."""
    from machtrace.formats.dwarf.cfi_rows import (
        CallFrameRow,
        CfaRegister,
        InOtherRegister,
        SameValue,
    )
    from machtrace.unwinder.sources.cfi import RegisterNumbering, rule_of

    row = CallFrameRow(
        start=Svma(0),
        end=Svma(4),
        cfa=CfaRegister(31, 0),
        registers=(
            (19, SameValue()),
            (30, InOtherRegister(15)),
            (72, SameValue()),
            (90, SameValue()),
        ),
        return_column=30,
        is_signal_frame=False,
        ra_signed=False,
    )
    rule = rule_of(row, RegisterNumbering(Arch.ARM64))
    assert rule.return_address == InRegister(15)
    # x19 and the low half of v8 are preserved by the ABI anyhow; v26 is not.
    assert rule.registers == ((30, InRegister(15)), (90, InRegister(90)))


DELAYED_STORE = """
    .globl _start
_start:
    .cfi_startproc
    sub sp, sp, #0x80
    .cfi_def_cfa_offset 0x80
    .cfi_offset 30, -16
    .cfi_offset 19, -32
    ldr x8, [x0]
    str x19, [sp, #0x60]
    cbz x8, 1f
    stp x9, x30, [sp, #0x68]
    nop
1:  bl elsewhere
    add sp, sp, #0x80
    ret
    .cfi_endproc
elsewhere:
    .cfi_startproc
    .cfi_offset 30, -16
    b _start
    nop
    .cfi_endproc
"""
"""LLVM paired the store of x30 with a later one, as in a panic of Rust's standard library."""


@pytest.mark.peer
def test_registers_are_unchanged_before_their_store(tmp_path: Path) -> None:
    """Arm64's rows of a prologue can precede the stores that they describe."""
    (tmp_path / "program.S").write_text(DELAYED_STORE)
    contents = _elf(
        compile_elf(
            [tmp_path / "program.S"],
            tmp_path / "program",
            target="aarch64-linux-musl",
            options=("-Wl,-e,_start", "-nostdlib"),
        )
    )
    rules, start = _rules(contents), contents.image.code_ranges[0][0]
    unsaved, saved, x19 = InRegister(30), AtCfa(-16), (19, AtCfa(-32))

    def recovery(offset: int, *, interrupted: bool = True) -> tuple[object, bool]:
        rule = rules.rule_for(Svma(start + offset), interrupted=interrupted)
        assert rule is not None
        return rule.return_address, x19 in rule.registers

    assert [recovery(offset) for offset in range(0, 28, 4)] == [
        (unsaved, False),
        (unsaved, False),
        (unsaved, False),
        (unsaved, True),
        (unsaved, True),
        (saved, True),
        (saved, True),
    ]
    assert recovery(14) == (unsaved, True)  # in the middle of an instruction
    assert recovery(8, interrupted=False) == (saved, True)  # no call can be there
    assert recovery(32) == (saved, True)  # a call may store registers
    assert recovery(40)[0] == saved  # a jump may have led here


def test_offsets_beyond_any_address_are_refused() -> None:
    """They would give addresses of more than 64 bits."""
    from machtrace.formats.dwarf.cfi_rows import CallFrameRow, CfaRegister
    from machtrace.unwinder.sources.cfi import RegisterNumbering, rule_of

    row = CallFrameRow(
        start=Svma(0),
        end=Svma(4),
        cfa=CfaRegister(7, 1 << 63),
        registers=(),
        return_column=16,
        is_signal_frame=False,
        ra_signed=False,
    )
    with pytest.raises(DwarfError, match="offset 9223372036854775808 from the CFA"):
        rule_of(row, RegisterNumbering(Arch.X86_64))


def test_nothing_is_read_before_a_rule_is_queried(libc: Path) -> None:
    """Except for the few bytes with the address of the table."""
    whole = _elf(libc)
    asked: list[int] = []

    class Watched:
        image = whole.image
        source = whole.source
        slide = 0

        def read_svma(self, address: Svma, size: int, /) -> memoryview:
            asked.append(size)
            return whole.read_svma(address, size)

        def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
            asked.append(size)
            return whole.read_file(offset, size)

    assert CallFrameRules.of_elf(Watched()) is not None
    assert sum(asked) < 64
