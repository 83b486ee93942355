"""Chained fixups: the layouts against Apple's header, the tables against llvm-objdump."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.chained_formats import POINTER_FORMATS, ChainBases
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.model.address import Svma
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    IMAGE_SVMA,
    PAGE_SIZE,
    Import,
    ImportTable,
    write_chained_image,
)

Compile = Callable[..., Path]
Llvm = Callable[..., str]

DATA_SVMA = IMAGE_SVMA + DATA_OFFSET
CACHE = 0x180000000
BASES = ChainBases(
    image=IMAGE_SVMA, segments=(IMAGE_SVMA, 0x7000), shared_cache=CACHE, max_valid_pointer=0x200000
)

REBASE, BIND, NEITHER = "rebase", "bind", "neither"
# The format, the struct and its fields, and what they mean: kind, target or (ordinal, addend).
LAYOUTS = [
    (1, "arm64e_rebase", {"target": 0x123456789, "high8": 0xA5, "next": 3}, REBASE, 0x123456789),
    (1, "arm64e_bind", {"ordinal": 513, "addend": 9, "next": 2047, "bind": 1}, BIND, (513, 9)),
    (1, "arm64e_bind", {"ordinal": 1, "addend": 0x7FFFF, "bind": 1}, BIND, (1, -1)),
    (
        *(1, "arm64e_auth_rebase"),
        {"target": 0x4321, "diversity": 0xFFFF, "addrDiv": 1, "key": 3, "next": 1, "auth": 1},
        *(REBASE, IMAGE_SVMA + 0x4321),
    ),
    (
        *(1, "arm64e_auth_bind"),
        {"ordinal": 7, "diversity": 0xFFFF, "key": 2, "bind": 1, "auth": 1},
        *(BIND, (7, 0)),
    ),
    (2, "64_rebase", {"target": 0x923456789, "high8": 0x80, "next": 4095}, REBASE, 0x923456789),
    (
        2,
        "64_bind",
        {"ordinal": 0xABCDEF, "addend": 200, "next": 2, "bind": 1},
        BIND,
        (0xABCDEF, 200),
    ),
    (3, "32_rebase", {"target": 0x1FFFFF, "next": 31}, REBASE, 0x1FFFFF),
    (3, "32_rebase", {"target": 0x3FFFFFF, "next": 1}, NEITHER, None),
    (3, "32_bind", {"ordinal": 0xFFFFF, "addend": 63, "next": 5, "bind": 1}, BIND, (0xFFFFF, 63)),
    (4, "32_cache_rebase", {"target": 0x3FFFFFFF, "next": 3}, REBASE, CACHE + 0x3FFFFFFF),
    (5, "32_firmware_rebase", {"target": 0x123456, "next": 63}, REBASE, 0x123456),
    (6, "64_rebase", {"target": 0x2345678, "high8": 0, "next": 1}, REBASE, IMAGE_SVMA + 0x2345678),
    (7, "arm64e_rebase", {"target": 0x777, "next": 9}, REBASE, IMAGE_SVMA + 0x777),
    (
        *(8, "64_kernel_cache_rebase"),
        {"target": 0x3FFFFFFF, "diversity": 5, "key": 1, "next": 77, "isAuth": 1},
        *(REBASE, IMAGE_SVMA + 0x3FFFFFFF),
    ),
    (8, "64_kernel_cache_rebase", {"target": 4, "cacheLevel": 1, "next": 7}, NEITHER, None),
    (9, "arm64e_rebase", {"target": 0x888, "high8": 1, "next": 8}, REBASE, IMAGE_SVMA + 0x888),
    (9, "arm64e_auth_rebase", {"target": 0x999, "auth": 1}, REBASE, IMAGE_SVMA + 0x999),
    (10, "arm64e_rebase", {"target": 0x123, "next": 8}, REBASE, 0x123),
    (11, "64_kernel_cache_rebase", {"target": 0x55, "next": 4095}, REBASE, IMAGE_SVMA + 0x55),
    (12, "arm64e_bind24", {"ordinal": 0xFEDCBA, "addend": 1, "bind": 1}, BIND, (0xFEDCBA, 1)),
    (
        *(12, "arm64e_auth_bind24"),
        {"ordinal": 0xFEDCBA, "diversity": 0xFFFF, "next": 6, "bind": 1, "auth": 1},
        *(BIND, (0xFEDCBA, 0)),
    ),
    (12, "arm64e_rebase", {"target": 0x888}, REBASE, IMAGE_SVMA + 0x888),
    (
        *(13, "arm64e_shared_cache_rebase"),
        {"runtimeOffset": 0x3FFFFFFFF, "high8": 0xFF, "next": 1000},
        *(REBASE, CACHE + 0x3FFFFFFFF),
    ),
    (
        *(13, "arm64e_shared_cache_auth_rebase"),
        {"runtimeOffset": 8, "diversity": 0xFFFF, "keyIsData": 1, "next": 5, "auth": 1},
        *(REBASE, CACHE + 8),
    ),
    (
        *(14, "arm64e_segmented_rebase"),
        {"targetSegOffset": 0xFFFFFFF, "targetSegIndex": 1, "next": 4095},
        *(REBASE, 0x7000 + 0xFFFFFFF),
    ),
    (
        *(14, "arm64e_auth_segmented_rebase"),
        {"targetSegOffset": 0x10, "diversity": 0xFFFF, "key": 3, "next": 1, "auth": 1},
        *(REBASE, IMAGE_SVMA + 0x10),
    ),
    (14, "arm64e_segmented_rebase", {"targetSegOffset": 1, "targetSegIndex": 2}, NEITHER, None),
    (
        *(15, "arm64e_shared_cache_v3_rebase"),
        {"pointerValue": CACHE + 0x1234, "next": 12},
        *(REBASE, CACHE + 0x1234),
    ),
    (
        *(15, "arm64e_shared_cache_v3_auth_rebase"),
        {"offsetFromSharedCacheBase": 0x42, "diversity": 0xFFFF, "key": 3, "next": 2, "auth": 1},
        *(REBASE, CACHE + 0x42),
    ),
    (
        *(16, "shared_cache_v2_rebase"),
        {"runtimeOffset": 0xFFFFFFFFF, "next": 0xFFFF, "high8": 0xFF},
        *(REBASE, CACHE + 0xFFFFFFFFF),
    ),
]


@pytest.fixture(scope="module")
def by_apples_header(zig: Compile) -> Callable[[str, str], bytes]:
    """Compile a variable of the structs in Apple's header and return its bytes."""
    found = find_spec("ziglang")
    if found is None or found.origin is None:
        pytest.skip("ziglang is not installed; it has Apple's header")
    library = Path(found.origin).parent / "lib"
    header = library / "libc/include/any-darwin-any/mach-o/fixup-chains.h"
    if not header.exists():
        pytest.skip("this ziglang has no mach-o/fixup-chains.h")

    def compiled(name: str, variable: str) -> bytes:
        options = ("-c", "-ffreestanding", "-isystem", str(library / "include"))
        unit = zig(
            f"{name}.o", f'#include "{header}"\n{variable}', "arm64-apple-macos13.0", *options
        )
        contents = MachOFileContents(unit.read_bytes(), name)
        section = next(s for s in contents.image.sections if s.name == "__const")
        return bytes(contents.read_svma(section.address, section.size))

    return compiled


@pytest.fixture(scope="module")
def apples_words(by_apples_header: Callable[[str, str], bytes]) -> list[int]:
    """Return the segments of an image with :data:`LAYOUTS`."""
    members = "".join(
        f"struct dyld_chained_ptr_{layout[1]} f{at};" for at, layout in enumerate(LAYOUTS)
    )
    values = ",\n".join(
        f"{{.f{at} = {{"
        + ", ".join(f".{name} = {value}ull" for name, value in layout[2].items())
        + "}}"
        for at, layout in enumerate(LAYOUTS)
    )
    data = by_apples_header(
        "layouts", f"const union {{ {members} uint64_t raw; }} words[] = {{{values}}};"
    )
    return list(struct.unpack(f"<{len(LAYOUTS)}Q", data))


@pytest.mark.peer
@pytest.mark.parametrize(
    ("imports_format", "name", "addend"),
    [(1, "", ""), (2, "_addend", ".addend = -5"), (3, "_addend64", ".addend = -5")],
)
def test_imports_are_written_as_by_the_headers_structs(
    by_apples_header, imports_format, name, addend
):
    """This checks the writer of the other tests' images."""
    value = f"{{.lib_ordinal = 7, .weak_import = 0, .name_offset = 1, {addend}}}"
    struct_name = f"struct dyld_chained_import{name}"
    data = by_apples_header(f"imports{name}", f"const {struct_name} one[] = {{{value}}};")
    one = Import("_printf", addend=-5, library=7)
    assert data == ImportTable(imports=[one], imports_format=imports_format).table()[0]


@pytest.mark.peer
@pytest.mark.parametrize("at", range(len(LAYOUTS)), ids=lambda at: f"{LAYOUTS[at][0]}-{at}")
def test_a_pointer_equals_the_headers_struct(apples_words, at):
    """Every struct, with each of its fields at its widest somewhere."""
    number, _, fields, kind, meaning = LAYOUTS[at]
    pointer_format = POINTER_FORMATS[number]
    raw = np.array([apples_words[at]], np.uint64)
    decoded = pointer_format.decode(raw, BASES)
    assert (kind == BIND, kind == REBASE) == (decoded.is_bind[0], decoded.is_rebase[0])
    if kind == BIND:
        assert meaning == (decoded.ordinals[0], decoded.addends[0])
    elif kind == REBASE:
        assert meaning == decoded.targets[0]
    distance = fields.get("next", 0) * pointer_format.stride
    assert distance == pointer_format.distances(raw)[0] == pointer_format.distance(int(raw[0]))


def test_cache_pointers_are_none_without_the_cache():
    bases = ChainBases(image=0, segments=(), shared_cache=None, max_valid_pointer=0)
    for number in (4, 13, 16):
        decoded = POINTER_FORMATS[number].decode(np.array([8], np.uint64), bases)
        assert not decoded.is_rebase[0]
        assert not decoded.is_bind[0]


def places(count, seed):
    """Return addresses for pointers of a format, in four pages; the last one has none."""
    picked = np.random.default_rng(seed).choice(3 * PAGE_SIZE // 8 - 1, count, replace=False)
    return [int(place) * 8 for place in sorted(picked)]


@pytest.mark.parametrize("number", sorted(POINTER_FORMATS))
@pytest.mark.parametrize("count", [1, 20, 1200])
def test_every_pointer_of_a_chain_is_read(number, count):
    """Few and many, in pages with one chain, with several, and without any."""
    base = 0 if number in (1, 2, 3, 5, 10, 15) else IMAGE_SVMA
    if number in (4, 13, 16):
        base = CACHE
    pointers = {place: 16 + at for at, place in enumerate(places(count, number))}
    image = write_chained_image(number, pointers)
    actual = parse_pointers(MachOFileContents(image, "made"), shared_cache_base=Svma(CACHE))
    assert actual.problem is None
    assert [DATA_SVMA + place for place in pointers] == actual.rebases.places.tolist()
    assert [base + raw for raw in pointers.values()] == actual.rebases.targets.tolist()
    for place, raw in list(pointers.items())[::100]:
        assert actual.target(Svma(DATA_SVMA + place)) == base + raw
        assert actual.target(Svma(DATA_SVMA + place + 1)) is None


IMPORTS = [
    Import("_printf"),
    Import("__ZTVN10__cxxabiv117__class_type_infoE"),
    Import("_OBJC_CLASS_$_NSString"),
]


@pytest.mark.peer
@pytest.mark.parametrize("imports_format", [1, 2, 3])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_imports_have_their_names_and_addends(tmp_path, llvm, imports_format, is_compressed):
    """In the three forms of their table, whose strings may be compressed."""
    imports = [Import(one.name, addend=-8 * at) for at, one in enumerate(IMPORTS)]
    table = ImportTable(imports=imports, imports_format=imports_format, is_compressed=is_compressed)
    pointers = {
        8: 1 << 63 | 2,
        24: 0x5000,
        32: 1 << 63 | 1 | 16 << 24,
        4096: 1 << 63,
        4104: 1 << 63 | 3,
    }
    data = write_chained_image(6, pointers, imports=table)
    actual = parse_pointers(MachOFileContents(data, "made"))
    assert actual.problem is None
    assert [None, "_OBJC_CLASS_$_NSString", None, IMPORTS[1].name, "_printf", None] == [
        actual.symbol(Svma(DATA_SVMA + place)) for place in (0, 8, 24, 32, 4096, 4104)
    ]
    own = [0, 0, 0] if imports_format == 1 else [-16, -8, 0]
    assert [own[0], own[1] + 16, own[2]] == actual.binds.addends.tolist()
    if not is_compressed and imports_format != 3:  # which llvm-objdump 19 does not read right
        path = tmp_path / "made.dylib"
        path.write_bytes(data)
        listed = llvm("llvm-objdump", "--macho", "--chained-fixups", path)
        names = re.findall(r"name_offset\s*=\s*\d+ \((\S+)\)", listed)
        assert names == list(actual.binds.names)


@pytest.mark.peer
@pytest.mark.parametrize("number", [2, 6])
def test_pointers_equal_those_that_objdump_lists(tmp_path, llvm, number):
    """Addresses, kinds and names, of the formats that it supports."""
    base = IMAGE_SVMA if number == 2 else 0
    bound = {place: 1 << 63 | at % 3 for at, place in enumerate(places(300, 1)[::3])}
    plain = {place: base + place for place in places(300, 1) if place not in bound}
    pointers = dict(sorted((bound | plain).items()))
    path = tmp_path / "made.dylib"
    path.write_bytes(write_chained_image(number, pointers, imports=ImportTable(imports=IMPORTS)))
    listed = llvm("llvm-objdump", "--macho", "--dyld-info", path)
    rows = re.findall(
        r"^__DATA\s+__data\s+(0x\w+)\s+0x\w+\s+(rebase|bind)\s.*?(\S+)$", listed, re.MULTILINE
    )
    assert len(pointers) == len(rows)
    actual = parse_pointers(MachOFileContents(path.read_bytes(), "made"))
    for place, kind, target in rows:
        at = Svma(int(place, 16))
        if kind == "rebase":
            assert int(target, 16) == actual.target(at)
            assert actual.symbol(at) is None
        else:
            assert target == actual.symbol(at)
            assert actual.target(at) is None


@pytest.mark.peer
def test_linkers_chains_equal_those_that_objdump_lists(lld_arm64, llvm):
    listed = llvm("llvm-objdump", "--macho", "--dyld-info", lld_arm64)
    rows = re.findall(
        r"^__\S+\s+__\S+\s+(0x\w+)\s+0x\w+\s+(rebase|bind)\s.*?(\S+)$", listed, re.MULTILINE
    )
    actual = parse_pointers(MachOFileContents(lld_arm64.read_bytes(), "lld"))
    assert {(int(at, 16), what) for at, kind, what in rows if kind == "bind"} == {
        (at, actual.symbol(Svma(at))) for at in actual.binds.places.tolist()
    }
    assert sum(kind == "rebase" for _, kind, _ in rows) == len(actual.rebases)


def test_a_chain_that_leaves_its_page_ends_there():
    data = bytearray(write_chained_image(2, {8: 0x10, 16: 0x20, 4096: 0x30, 4104: 0x40}))
    struct.pack_into("<Q", data, DATA_OFFSET + 16, 0x20 | 4000 << 51)
    found = parse_pointers(MachOFileContents(bytes(data), "made"))
    assert found.rebases.targets.tolist() == [0x10, 0x20, 0x30, 0x40]
    assert "leaves its page" in str(found.problem)


def test_invalid_imports_leave_the_rebases():
    """An unknown form of the table affects only the names."""
    data = bytearray(write_chained_image(2, {8: 0x10, 16: 1 << 63}))
    payload = DATA_OFFSET + 4 * PAGE_SIZE
    struct.pack_into("<I", data, payload + 20, 9)
    found = parse_pointers(MachOFileContents(bytes(data), "made"))
    assert found.rebases.targets.tolist() == [0x10]
    assert "format 9" in str(found.problem)


def test_an_unknown_pointer_format_is_reported():
    """There are no pointers."""
    data = bytearray(write_chained_image(2, {8: 0x10}))
    struct.pack_into("<H", data, DATA_OFFSET + 4 * PAGE_SIZE + 32 + 16 + 6, 99)
    found = parse_pointers(MachOFileContents(bytes(data), "made"))
    assert not len(found.rebases)
    assert "format 99" in str(found.problem)


SMALL = write_chained_image(
    3, dict.fromkeys(range(0, 2000, 8), 8), imports=ImportTable(imports=IMPORTS)
)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(DATA_OFFSET, len(SMALL) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=20,
    )
)
def test_altered_chains_give_a_value_or_an_error(changes):
    """At most as many pointers as the segment can contain."""
    data = bytearray(SMALL)
    for at, value in changes:
        data[at] = value
    try:
        actual = parse_pointers(MachOFileContents(bytes(data), "made"))
    except MachtraceError:
        return
    assert len(actual.rebases) + len(actual.binds) <= 4 * PAGE_SIZE
    assert bool((np.diff(actual.rebases.places.astype(np.int64)) > 0).all())
