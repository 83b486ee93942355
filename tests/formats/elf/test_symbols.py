"""Symbols and stubs equal those that LLVM reads and names."""

from __future__ import annotations

import ctypes
import lzma
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents, mini_debug_contents
from machtrace.formats.elf.eh_frame_hdr import DescribedCode
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion

Llvm = Callable[..., dict[str, Any]]
Build = Callable[[str], Path]
Peer = Callable[..., str]


def _contents(path: Path) -> ElfFileContents:
    return ElfFileContents(path.read_bytes(), path.name)


def _functions(rows: SymbolRows) -> set[tuple[str, int]]:
    chosen = np.flatnonzero(rows.is_function)
    addresses = rows.addresses[chosen].tolist()
    return set(zip(rows.names(chosen.tolist()), addresses, strict=True))


@pytest.mark.peer
@pytest.mark.parametrize(
    ("option", "key", "parse"),
    [
        ("--symbols", "Symbols", parse_symbols),
        ("--dyn-syms", "DynamicSymbols", parse_dynamic_symbols),
    ],
)
def test_every_symbol_equals_llvms(
    any_file: Path, llvm: Llvm, option: str, key: str, parse: Callable[..., SymbolRows]
) -> None:
    """Names, values, sizes and sections, in the table's order."""
    rows = parse(_contents(any_file))
    if any_file.name == "no-sections" and key == "DynamicSymbols":
        any_file = any_file.with_name("library")  # LLVM needs section headers here
    theirs = [entry["Symbol"] for entry in llvm(any_file, option).get(key, [])]
    selected = [index for index, s in enumerate(theirs) if s["Type"]["Value"] != 3]
    assert len(rows) == len(theirs)
    ours = list(
        zip(
            rows.names(),
            rows.rows["st_value"].tolist(),
            rows.sizes.tolist(),
            rows.section_indices.tolist(),
            rows.is_global.tolist(),
            strict=True,
        )
    )
    expected = [
        (
            s["Name"]["Name"].partition("@")[0],
            s["Value"],
            s["Size"],
            s["Section"]["Value"] or 0,
            s["Binding"]["Value"] != 0,
        )
        for s in theirs
    ]
    # LLVM gives symbols of sections (type 3) their section's name; the table has none.
    assert [ours[index] for index in selected] == [expected[index] for index in selected]
    for index in selected[::7]:
        assert rows.name(index) == ours[index][0]


@pytest.mark.peer
def test_functions_are_distinguished_from_data_and_marks(build: Build) -> None:
    """Labels of assembly code count; data, undefined symbols and ``etext`` do not."""
    names = {name for name, _ in _functions(parse_symbols(_contents(build("pie"))))}
    assert {"main", "shown", "hidden", "label_without_type", "global_label", "_start"} <= names
    assert not {"table", "zeros", "puts", "abort", "_end", "_edata", "etext", ""} & names


@pytest.mark.peer
def test_mapping_symbols_of_arm_are_not_functions(build: Build) -> None:
    """``$x``, ``$d`` and ``$t`` mark where instructions start."""
    for name in ("arm64", "arm"):
        rows = parse_symbols(_contents(build(name)))
        assert any(n.startswith("$") for n in rows.names())
        names = {n for n, _ in _functions(rows)}
        assert {"hidden", "shown", "user"} <= names
        assert not any(n.startswith("$") for n in names)


@pytest.mark.peer
def test_thumb_functions_have_even_addresses(build: Build, peer: Peer) -> None:
    """The addresses are those that a disassembler shows."""
    path = build("arm")
    rows = parse_symbols(_contents(path))
    assert rows.names(np.flatnonzero(rows.is_thumb).tolist()).count("shown") == 1
    printed = peer("llvm-objdump", "-d", "--section=.text", path)
    starts = {m[2]: int(m[1], 16) for m in re.finditer(r"^(\w+) <(\w+)>:", printed, re.MULTILINE)}
    ours = dict(_functions(rows))
    assert {name: ours[name] for name in ("hidden", "shown", "user")} == {
        name: starts[name] for name in ("hidden", "shown", "user")
    }


@pytest.mark.peer
def test_stripped_files_have_their_dynamic_symbols(build: Build) -> None:
    contents = _contents(build("stripped"))
    assert len(parse_symbols(contents)) == 0
    names = {name for name, _ in _functions(parse_dynamic_symbols(contents))}
    assert {"shown", "global_label"} <= names
    assert not {"hidden", "label_without_type"} & names


@pytest.mark.peer
@pytest.mark.parametrize("name", ["no-sections", "gnu-hash", "sysv-hash"])
def test_dynamic_symbols_are_counted_by_the_hash_tables(build: Build, name: str) -> None:
    """Without section headers, by each kind of hash table: the same symbols."""
    path = build(name)
    whole = _contents(build("library") if name == "no-sections" else path)
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff: there are no section headers
    data[60:64] = bytes(4)
    bare = ElfFileContents(bytes(data), name)
    assert not bare.image.sections
    expected, found = parse_dynamic_symbols(whole), parse_dynamic_symbols(bare)
    assert found.names() == expected.names()
    assert (found.rows == expected.rows).all()
    assert _functions(found) == _functions(expected)


@pytest.mark.peer
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a process a vdso")
def test_the_symbols_of_the_vdso_equal_llvms(tmp_path: Path, llvm: Llvm) -> None:
    """It is in no file; LLVM reads a copy of its pages."""
    line = next(
        (m for m in Path("/proc/self/maps").read_text().splitlines() if m.endswith("[vdso]")), None
    )
    if line is None:
        pytest.skip("this process has no vdso")
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    pages = ctypes.string_at(start, end - start)
    (tmp_path / "vdso").write_bytes(pages)
    contents = ElfMemoryContents(MemoryRegion(Avma(start), pages), Avma(start), "[vdso]")
    rows = parse_dynamic_symbols(contents)
    theirs = [e["Symbol"] for e in llvm(tmp_path / "vdso", "--dyn-syms")["DynamicSymbols"]]
    expected = [(s["Name"]["Name"].partition("@")[0], s["Value"]) for s in theirs]
    assert list(zip(rows.names(), rows.rows["st_value"].tolist(), strict=True)) == expected
    assert any("gettime" in name for name, _ in _functions(rows))


@pytest.mark.skipif(sys.platform != "linux", reason="it reads this process by /proc")
def test_the_symbols_of_a_loaded_library_equal_llvms() -> None:
    """The loader has relocated the addresses in the dynamic section."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [m.split() for m in maps if m.split()[-1].endswith("/libc.so.6")]
    if not found:
        pytest.skip("this process has no libc.so.6")
    start, path = int(found[0][0].split("-")[0], 16), Path(found[0][-1])

    class OwnMemory:
        def read(self, address: Avma, size: int, /) -> bytes:
            with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                return memory.read(size)

    contents = ElfMemoryContents(OwnMemory(), Avma(start), "libc")
    file = _contents(path)
    assert contents.image.build_id == file.image.build_id
    assert contents.image.soname == "libc.so.6"
    ours, theirs = parse_dynamic_symbols(contents), parse_dynamic_symbols(file)
    assert (ours.rows == theirs.rows).all()
    assert ours.names() == theirs.names()


def _named_stubs(peer: Peer, path: Path) -> dict[int, str]:
    # LLVM does not name those of .plt.sec, and GNU reads this machine's files only.
    program = "objdump" if path.name == "branch-tracking" else "llvm-objdump"
    options = [f"--section={name}" for name in (".plt", ".plt.sec", ".plt.got")]
    printed = peer(program, "-d", *options, path)
    return {int(m[1], 16): m[2] for m in re.finditer(r"^(\w+) <(\w+)@plt>:", printed, re.MULTILINE)}


@pytest.mark.peer
@pytest.mark.parametrize(
    "name",
    [
        "pie",
        "fixed",
        "bound",
        "library",
        "x86_64",
        "i386",
        "arm64",
        "branch-tracking",
        "arm64-branch-tracking",
    ],
)
def test_stubs_have_the_names_that_disassemblers_give_them(
    build: Build, peer: Peer, name: str
) -> None:
    """The stubs are GNU's linker's and lld's; lazily bound and not."""
    path = build(name)
    stubs = parse_stubs(_contents(path))
    ours = {int(address): stubs.name(row) for row, address in enumerate(stubs.addresses)}
    theirs = _named_stubs(peer, path)
    assert len(theirs) >= 2
    assert {address: ours.get(address) for address in theirs} == theirs
    others = {ours[address] for address in ours.keys() - theirs.keys()}
    # Where .plt.sec has the jumps, objdump leaves out those of .plt, which call the resolver.
    assert not others or (name == "branch-tracking" and others <= set(theirs.values()))


@pytest.mark.peer
def test_stubs_with_branch_tracking_on_arm64_start_at_the_landing(build: Build) -> None:
    """``bti c`` is their first instruction, and one ends where the next starts."""
    contents = _contents(build("arm64-branch-tracking"))
    stubs = parse_stubs(contents)
    names = [stubs.name(row) for row in range(len(stubs))]
    assert sorted(names) == ["shown", "user"]
    for address, size in zip(stubs.addresses.tolist(), stubs.sizes.tolist(), strict=True):
        assert contents.read_svma(address, 4) == b"\x5f\x24\x03\xd5"
        assert size == 24
    assert (np.diff(stubs.addresses) == 24).all()


@pytest.mark.peer
def test_no_stub_reaches_beyond_its_section(any_file: Path) -> None:
    """Nor into the next stub."""
    contents = _contents(any_file)
    stubs = parse_stubs(contents)
    ends = stubs.addresses + stubs.sizes
    assert (ends[:-1] <= stubs.addresses[1:]).all()
    sections = [s for s in contents.image.sections if s.name.startswith(".plt")]
    for start, end in zip(stubs.addresses.tolist(), ends.tolist(), strict=True):
        assert any(s.address <= start < end <= s.end for s in sections)


@pytest.mark.peer
def test_function_starts_are_those_of_the_functions_with_unwind_tables(build: Build) -> None:
    """Every compiled function is among them."""
    for name in ("library", "arm64", "i386", "arm64-big-endian"):
        contents = _contents(build(name))
        described = DescribedCode(contents)
        starts, ends = described.starts, described.ends(np.arange(len(described.starts)))
        compiled = {a for n, a in _functions(parse_symbols(contents)) if n in {"shown", "hidden"}}
        assert len(compiled) == 2
        assert compiled <= set(starts.tolist())
        assert (np.diff(starts) > 0).all()
        assert (ends > starts).all()
        assert (ends[:-1] <= starts[1:]).all()


@pytest.mark.peer
def test_mini_debug_info_names_local_functions(build: Build, peer: Peer, tmp_path: Path) -> None:
    """Packed as distributions do: compressed symbols in a stripped file."""
    symbols, packed, result = tmp_path / "symbols", tmp_path / "packed", tmp_path / "result"
    peer("objcopy", "--only-keep-debug", build("library"), symbols)
    packed.write_bytes(lzma.compress(symbols.read_bytes()))
    peer("objcopy", "--add-section", f".gnu_debugdata={packed}", build("stripped"), result)
    inside = mini_debug_contents(_contents(result))
    assert inside is not None
    assert _functions(parse_symbols(inside)) == _functions(
        parse_symbols(_contents(build("library")))
    )
    assert mini_debug_contents(_contents(build("stripped"))) is None

    packed.write_bytes(lzma.compress(symbols.read_bytes())[:-60])
    peer("objcopy", "--add-section", f".gnu_debugdata={packed}", build("stripped"), result)
    with pytest.raises(ElfError, match=r"cut short|bad compressed"):
        mini_debug_contents(_contents(result))


@pytest.mark.peer
def test_a_symbol_table_outside_the_file_is_an_error(build: Build) -> None:
    """With its name, size and offset."""
    contents = _contents(build("library"))
    index = next(i for i, s in enumerate(contents.image.sections) if s.name == ".symtab")
    header = contents.image.header
    data = bytearray(build("library").read_bytes())
    at = header.section_headers_offset + index * header.section_header_size + 24
    data[at : at + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(ElfError, match=r"section \.symtab of .* is outside the file"):
        parse_symbols(ElfFileContents(bytes(data), "broken"))


@pytest.mark.peer
def test_a_hash_table_without_an_end_is_an_error(build: Build) -> None:
    """Its last bit determines the number of symbols."""
    contents = _contents(build("gnu-hash"))
    section = contents.image.section(".gnu.hash")
    assert section is not None
    data = bytearray(build("gnu-hash").read_bytes())
    data[40:48], data[60:64] = bytes(8), bytes(4)
    buckets, _, bloom = (
        int.from_bytes(data[section.offset + at : section.offset + at + 4], "little")
        for at in (0, 4, 8)
    )
    chains = section.offset + 16 + bloom * 8 + buckets * 4
    segment = next(s for s in contents.image.load_segments if not s.offset)
    data[chains : segment.file_size] = bytes(segment.file_size - chains)
    with pytest.raises((ElfError, MemoryReadError)):
        parse_dynamic_symbols(ElfFileContents(bytes(data), "broken"))
