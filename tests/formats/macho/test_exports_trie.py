"""Exports tries: as llvm-objdump reads them, and malformed ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.exports_trie import Export, parse_exports, walk_exports_trie
from tests.support.writers.macho import ThinFile

Llvm = Callable[..., str]


@pytest.mark.peer
def test_exports_equal_the_ones_objdump_lists(linked_file: Path, llvm: Llvm):
    """Names with their addresses."""
    listed = llvm("llvm-objdump", "--macho", "--exports-trie", linked_file)
    theirs = re.findall(r"^(0x[0-9A-F]+) +(\S+)", listed, re.MULTILINE)
    contents = MachOFileContents(linked_file.read_bytes(), str(linked_file))
    base = contents.image.header_svma

    assert theirs
    assert {(base + e.value, e.name) for e in parse_exports(contents)} == {
        (int(address, 16), name) for address, name in theirs
    }


@pytest.mark.peer
def test_weak_and_thread_local_exports_are_marked(
    llvm: Llvm, zig: Callable[..., Path], tmp_path: Path
):
    code = "__attribute__((weak)) int w(void) { return 1; } _Thread_local int t = 3;"
    unit = zig("flags.o", code, "arm64-apple-macos13.0", "-c")
    path = tmp_path / "flags.dylib"
    llvm(
        "ld64.lld", "-arch", "arm64", "-platform_version", "macos", "13.0", "13.0", "-dylib",
        "-undefined", "dynamic_lookup", "-o", path, unit,
    )  # fmt: skip
    listed = llvm("llvm-objdump", "--macho", "--exports-trie", path)
    actual = {e.name: e for e in parse_exports(MachOFileContents(path.read_bytes(), "flags"))}

    assert "_w [weak_def]" in listed
    assert "_t [per-thread]" in listed
    assert (actual["_w"].is_weak, actual["_w"].is_thread_local) == (True, False)
    assert (actual["_t"].is_weak, actual["_t"].is_thread_local) == (False, True)


def _leaf(*content: int) -> bytes:
    return bytes([len(content), *content, 0])


def test_reexports_resolvers_and_absolutes():
    """Each has its own fields after the flags."""
    names = (b"_a\0", b"_b\0", b"_c\0")
    reexport = _leaf(0x08, 0x02, *b"_z\0")
    resolver = _leaf(0x10, 0x40, 0x60)
    absolute = _leaf(0x02, 0x7F)
    at = 2 + sum(len(name) + 1 for name in names)
    places = (at, at + len(reexport), at + len(reexport) + len(resolver))
    root = b"\x00\x03" + b"".join(
        name + bytes([place]) for name, place in zip(names, places, strict=True)
    )
    a, b, c = walk_exports_trie(root + reexport + resolver + absolute, "test")

    assert (a.is_reexport, a.ordinal, a.imported_name, a.value) == (True, 2, "_z", 0)
    assert (b.is_stub, b.value, b.resolver) == (True, 0x40, 0x60)
    assert (c.is_absolute, c.value) == (True, 0x7F)


def test_an_empty_trie_has_no_exports():
    assert parse_exports(MachOFileContents(ThinFile().build(), "built")) == ()
    assert list(walk_exports_trie(b"", "test")) == []


@pytest.mark.parametrize(
    "trie",
    [
        pytest.param(b"\x00\x01_\x00\x00", id="a child that is its own parent"),
        pytest.param(b"\x00\x02a\x00\x08b\x00\x08\x00\x00", id="a child of two parents"),
        pytest.param(b"\x00\x01_\x00\x7f", id="a child outside"),
        pytest.param(b"\x00\x01____", id="a name without an end"),
        pytest.param(b"\x05\x00", id="content outside"),
        pytest.param(b"\x00", id="no count of children"),
        pytest.param(b"\xff" * 20, id="a size of more than 64 bits"),
    ],
)
def test_a_malformed_trie_is_an_error(trie: bytes):
    """None of these may cycle, or read outside the trie."""
    with pytest.raises(MachOError):
        list(walk_exports_trie(trie, "test"))


def test_names_that_add_up_to_far_more_than_the_trie_are_refused():
    """A chain of n nodes with a name at each has names of n² letters in total."""
    nodes = bytearray()
    for _ in range(3000):
        following = len(nodes) + 2 + 2 + 1 + 100 + 1 + 3
        nodes += b"\x02\x00\x01" + b"\x01" + b"a" * 100 + b"\x00"
        nodes += bytes([following & 0x7F | 0x80, following >> 7 & 0x7F | 0x80, following >> 14])
    nodes += b"\x00\x00"

    with pytest.raises(MachOError, match="too long for its size"):
        list(walk_exports_trie(bytes(nodes), "test"))


def test_exports_compare_by_value():
    assert Export("_a", 0, 1) == Export("_a", 0, 1)
