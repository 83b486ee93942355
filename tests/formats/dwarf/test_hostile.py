"""Invalid bytes give a value or a MachtraceError, in bounded time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.errors import DwarfError, MachtraceError, MemoryReadError
from machtrace.formats.dwarf.cfi import REGISTER_LIMIT, CallFrames
from machtrace.formats.dwarf.cfi_records import RECORD_LIMIT, CallFrameSection
from machtrace.formats.dwarf.expression import evaluate
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.sources.cfi import sections_of_elf

ARCHES = st.sampled_from([Arch.X86_64, Arch.I386, Arch.ARM64, Arch.ARM])


def _section(
    data: bytes, arch: Arch = Arch.X86_64, *, is_eh_frame: bool = True, little_endian: bool = True
) -> CallFrameSection:
    def read(offset: int, size: int) -> bytes:
        if not 0 <= offset <= offset + size <= len(data):
            raise MemoryReadError(offset, size)
        return data[offset : offset + size]

    return CallFrameSection(
        read=read,
        size=len(data),
        arch=arch,
        source="test",
        is_eh_frame=is_eh_frame,
        address=Svma(0x1000),
        little_endian=little_endian,
    )


def _read_all(section: CallFrameSection) -> int:
    """Run every query of a section; return the number of rows."""
    index, frames, count = build_index(section), CallFrames(section), 0
    assert (index.starts[1:] >= index.starts[:-1]).all()
    for offset in index.offsets.tolist():
        try:
            function = frames.function(offset)
            assert function.size > 0
            for row in frames.rows(function):
                assert row.start < row.end
                count += 1
            frames.row(function, function.start)
        except DwarfError:
            continue
    return count


@given(st.binary(max_size=400), ARCHES, st.booleans(), st.booleans())
def test_a_section_of_random_bytes_is_indexed_without_errors(
    data: bytes,
    arch: Arch,
    is_eh_frame: bool,  # noqa: FBT001 (hypothesis gives them by name)
    little_endian: bool,  # noqa: FBT001
) -> None:
    """One record's error does not affect another."""
    section = _section(data, arch, is_eh_frame=is_eh_frame, little_endian=little_endian)
    _read_all(section)
    frames = CallFrames(section)
    for offset in range(-8, len(data) + 8):
        try:
            function = frames.function(offset)
            frames.row(function, function.start)
        except DwarfError:
            continue


def _eh_frame(path: Path) -> bytes:
    indexed = sections_of_elf(ElfFileContents(path.read_bytes(), path.name))[0]
    return bytes(indexed.section.read(0, indexed.section.size))


@pytest.mark.peer
@given(data=st.data())
# The first example of each file reads more than the others, and a busy machine is slow.
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_real_section_with_changed_bytes_is_mostly_readable(
    program: Path, foreign: Callable[[str], Path], data: st.DataObject
) -> None:
    path, arch = data.draw(
        st.sampled_from([(program, Arch.X86_64), (foreign("arm64-signed"), Arch.ARM64)])
    )
    changed = bytearray(_eh_frame(path))
    places = st.integers(0, len(changed) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=12)):
        changed[place] = byte
    end = data.draw(st.one_of(st.just(len(changed)), places))
    _read_all(_section(bytes(changed[:end]), arch))


@given(st.binary(max_size=200), st.sampled_from([4, 8]), st.lists(st.integers(), max_size=4))
def test_random_bytes_as_an_expression_give_an_address_or_an_error(
    code: bytes, size: int, initial: list[int]
) -> None:
    registers = RegisterSet.of(Arch.X86_64, pc=0x40, sp=0x1000, fp=0x1010)
    memory = MemoryRegion(Avma(0x1000), bytes(range(64)))
    try:
        found = evaluate(code, registers, memory, initial=initial, pointer_size=size)
    except MachtraceError:
        return
    assert 0 <= found < 1 << (8 * size)


def _function(instructions: bytes) -> CallFrameSection:
    """Build a section of one CIE (def_cfa r7+8, offset r16 at cfa-8) and one FDE."""
    common = b"\0\0\0\0" + b"\x01zR\0" + bytes([1, 0x78, 16, 1, 0x1B]) + b"\x0c\x07\x08\x90\x01"
    common += bytes(-len(common) % 4)
    start = struct.pack("<I", len(common)) + common
    body = struct.pack("<IiI", len(start) + 4, 0x100, 0x7000_0000) + b"\0" + instructions
    return _section(start + struct.pack("<I", len(body)) + body)


def _rows(section: CallFrameSection) -> list[object]:
    frames = CallFrames(section)
    return list(frames.rows(frames.function(build_index(section).offsets.tolist()[0])))


def test_rows_remembered_without_end_are_refused() -> None:
    """Each would store a copy of the registers."""
    with pytest.raises(DwarfError, match="rows remembered"):
        _rows(_function(b"\x0a" * 100_000))


def test_registers_without_end_are_refused() -> None:
    """A row of them is copied by DW_CFA_remember_state."""
    numbers = range(REGISTER_LIMIT + 1)
    same_value = b"".join(bytes([0x08, 0x80 | n & 0x7F, n >> 7]) for n in numbers)
    with pytest.raises(DwarfError, match="registers in a row"):
        _rows(_function(same_value))


@pytest.mark.timeout(60)
def test_the_longest_program_takes_seconds_at_most() -> None:
    """It sets, remembers, changes and restores registers repeatedly."""
    registers = b"".join(bytes([0x08, 0x80 | n & 0x7F, n >> 7]) for n in range(17, REGISTER_LIMIT))
    again = b"\x0a\x08\x10\x0b"
    code = registers + again * ((RECORD_LIMIT - len(registers) - 100) // len(again))
    assert len(_rows(_function(code))) == 1


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (b"\x3f", "unknown call-frame instruction 0x3f"),
        (b"\x2d", "unknown call-frame instruction 0x2d"),
        (b"\x0b", "restored a row without a remembered one"),
        (b"\x0f\x7f\x00", "bytes wanted"),
        (b"\x04\x01", "bytes wanted"),
        (b"\x0c" + b"\xff" * 12, "LEB128 exceeds 64 bits"),
    ],
)
def test_errors_name_the_problem_of_an_instruction(instructions: bytes, message: str) -> None:
    """And its FDE. Instruction 0x2d is arm64's alone."""
    with pytest.raises(DwarfError, match=message) as caught:
        _rows(_function(instructions))
    assert "FDE 0x18" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff\xff\xff\x7f" + bytes(8), "record of 2147483647 bytes"),
        (b"\xf0\xff\xff\xff" + bytes(8), "reserved length"),
        (b"\x08\0\0\0\0\0\0\0\x07\0\0\0", "unknown version 7"),
        (b"\x08\0\0\0\0\0\0\0\x01Q\0\0", "bytes wanted|unknown augmentation 'Q'"),
        (b"\x0c\0\0\0\0\0\0\0\x01Q\0\x01\x78\x10\0\0", "unknown augmentation 'Q'"),
    ],
)
def test_a_malformed_cie_is_an_error(record: bytes, message: str) -> None:
    """Raised by an FDE that refers to it."""
    fde = struct.pack("<IIQQ", 20, len(record) + 4, 0, 0)
    section = _section(record + fde)
    with pytest.raises(DwarfError, match=message):
        CallFrames(section).function(len(record))
    assert len(build_index(section).starts) == 0


def test_an_fde_that_is_its_own_cie_is_refused() -> None:
    """References cannot cycle: a CIE has none."""
    section = _section(struct.pack("<IIQQ", 20, 4, 0, 16))
    with pytest.raises(DwarfError, match="not a CIE"):
        CallFrames(section).function(0)


@pytest.mark.timeout(60)
def test_a_long_run_of_terminators_is_skipped_in_strides() -> None:
    """Eight million of them."""
    real = _function(b"")
    data = bytes(32 << 20) + bytes(real.read(0, real.size))
    assert len(build_index(_section(data)).starts) == 1
