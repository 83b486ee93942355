"""Every row of real call-frame tables equals LLVM's and GNU's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machtrace.formats.dwarf.cfi import CallFrames
from machtrace.formats.dwarf.cfi_rows import CallFrameRow
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.unwinder.sources.cfi import IndexedSection, sections_of_elf
from tests.support.peers.cfi_tables import (
    PeerFunction,
    gnu_functions,
    gnu_row,
    llvm_functions,
    llvm_register_names,
    llvm_row,
)

pytestmark = pytest.mark.peer


def _section(path: Path, name: str = ".eh_frame") -> IndexedSection:
    sections = sections_of_elf(ElfFileContents(path.read_bytes(), path.name))
    return next(s for s in sections if s.section.source.endswith(name))


def _rows(frames: CallFrames, theirs: PeerFunction) -> Iterator[CallFrameRow]:
    function = frames.function(theirs.offset)
    assert (function.start, function.end) == (theirs.start, theirs.end)
    yield from frames.rows(function)


def _compare_with_llvm(path: Path, printed: str, section: IndexedSection) -> int:
    names = llvm_register_names(section.section.arch)
    frames = CallFrames(section.section)
    functions = llvm_functions(printed)
    assert {f.offset for f in functions if f.end > f.start} == set(section.index.offsets.tolist())
    count = 0
    for theirs in functions:
        ours = {row.start: llvm_row(row, names) for row in _rows(frames, theirs)}
        # LLVM prints where a signed return address is not: reg34=0. It also prints rows of no bytes
        # at a function's end.
        expected = {
            address: text.replace(": reg34=0", "").replace(", reg34=0", "")
            for address, text in theirs.rows.items()
            if address < theirs.end
        }
        assert ours == expected, f"{path.name}, FDE {theirs.offset:#x}"
        count += len(ours)
    return count


@pytest.mark.parametrize("file", ["libc", "loader", "libpython", "program"])
def test_every_row_of_this_machines_files_equals_llvms(
    file: str, request: pytest.FixtureRequest, peer: Callable[..., str]
) -> None:
    """Including the expressions of stubs and of signal frames."""
    path: Path = request.getfixturevalue(file)
    count = _compare_with_llvm(path, peer("llvm-dwarfdump", "--eh-frame", path), _section(path))
    assert count > 10


def test_every_row_of_other_machines_files_equals_llvms(
    foreign_library: Path, peer: Callable[..., str]
) -> None:
    """The machines are arm64, signed and not, little and big endian, and 32-bit x86."""
    printed = peer("llvm-dwarfdump", "--eh-frame", foreign_library)
    assert _compare_with_llvm(foreign_library, printed, _section(foreign_library)) > 10


@pytest.mark.parametrize("file", ["debug_frame_program", "arm_debug_frame"])
def test_every_row_of_debug_frame_equals_llvms(
    file: str, request: pytest.FixtureRequest, peer: Callable[..., str]
) -> None:
    """The form for debuggers: another mark of CIEs, other references, plain addresses."""
    path: Path = request.getfixturevalue(file)
    printed = peer("llvm-dwarfdump", "--debug-frame", path).partition(".eh_frame contents")[0]
    assert _compare_with_llvm(path, printed, _section(path, ".debug_frame")) > 10


def test_rows_of_node_equal_those_of_readelf(node: Path, peer: Callable[..., str]) -> None:
    """A sample of every kind of function of a program with 75,000 of them."""
    section = _section(node)
    frames, names = CallFrames(section.section), section.section.arch.registers.names
    functions = gnu_functions(peer("readelf", "--debug-dump=frames-interp", node))
    assert len(functions) == len(section.index.offsets)
    compared = 0
    chosen = functions[::40] + [f for f in functions if any("exp" in r for r in f.rows.values())]
    for theirs in chosen:
        ours = {row.start: gnu_row(row, names) for row in _rows(frames, theirs)}
        if theirs.rows:
            expected = {at: row for at, row in theirs.rows.items() if at < theirs.end}
            assert ours == expected, f"FDE {theirs.offset:#x}"
            compared += len(ours)
        else:
            assert len(ours) == 1
    assert compared > 1000


def test_a_row_is_returned_for_every_address_in_it(program: Path) -> None:
    """Lookups by address and the whole table agree, at every byte of every function."""
    section = _section(program)
    frames = CallFrames(section.section)
    for offset in section.index.offsets.tolist():
        function = frames.function(offset)
        for row in frames.rows(function):
            for address in range(row.start, row.end):
                assert frames.row(function, address) == row
