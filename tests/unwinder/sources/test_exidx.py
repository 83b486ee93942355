"""Rules from ``.ARM.exidx``, compared with LLVM's reading of the tables and with EHABI."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import ElfError, MachtraceError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.exidx import ExceptionIndex, Personality
from machtrace.formats.elf.symtab import parse_symbols
from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.sources.exidx import ExceptionTableRules, RefusedError, rule_of_instructions
from machtrace.unwinder.step import step
from tests.support.compilers.executables import compile_elf

SHAPES = Path(__file__).parent / "shapes" / "arm_exceptions.S"
SP = 0x1000
R4, R7, R11 = 4, 7, 11
D8, D9, D10, D12, D16 = (ARM_DOUBLES[number] for number in (8, 9, 10, 12, 16))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ElfFileContents]:
    """The linked functions of ``arm_exceptions.S``."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the functions")
    path = compile_elf(
        [SHAPES],
        tmp_path_factory.mktemp("exidx") / "shapes",
        target="arm-linux-gnueabihf",
        options=("-static", "-Wl,-e,plain"),
    )
    return path, ElfFileContents(path.read_bytes(), "shapes")


def address_of(contents: ElfFileContents, name: str) -> Svma:
    """Return the address of a symbol."""
    symbols = parse_symbols(contents)
    return Svma(int(symbols.addresses[symbols.names().index(name)]))


def index_of(contents: ElfFileContents) -> ExceptionIndex:
    """Return the table, which must exist."""
    index = ExceptionIndex.of_elf(contents)
    assert index is not None
    return index


@pytest.mark.peer
def test_entries_equal_those_that_llvm_reads(shapes: tuple[Path, ElfFileContents]) -> None:
    """Function by function, with the bytes of all unwinding instructions that it shows."""
    path, contents = shapes
    reader = shutil.which("llvm-readelf-19") or shutil.which("llvm-readelf")
    if reader is None:
        pytest.skip("llvm-readelf is not installed")
    command = (reader, "--unwind", str(path))
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    index = index_of(contents)
    compared = 0
    for text in shown.split("Entry {")[1:]:
        address = int(re.findall(r"FunctionAddress: 0x(\w+)", text)[0], 16)
        entry = index.find(Svma(address))
        assert entry is not None
        assert entry.start == address
        if "CantUnwind" in text:
            assert entry.instructions is None
        elif "Generic" in text:
            assert entry.personality is Personality.GENERIC
        else:
            codes = re.findall(r"0x([0-9A-F]{2})(?=[ 0-9A-Fx]*;)", text)
            assert entry.instructions == bytes.fromhex("".join(codes)), text
            compared += 1
    assert compared >= 7


@pytest.mark.peer
def test_each_function_has_the_rule_that_its_source_states(
    shapes: tuple[Path, ElfFileContents],
) -> None:
    """CFA and saved registers, by its ``.save``, ``.vsave``, ``.pad`` and ``.setfp``."""
    _, contents = shapes
    rules = ExceptionTableRules.of_elf(contents)
    assert rules is not None
    names = dict(enumerate(Arch.ARM.registers.names))

    def described(name: str) -> str:
        rule = rules.rule_for(address_of(contents, name), interrupted=False)
        cfa, pc, *saved = str(rule).split(", ")
        assert pc == "pc = *(cfa - 4)" or name in ("arguments", "high_doubles")
        for number, register in names.items():
            saved = [line.replace(f"r{number} =", f"{register} =") for line in saved]
        return ", ".join([cfa.replace("r13", "sp"), *saved])

    assert described("plain") == "cfa = sp + 8, r4 = *(cfa - 8), lr = *(cfa - 4)"
    assert described("framed") == (
        "cfa = r11 + 8, r4 = *(cfa - 16), r5 = *(cfa - 12), r11 = *(cfa - 8), lr = *(cfa - 4), "
        "d8 = *(cfa - 40), d9 = *(cfa - 32), d10 = *(cfa - 24)"
    )
    saved = [f"r{n} = *(cfa - {20 + 4 * (12 - n)})" for n in range(4, 12)]
    expected = ["cfa = sp + 65588", *saved, "lr = *(cfa - 20)"]
    assert described("arguments") == ", ".join(expected)
    assert described("high_doubles") == (
        "cfa = sp + 24, d12 = *(cfa - 24), d16 = *(cfa - 16), d17 = *(cfa - 8)"
    )
    assert described("low_registers") == (
        "cfa = sp + 12, r0 = *(cfa - 12), r3 = *(cfa - 8), lr = *(cfa - 4)"
    )
    assert described("apart") == described("plain")
    assert described("foreign").startswith("cfa = sp + 24, r4 = *(cfa - 12), r7 = *(cfa - 8)")
    assert "d8 = *(cfa - 24), d10 = *(cfa - 32)" in described("many_words")
    assert rules.rule_for(address_of(contents, "root"), interrupted=False) is None


def caller(instructions: str, memory: dict[int, int], **registers: int) -> RegisterSet:
    """Return the caller of a frame with sp at :data:`SP`, by the instructions."""
    data = bytearray(0x400)
    for offset, value in memory.items():
        data[offset : offset + 8] = value.to_bytes(8, "little")
    general = {int(name[1:]): value for name, value in registers.items()}
    frame = RegisterSet.of(Arch.ARM, pc=0x8000, sp=SP, lr=0x9001, general=general)
    rule = rule_of_instructions(bytes.fromhex(instructions), "test")
    found = step(rule, frame, MemoryRegion(Avma(SP), bytes(data)), PacMask())
    assert isinstance(found, RegisterSet)
    return found


def test_no_instructions_are_a_return_by_the_link_register() -> None:
    """Its lowest bit, which selects Thumb, is not part of the return address."""
    found = caller("b0b0b0", {})
    assert (found.pc, found.sp) == (0x9000, SP)


def test_pops_count_upwards_from_the_virtual_stack_pointer() -> None:
    """Pop {r4, r5}, vsp += 8, pop {r7, pc}: pc has precedence over lr."""
    found = caller("a1 01 88 08", {0: 0x44, 4: 0x55, 16: 0x77, 20: 0x7777_0000})
    assert (found.get(R4), found.get(R7)) == (0x44, 0x77)
    assert found.sp == SP + 24
    assert found.pc == 0x7777_0000


def test_a_stack_pointer_from_the_stack_is_followed() -> None:
    """Pop {r13}: the rest is at the loaded address, which ends as the caller's sp."""
    found = caller("82 00 a0", {0: SP + 0x40, 0x40: 0x1234})
    assert found.get(R4) == 0x1234
    assert found.sp == SP + 0x44


def test_a_saved_register_can_be_the_stack_pointer() -> None:
    """Pop {r4}, vsp = r4: the popped value."""
    found = caller("a0 94 a1", {0: SP + 0x80, 0x80: 1, 0x84: 2})
    assert (found.get(R4), found.get(5), found.sp) == (1, 2, SP + 0x88)


@pytest.mark.parametrize(
    ("instructions", "first", "count", "size"),
    [
        ("d2", D8, 3, 24),
        ("b3 82", D8, 3, 28),
        ("ba", D8, 3, 28),
        ("c9 82", D8, 3, 24),
        ("c8 01", D16, 2, 16),
    ],
)
def test_doubles_are_popped_as_they_were_stored(
    instructions: str, first: int, count: int, size: int
) -> None:
    """FSTMFDX leaves one more word than VPUSH."""
    found = caller(instructions, {8 * i: 0x1_0000_0000 + i for i in range(count)})
    assert [found.get(first + i) for i in range(count)] == [0x1_0000_0000 + i for i in range(count)]
    assert found.sp == SP + size


@pytest.mark.parametrize(
    ("instructions", "moved"),
    [
        ("3f", 0x100),
        ("7f 3f 3f", 0x100),
        ("b2 00", 0x204),
        ("b2 81 01", 0x204 + (0x81 << 2)),
        ("b1 0f", 16),
        ("b4", 4),
        ("c3", 32),
        ("c6 12", 24),
        ("c7 05", 8),
        ("01 b0 01", 8),
    ],
)
def test_the_virtual_stack_pointer_moves(instructions: str, moved: int) -> None:
    """By EHABI's table, and no further than "finish"."""
    assert caller(instructions, {}).sp == SP + moved


def test_refuse_to_unwind_has_no_rule() -> None:
    """Two bytes, 0x80 and 0."""
    with pytest.raises(RefusedError):
        rule_of_instructions(b"\x80\x00", "test")


@pytest.mark.parametrize(
    "spare", ["9d", "9f", "b100", "b110", "b5", "cb", "d8", "ff", "b1", "c8ff"]
)
def test_spare_instructions_are_malformed(spare: str) -> None:
    """So are truncated ones, and registers that no CPU has."""
    with pytest.raises(ElfError):
        rule_of_instructions(bytes.fromhex(spare), "test")


@given(st.binary(max_size=64))
def test_any_instructions_have_a_rule_or_an_error(instructions: bytes) -> None:
    with suppress(ElfError, RefusedError):
        assert str(rule_of_instructions(instructions, "test"))


@pytest.mark.peer
@given(data=st.data())
def test_any_table_has_entries_or_errors(
    shapes: tuple[Path, ElfFileContents], data: st.DataObject
) -> None:
    """The table is damaged at random."""
    path, contents = shapes
    section = contents.image.section(".ARM.exidx")
    assert section is not None
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = section.offset + data.draw(st.integers(0, section.size + 0x60))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        rules = ExceptionTableRules.of_elf(ElfFileContents(bytes(damaged), "damaged"))
    except MachtraceError:
        return
    assert rules is not None
    for address in range(section.address, section.address + 0x20000, 0x400):
        try:
            rules.rule_for(Svma(address), interrupted=False)
        except MachtraceError:
            continue
