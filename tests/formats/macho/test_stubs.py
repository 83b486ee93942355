"""Stubs and their helpers, as llvm-objdump names and disassembles them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols, parse_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory

pytestmark = pytest.mark.peer

Llvm = Callable[..., str]


def _contents(path: Path) -> MachOFileContents:
    return MachOFileContents(path.read_bytes(), str(path))


def _stubs(contents: MachOFileContents | MachOMemoryContents) -> dict[int, str]:
    stubs = parse_stubs(contents, parse_symbols(contents))
    return dict(zip(stubs.addresses.tolist(), stubs.names, strict=True))


def test_stubs_have_the_names_of_objdump(linked_file: Path, llvm: Llvm):
    """Each is named after the function that it jumps to."""
    listed = llvm("llvm-objdump", "--macho", "--indirect-symbols", linked_file)
    block = re.search(r"\(__TEXT,__stubs\) \d+ entries\n.*\n((?:0x.*\n)+)", listed)
    assert block is not None
    theirs = {int(a, 16): name for a, _, name in map(str.split, block[1].splitlines())}
    contents = _contents(linked_file)
    section = contents.image.section("__TEXT", "__stubs")
    assert section is not None

    assert "_outside" in theirs.values()
    mine = _stubs(contents)
    assert {address: mine[address] for address in mine if address in section} == theirs


def test_stubs_fill_their_section(linked_file: Path):
    """No address between two stubs is without a name."""
    contents = _contents(linked_file)
    section = contents.image.section("__TEXT", "__stubs")
    assert section is not None
    stubs = parse_stubs(contents, parse_symbols(contents))
    inside = [
        (start, start + size)
        for start, size in zip(stubs.addresses.tolist(), stubs.sizes.tolist(), strict=True)
        if start in section
    ]

    assert inside[0][0] == section.address
    assert inside[-1][1] == section.end
    assert all(one[1] == other[0] for one, other in pairwise(inside))


def test_the_indirect_symbol_table_equals_the_one_objdump_prints(linked_file: Path, llvm: Llvm):
    """Its entries are indexes of symbols, in the order of the sections that use them."""
    listed = llvm("llvm-objdump", "--macho", "--indirect-symbols", linked_file)
    theirs = [int(index) for index in re.findall(r"^0x[0-9a-f]+ +(\d+) ", listed, re.MULTILINE)]

    assert sorted(theirs) == sorted(parse_indirect_symbols(_contents(linked_file)).tolist())


def test_helpers_are_named_after_the_symbols_they_bind(zig_x86_64: Path, llvm: Llvm):
    """Each pushes the offset of its binding's opcodes; bindings are stored in the listed order."""
    bound = llvm("llvm-objdump", "--macho", "--lazy-bind", zig_x86_64)
    names = [line.split()[-1] for line in bound.splitlines() if "__la_symbol_ptr" in line]
    code = llvm("llvm-objdump", "-d", "--section=__stub_helper", zig_x86_64)
    pushes = re.findall(r"^ +([0-9a-f]+):.*pushq\s+\$(0x[0-9a-f]+)", code, re.MULTILINE)
    offsets = sorted(int(offset, 16) for _, offset in pushes)
    contents = _contents(zig_x86_64)
    section = contents.image.section("__TEXT", "__stub_helper")
    assert section is not None

    assert len(names) == len(pushes) == 2
    mine = _stubs(contents)
    assert {address: mine[address] for address in mine if address in section} == {
        int(address, 16): names[offsets.index(int(offset, 16))] for address, offset in pushes
    }


def test_helpers_of_bound_calls_are_not_named(zig_arm64: Path):
    """A bound pointer in memory leads to the function, an unbound one to its helper."""
    slide = 0x10000
    contents = _contents(zig_arm64)
    image = contents.image
    pointers = image.section("__DATA", "__la_symbol_ptr")
    helpers = image.section("__TEXT", "__stub_helper")
    assert pointers is not None
    assert helpers is not None
    regions = []
    for segment in image.segments:
        data = bytearray(contents.read_file(segment.fileoff, segment.filesize))
        if pointers.address in segment:
            for slot in range(0, pointers.size, 8):
                at = pointers.address - segment.vmaddr + slot
                value = int.from_bytes(data[at : at + 8], "little") + slide
                data[at : at + 8] = (value if slot else 0x7FFF12345678).to_bytes(8, "little")
        regions.append(MemoryRegion(Avma(segment.vmaddr + slide), bytes(data)))
    loaded = MachOMemoryContents(RegionMemory(regions), Avma(image.header_svma + slide), "loaded")
    in_file = {a: name for a, name in _stubs(contents).items() if a in helpers}
    in_memory = {a: name for a, name in _stubs(loaded).items() if a in helpers}

    assert len(in_memory) == len(in_file) - 1
    assert in_memory.items() < in_file.items()


@pytest.mark.parametrize("fixture", ["i386_object", "arm64_32_object"])
def test_an_object_file_has_no_stubs(fixture: str, request: pytest.FixtureRequest):
    assert _stubs(_contents(request.getfixturevalue(fixture))) == {}
