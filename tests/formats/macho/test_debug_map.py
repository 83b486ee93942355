"""Stabs, static libraries and object files: the sources of a debug map."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.errors import MachOError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.object_rebasing import rebased_object
from machtrace.formats.macho.header import CPU_TYPE_ARM, CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.formats.macho.static_archive import archive_members, is_static_archive, part_for
from machtrace.formats.macho.tables.stabs import object_stabs
from machtrace.formats.macho.tables.symtab import parse_debug_map, parse_symbols
from machtrace.model.arch import Arch
from tests.support.writers.debug_files import BuiltPart, fat_of, static_archive, thin_archive
from tests.support.writers.macho import BuiltSymbol, ThinFile

QUICK = settings(max_examples=200, deadline=20_000, suppress_health_check=list(HealthCheck))
SO, OSO, FUN, BNSYM, ENSYM, STSYM = 0x64, 0x66, 0x24, 0x2E, 0x4E, 0x26


def stab(n_type: int, name: str = "", n_value: int = 0, n_sect: int = 0) -> BuiltSymbol:
    """Build a symbol for debuggers."""
    return BuiltSymbol(name, n_value, n_type, n_sect)


MAP = (
    BuiltSymbol("_before", 0x404),
    stab(FUN, "_of_no_object", 0x900, 1),
    stab(SO, "/src/"),
    stab(SO, "a.c"),
    stab(OSO, "/b/a.o", 1_700_000_000),
    stab(BNSYM, "", 0x400, 1),
    stab(FUN, "_f", 0x400, 1),
    stab(FUN, "", 0x10),
    stab(ENSYM, "", 0x10, 1),
    stab(STSYM, "_data", 0x800, 2),
    stab(FUN, "_unsized", 0x410, 1),
    stab(FUN, "_g", 0x420, 1),
    stab(FUN, "", 0x8),
    stab(SO),
    stab(OSO, "/b/lib.a(b.o)", 0),
    stab(FUN, "_h", 0x430, 1),
    stab(FUN, "", 0x4),
    BuiltSymbol("_f", 0x400),
)


@pytest.mark.parametrize("is_64", [True, False], ids=["64", "32"])
@pytest.mark.parametrize("little_endian", [True, False], ids=["little", "big"])
def test_functions_and_object_files_of_a_map(*, is_64: bool, little_endian: bool):
    """Names with and without sizes; entries before the first object file are ignored."""
    file = ThinFile(symbols=MAP, is_64=is_64, little_endian=little_endian)
    contents = MachOFileContents(file.build(), "map")
    symbols = parse_symbols(contents)
    rows = parse_debug_map(symbols)

    assert list(object_stabs(contents)) == [("/b/a.o", 1_700_000_000), ("/b/lib.a(b.o)", 0)]
    names = [symbols.name(int(row)) for row in rows.name_rows]
    found = list(zip(names, rows.starts.tolist(), rows.sizes.tolist(), strict=True))
    expected = [("_f", 0x400, 16), ("_unsized", 0x410, 0), ("_g", 0x420, 8), ("_h", 0x430, 4)]
    assert found == expected
    assert rows.object_ids.tolist() == [0, 0, 0, 1]


def test_thumb_functions_have_even_addresses():
    """Linkers write them with and without the bit."""
    map_of_thumb = (stab(OSO, "/a.o", 1), stab(FUN, "_f", 0x401, 1), stab(FUN, "", 8))
    file = ThinFile(symbols=map_of_thumb, cputype=CPU_TYPE_ARM, cpusubtype=9, is_64=False)
    symbols = parse_symbols(MachOFileContents(file.build(), "thumb"))

    assert parse_debug_map(symbols, has_thumb=True).starts.tolist() == [0x400]


def test_a_file_without_a_map_has_none():
    """Without symbols, and with none for debuggers."""
    for symbols in ((), (BuiltSymbol("_f", 0x400),)):
        contents = MachOFileContents(ThinFile(symbols=symbols).build(), "none")
        assert object_stabs(contents) == ()
        assert len(parse_debug_map(parse_symbols(contents)).starts) == 0


# --- static libraries ---

MEMBERS = [("a.o", 1_700_000_000, b"odd"), ("a name that is longer than 16.o", 0, b"even")]


@pytest.mark.parametrize("long_names", ["bsd", "gnu"])
def test_members_of_an_archive(long_names: str):
    """Names, times and contents; tables of symbols are skipped."""
    data = static_archive(MEMBERS, long_names=long_names)
    actual = [
        (member.name, member.modified, bytes(member.data or b""))
        for member in archive_members(data, "lib")
    ]
    assert is_static_archive(data)
    assert actual == MEMBERS


def test_a_thin_archive_names_its_members():
    """They are separate files."""
    data = thin_archive([("sub/a.o", 5, 1000), ("b.o", 6, 77)])
    found = [(member.name, member.modified, member.data) for member in archive_members(data, "lib")]
    assert found == [("sub/a.o", 5, None), ("b.o", 6, None)]


@pytest.mark.peer
@pytest.mark.parametrize("options", [("darwin",), ("gnu",), ("gnu", "--thin")], ids="-".join)
def test_archives_of_llvm_have_short_and_long_names(tmp_path: Path, options: tuple[str, ...]):
    tool = shutil.which("llvm-ar-19") or shutil.which("llvm-ar")
    if tool is None:
        pytest.skip("llvm-ar is not installed; it is the peer here")
    for name, _, data in MEMBERS:
        (tmp_path / name).write_bytes(data)
    names = [name for name, _, _ in MEMBERS]
    form, *more = options
    subprocess.run(
        [tool, f"--format={form}", *more, "rcU", "lib.a", *names], check=True, cwd=tmp_path
    )
    actual = list(archive_members((tmp_path / "lib.a").read_bytes(), "lib"))

    assert names == [one.name for one in actual]
    if not more:
        # Apple's are padded to 8 bytes.
        contents = [bytes(one.data or b"").rstrip(b"\n") for one in actual]
        assert [data for _, _, data in MEMBERS] == contents


def test_a_fat_library_has_a_part_for_each_cpu():
    libraries = [static_archive([("a.o", 1, bytes([number]))]) for number in range(2)]
    data = memoryview(
        fat_of(
            [
                BuiltPart(CPU_TYPE_X86_64, 3, libraries[0]),
                BuiltPart(CPU_TYPE_ARM64, 0, libraries[1]),
            ]
        )
    )
    assert libraries[1] == bytes(part_for(data, Arch.ARM64, "fat"))
    assert libraries[0] == bytes(part_for(data, Arch.X86_64, "fat"))
    with pytest.raises(MachOError, match="nothing in it is for armv7"):
        part_for(data, Arch.ARMV7, "fat")


# --- object files ---


@pytest.mark.peer
@pytest.mark.parametrize(
    "target",
    ["arm64-apple-macos13.0", "x86_64-apple-macos13.0", "i386-apple-macos10.12"],
    ids=lambda target: target.partition("-")[0],
)
def test_moving_code_raises_every_address_of_its_dwarf(
    zig: Callable[..., Path], llvm: Callable[..., str], tmp_path: Path, target: str
):
    """In line tables and of functions; nothing else changes."""
    source = "int g(int);\nint f(int x) {\n return g(x) + 1;\n}\nint h(int x) { return g(x); }\n"
    path = zig(f"moved-{target}.o", source, target, "-c", "-g")
    contents = MachOFileContents(path.read_bytes(), str(path))
    moved = tmp_path / "moved.o"
    moved.write_bytes(rebased_object(contents, 0x1000))

    def rows(file: Path) -> list[tuple[int, str]]:
        said = llvm("llvm-dwarfdump", "--debug-line", file).splitlines()
        lines = [line.split(maxsplit=1) for line in said if line.startswith("0x")]
        return [(int(address, 16), rest) for address, rest in lines]

    assert len(rows(path)) > 4
    assert [(address + 0x1000, rest) for address, rest in rows(path)] == rows(moved)


def test_invalid_relocations_are_skipped():
    """Missing symbols and sections, offsets outside of their section."""
    contents = MachOFileContents(ThinFile(symbols=MAP).build(), "none")
    assert len(contents.data) == len(rebased_object(contents, 0x1000))


# --- hostile bytes ---


@QUICK
@given(st.data())
def test_any_bytes_of_an_archive_are_a_value_or_an_error(data: st.DataObject):
    """No member is larger than the archive."""
    kind = data.draw(st.sampled_from(["bsd", "gnu"]))
    bytes_of = bytearray(static_archive(MEMBERS, long_names=kind))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(bytes_of) - 1))
        value = data.draw(st.binary(min_size=1, max_size=10) | st.just(b"9999999999"))
        bytes_of[at : at + len(value)] = value
    with suppress(MachtraceError):
        for member in archive_members(bytes(bytes_of), "bad"):
            assert len(member.data or b"") <= len(bytes_of)


@QUICK
@given(st.data())
def test_any_bytes_of_a_map_are_a_value_or_an_error(data: st.DataObject):
    bytes_of = bytearray(ThinFile(symbols=MAP).build())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(4, len(bytes_of) - 4))
        value = data.draw(st.sampled_from([b"\xff" * 4, bytes(4), b"\x66"]) | st.binary(max_size=4))
        bytes_of[at : at + len(value)] = value
    with suppress(MachtraceError):
        contents = MachOFileContents(bytes(bytes_of), "bad")
        with suppress(MachtraceError):
            object_stabs(contents)
        with suppress(MachtraceError):
            rows = parse_debug_map(parse_symbols(contents))
            assert len(rows.starts) == len(rows.sizes) == len(rows.object_ids)
        rebased_object(contents, 0x1000)


def test_paths_that_overlap_are_refused():
    contents = MachOFileContents(ThinFile(symbols=(stab(OSO, "x" * 4000, 1),)).build(), "one")
    assert len(object_stabs(contents)) == 1
    data = bytearray(ThinFile(symbols=(stab(OSO, "x" * 4000, 1), *MAP * 20)).build())
    contents = MachOFileContents(bytes(data), "many")
    symtab = contents.image.symtab
    assert symtab is not None
    first = data[symtab.symoff : symtab.symoff + 16]
    data[symtab.symoff : symtab.symoff + 16 * symtab.nsyms] = bytes(first) * symtab.nsyms
    with pytest.raises(MachOError, match="overlap"):
        object_stabs(MachOFileContents(bytes(data), "overlapping"))
