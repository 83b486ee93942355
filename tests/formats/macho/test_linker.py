"""The test linker of 32-bit programs, checked with LLVM's tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.function_starts import parse_data_in_code, parse_function_starts
from machtrace.formats.macho.tables.stubs import parse_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import ImageOffset
from tests.support.linker32.layout import LinkError
from tests.support.linker32.linker import link_macho

pytestmark = pytest.mark.peer

Compile = Callable[..., Path]

PROGRAM = """
#define FUNCTION __attribute__((noinline))
int other(int);
static int table_of_ints[4] = {1, 2, 3, 4};
int zeros[300];
FUNCTION int leaf(int a) { return table_of_ints[a & 3] + zeros[a]; }
FUNCTION int framed(int a) { volatile char room[200]; room[a] = 1; return leaf(a) + room[2]; }
FUNCTION int switches(int a, int b) {
    switch (a) {
    case 0: return leaf(b);
    case 1: return b * 3;
    case 2: return leaf(b + 1) + 1;
    case 3: return b / 3;
    case 4: return leaf(leaf(b));
    case 5: return b ^ 5;
    }
    return 0;
}
static int (*const calls[])(int) = {leaf, framed, other};
int main(void) { return calls[leaf(1) & 1](2) + switches(leaf(0), 2) + other(3); }
"""
OTHER = """
int leaf(int);
__attribute__((noinline)) static int own(int a) { return leaf(a) * 2; }
int other(int a) { volatile char room[70000]; room[a] = 0; return own(a) + room[1]; }
"""
TARGET = "i386-apple-macos10.9"
OPTIONS = ("-c", "-O2", "-fomit-frame-pointer", "-fno-builtin", "-fno-stack-protector")


@pytest.fixture(scope="session")
def objects(zig: Compile) -> list[bytes]:
    """Two objects that need each other."""
    files = (("program.o", PROGRAM), ("other.o", OTHER))
    return [zig(f"link-{name}", source, TARGET, *OPTIONS).read_bytes() for name, source in files]


@pytest.fixture(scope="session")
def program(objects: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of both objects."""
    path = tmp_path_factory.mktemp("linked") / "program"
    path.write_bytes(link_macho(objects))
    return path


def _peer(tool: str, *arguments: str | Path) -> str:
    found = shutil.which(f"llvm-{tool}-19") or shutil.which(f"llvm-{tool}")
    if found is None:
        pytest.skip(f"llvm-{tool} is not installed; it reads what the linker writes")
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=True).stdout


def _symbols(program: Path) -> dict[str, int]:
    listed = re.findall(r"^(\w+) [A-Za-z] (\S+)$", _peer("nm", program), re.MULTILINE)
    return {name: int(address, 16) for address, name in listed}


def _encodings(text: str, pattern: str) -> list[tuple[str, int]]:
    return [(key, int(value, 16)) for key, value in re.findall(pattern, text)]


def test_calls_lead_to_functions(program: Path):
    functions = set(_symbols(program).values())
    text = _peer("objdump", "-d", "--no-show-raw-insn", program)
    calls = re.findall(r"calll\s+(0x[0-9a-f]+)[^\n]*\n\s*([0-9a-f]+):", text)
    assert len(calls) > 5
    for target, following in calls:
        assert int(target, 16) in functions or target == f"0x{following}", target


def test_data_hold_addresses_of_functions(program: Path):
    """The table of calls, in a constant section."""
    symbols = _symbols(program)
    contents = MachOFileContents(program.read_bytes(), "program")
    section = contents.image.section("__DATA", "__const")
    section = section or contents.image.section("__TEXT", "__const")
    assert section is not None
    data = contents.read_svma(section.address, section.size)
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) - 3, 4)]
    wanted = [symbols[name] for name in ("_leaf", "_framed", "_other")]
    assert any(words[i : i + 3] == wanted for i in range(len(words)))


@pytest.mark.parametrize(("is_compressed", "page_size"), [(True, 4096), (False, 4096), (True, 48)])
def test_unwind_info_equals_that_of_the_objects(
    objects: list[bytes], tmp_path: Path, *, is_compressed: bool, page_size: int
):
    """Each function has its encoding; one in DWARF mode leads to the function's FDE."""
    path = tmp_path / "program"
    path.write_bytes(link_macho(objects, is_compressed=is_compressed, unwind_page_size=page_size))
    wanted: dict[str, int] = {}
    for data in objects:
        unit = tmp_path / "unit.o"
        unit.write_bytes(data)
        text = _peer("objdump", "--macho", "--unwind-info", unit)
        pattern = r"start:\s+0x[0-9a-f]+ (\S+)\n.*\n\s+compact encoding:\s+(0x[0-9a-f]+)"
        wanted |= dict(_encodings(text, pattern))
    text = _peer("objdump", "--macho", "--unwind-info", path)
    pages = len(re.findall(r"Second level index\[", text))
    assert (pages > 1) == (page_size < 4096)
    pattern = r"function offset=(0x[0-9a-f]+), encoding(?:\[\d+\])?=(0x[0-9a-f]+)"
    rows = sorted((int(key, 16), value) for key, value in _encodings(text, pattern))
    frames = _peer("dwarfdump", "--eh-frame", path)
    fdes = {
        int(offset, 16): int(start, 16) % (1 << 32)
        for offset, start in re.findall(
            r"^([0-9a-f]+) .* FDE .*pc=([0-9a-f]+)\.", frames, re.MULTILINE
        )
    }
    symbols, kinds = _symbols(path), set()
    contents = MachOFileContents(path.read_bytes(), "program")
    info = _unwind_info(contents)
    for name, encoding in wanted.items():
        offset = symbols[name] - 0x1000
        actual = max(row for row in rows if row[0] <= offset)[1]
        kinds.add(encoding >> 24)
        entry = info.find(ImageOffset(offset))
        assert entry is not None
        assert entry.encoding == actual
        if encoding >> 24 == 4:
            assert fdes[actual & 0xFFFFFF] == symbols[name]
            actual &= 0xFF000000
        assert actual == encoding, name
    assert {2, 3} <= kinds


def _unwind_info(contents: MachOFileContents) -> UnwindInfo:
    section = contents.image.section("__TEXT", "__unwind_info")
    assert section is not None
    return UnwindInfo(contents.read_svma(section.address, section.size), "program")


def test_function_starts_and_tables_among_code(program: Path):
    contents = MachOFileContents(program.read_bytes(), "program")
    base = contents.image.header_svma
    starts = {base + offset for offset in parse_function_starts(contents).offsets}
    symbols = parse_symbols(contents)
    assert starts == set(symbols.n_value[symbols.is_code].tolist())
    text = _peer("objdump", "--macho", "--data-in-code", program)
    listed = re.findall(r"^(0x[0-9a-f]+)\s+(\d+) JUMP_TABLE32", text, re.MULTILINE)
    tables = [(int(at, 16) + 0x1000, int(at, 16) + 0x1000 + int(size)) for at, size in listed]
    assert list(parse_data_in_code(contents)) == sorted(tables)
    assert len(tables) == 1


def test_a_stripped_program_differs_in_its_symbols_alone(objects: list[bytes]):
    """Code, tables and function starts are the same."""
    full, stripped = (
        MachOFileContents(link_macho(objects, is_stripped=is_stripped), "program")
        for is_stripped in (False, True)
    )
    assert parse_symbols(stripped).names() == ["__mh_execute_header"]
    for section in full.image.sections:
        if not section.is_zerofill:
            data = full.read_svma(section.address, section.size)
            assert data == stripped.read_svma(section.address, section.size)
    assert full.image.uuid == stripped.image.uuid
    assert (
        parse_function_starts(full).offsets.tolist()
        == parse_function_starts(stripped).offsets.tolist()
    )


def test_exports_equal_the_global_symbols(program: Path):
    """LLVM and machtrace read the same trie."""
    text = _peer("objdump", "--macho", "--exports-trie", program)
    listed = {
        name: int(address, 16)
        for address, name in re.findall(r"^(0x[0-9A-Fa-f]+)\s+(\S+)$", text, re.MULTILINE)
    }
    symbols = re.findall(r"^(\w+) [A-Z] (\S+)$", _peer("nm", program), re.MULTILINE)
    assert listed == {name: int(address, 16) for address, name in symbols}
    assert "_switches" in listed


def test_undefined_symbols_have_stubs(objects: list[bytes], tmp_path: Path):
    """LLVM names the same stubs, and the program's calls lead to them."""
    path = tmp_path / "program"
    path.write_bytes(link_macho(objects[:1], has_stubs=True))
    contents = MachOFileContents(path.read_bytes(), "program")
    stubs = parse_stubs(contents, parse_symbols(contents))
    listed = re.findall(
        r"^(0x[0-9a-f]+)\s+\d+ (_\w+)$", _indirect(path, "__symbol_stub"), re.MULTILINE
    )
    stub = contents.image.section("__TEXT", "__symbol_stub")
    assert stub is not None
    assert listed == [(f"0x{stub.address:08x}", "_other")]
    assert int(stubs.addresses[0]) == stub.address
    assert stubs.names[0] == "_other"
    text = _peer("objdump", "-d", "--no-show-raw-insn", path)
    assert re.search(rf"(calll|jmp)\s+{stub.address:#x}", text)


def _indirect(path: Path, section: str) -> str:
    text = _peer("objdump", "--macho", "--indirect-symbols", path)
    found = re.search(rf"\(__TEXT,{section}\).*?(?=Indirect symbols|\Z)", text, re.DOTALL)
    assert found is not None, text
    return found.group()


def test_missing_and_duplicate_symbols_are_errors(objects: list[bytes]):
    """A program is whole."""
    with pytest.raises(LinkError, match="nothing defines _other"):
        link_macho(objects[:1])
    with pytest.raises(LinkError, match="is defined twice"):
        link_macho([objects[0], *objects])
    with pytest.raises(LinkError, match="nothing defines _start"):
        link_macho(objects, entry="_start")
