"""SymCache files: read as columns; malformed ones are refused."""

import struct
from uuid import UUID

import numpy as np
import pytest

from machtrace.errors import FormatError
from machtrace.lines.index import MAX_CALLS, DebugIndex
from machtrace.lines.symcache import NONE, SymCache
from machtrace.model.symbol import InlineFrame, SourceLocation

ID = UUID("12345678-9abc-def0-1234-56789abcdef0")


def built(files=(), functions=(), calls=(), ranges=(), strings=b"", **header):
    """Build a cache's bytes: ``ranges`` are starts with source locations."""
    locations = [*calls, *(location for _, location in ranges)]
    counts = [len(files), len(functions), len(locations), len(ranges), len(strings)]
    data = struct.pack(
        "<4sI16sI12xI5I16x",
        header.get("magic", b"SYMC"),
        header.get("version", 9),
        ID.bytes,
        0,
        401,
        *counts,
    )
    tables = (
        b"".join(struct.pack("<6I", *row, *[NONE] * (6 - len(row))) for row in files),
        b"".join(
            struct.pack("<4I", name, NONE, entry, language) for name, entry, language in functions
        ),
        b"".join(struct.pack("<4i", *row) for row in locations),
        b"".join(struct.pack("<I", start) for start, _ in ranges),
    )
    for table in tables:
        data += table + bytes(-len(table) % 8)
    return data + strings


STRINGS = b"\4main\4leaf\4/src\1b\3a.c\4/inc"
MAIN, LEAF, SRC, B, A_C, INC = 0, 5, 10, 15, 17, 21
NOWHERE = (-1, -1, -1, -1)
SMALL = {
    "files": [(SRC, B, A_C), (SRC, INC, A_C)],
    "functions": [(MAIN, 0x100, 4), (LEAF, NONE, 4), (LEAF, 0x300, NONE)],
    "calls": [(0, 7, 0, -1)],
    "ranges": [
        (0x100, (0, 6, 0, -1)),
        (0x110, (1, 3, 1, 0)),
        (0x120, (0, 0, 0, -1)),
        (0x130, NOWHERE),
        (0x300, (-1, 0, 2, -1)),
    ],
    "strings": STRINGS,
}


def test_an_inlined_call_precedes_its_caller():
    """Paths are joined from the parts that are not absolute."""
    index = DebugIndex(SymCache(built(**SMALL)))

    assert index.inlined(0x118) == (
        InlineFrame("leaf", SourceLocation("/inc/a.c", 3), "leaf"),
        InlineFrame("main", SourceLocation("/src/b/a.c", 7), "main"),
    )
    assert index.function_start(0x118) == 0x100


def test_line_0_is_an_unknown_line():
    """Compilers mark code of no particular line with it; the file is known."""
    (frame,) = DebugIndex(SymCache(built(**SMALL))).inlined(0x12F)

    assert frame.location == SourceLocation("/src/b/a.c", None)


@pytest.mark.parametrize(
    "offset",
    [0, 0xFF, 0x130, 0x2FF, 0x300, 0xFFFF_FFFF, 1 << 32, (1 << 64) - 1],
    ids=hex,
)
def test_offsets_outside_of_functions_have_no_answer(offset):
    """Before the first, between two, symbol-table functions without lines, and beyond."""
    index = DebugIndex(SymCache(built(**SMALL)))

    assert index.inlined(offset) == ()
    assert index.function_start(offset) is None
    columns = index.columns(np.array([offset], np.uint64))
    assert (columns.location[0], columns.file[0], columns.function[0]) == (-1, -1, -1)
    assert (columns.line[0], columns.depth[0]) == (0, 0)


def test_columns_equal_single_answers():
    """For every offset, in any order."""
    index = DebugIndex(SymCache(built(**SMALL)))
    offsets = np.random.default_rng(1).permutation(0x400).astype(np.uint64)

    columns = index.columns(offsets)
    chains = index.chains(columns.location)

    for at, offset in enumerate(offsets.tolist()):
        frames = index.inlined(offset)
        rows = range(chains.first[at], chains.first[at + 1])
        assert [index.function_name(chains.function[row]) for row in rows] == [
            frame.linkage_name for frame in frames
        ]
        assert [(index.file_path(chains.file[row]), chains.line[row]) for row in rows] == [
            (frame.location.path, frame.location.line or 0) for frame in frames
        ]
        assert columns.depth[at] == max(0, len(frames) - 1)
        if frames:
            assert index.function_name(columns.function[at]) == frames[0].linkage_name
            assert columns.line[at] == (frames[0].location.line or 0)


def test_an_empty_cache_has_no_answers():
    """It is the index of a file whose debug information describes no code."""
    index = DebugIndex(SymCache(built()))

    assert index.inlined(0) == ()
    assert len(index.columns(np.zeros(3, np.uint64)).location) == 3
    assert len(index.chains(index.columns(np.zeros(3, np.uint64)).location).line) == 0


def test_names_are_demangled():
    """The linkage name is returned, too."""
    name = b"_ZN3foo3barEv"
    cache = built(
        functions=[(0, 0x10, 4)],
        ranges=[(0x10, (-1, 0, 0, -1))],
        strings=bytes([len(name)]) + name,
    )

    (frame,) = DebugIndex(SymCache(cache)).inlined(0x10)

    assert (frame.name, frame.linkage_name) == ("foo::bar()", name.decode())


def test_long_strings_have_longer_lengths():
    """LEB128: a name of 300 bytes has a length of two."""
    cache = SymCache(built(functions=[(0, 0, 4)], strings=b"\xac\x02" + b"n" * 300))

    assert cache.function_name(0) == "n" * 300


@pytest.mark.parametrize(
    "change",
    [
        {"magic": b"CMYS"},
        {"version": 8},
        {"files": 1 << 30},
        {"functions": NONE},
        {"locations": 3},
        {"locations": NONE},
        {"ranges": 7},
        {"strings": 1 << 20},
    ],
    ids=str,
)
def test_headers_with_counts_beyond_the_file_are_refused(change):
    """Counts are checked before anything of their size is allocated."""
    data = bytearray(built(**SMALL))
    if "magic" in change or "version" in change:
        data = built(**SMALL, **change)
    else:
        (name,) = change
        at = 44 + 4 * ["files", "functions", "locations", "ranges", "strings"].index(name)
        data[at : at + 4] = struct.pack("<I", change[name])

    with pytest.raises(FormatError) as caught:
        SymCache(bytes(data))
    assert "delete" in caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": [(0x100, NOWHERE), (0x100, NOWHERE)]},
        {"ranges": [(0x100, NOWHERE), (0xFF, NOWHERE)]},
        {"ranges": [(0x100, (2, 0, 0, -1))]},
        {"ranges": [(0x100, (-2, 0, 0, -1))]},
        {"ranges": [(0x100, (0, 0, 3, -1))]},
        {"ranges": [(0x100, (0, 0, 0, 2))]},
        {"calls": [(0, 7, 0, 0)]},
        {"calls": [(0, 7, 0, 1), (0, 7, 0, 0)]},
        {"functions": [(len(STRINGS), 0, 4)] * 3},
        {"functions": [(len(STRINGS) - 1, 0, 4)] * 3},
        {"files": [(SRC, 1 << 31, A_C)] * 2},
        {"strings": STRINGS[:-1]},
        {"strings": b"\xff" * len(STRINGS)},
    ],
    ids=lambda change: f"{next(iter(change))}",
)
def test_invalid_and_cyclic_references_are_refused(change):
    """Columns are checked as a whole; a single lookup follows no such reference."""
    cache = SymCache(built(**{**SMALL, **change}))
    with pytest.raises(FormatError):
        _ = cache.columns
    for offset in (0, 0xFF, 0x100, 0x200, 2**32 - 1):
        assert len(DebugIndex(cache).inlined(offset)) <= MAX_CALLS


def test_a_truncated_cache_is_refused():
    data = built(**SMALL)

    for length in range(len(data)):
        with pytest.raises(FormatError):
            SymCache(data[:length])


def test_overlong_chains_are_truncated():
    """A long chain is valid; its time is bounded by the number of calls."""
    calls = [(0, 1, 0, number - 1) for number in range(200_000)]
    change = {"calls": calls, "ranges": [(0x100, (0, 1, 0, len(calls) - 1))]}
    index = DebugIndex(SymCache(built(**{**SMALL, **change})))

    assert len(index.inlined(0x100)) == MAX_CALLS
    with pytest.raises(FormatError):
        index.columns(np.array([0x100], np.uint64))


@pytest.mark.parametrize(
    ("base", "path"),
    [
        (("/src", "", "a.c"), "/src/a.c"),
        (("/src", "/inc", "a.c"), "/inc/a.c"),
        (("/src/", "../inc", "a.c"), "/src/../inc/a.c"),
        (("/src", "b", "/c/a.c"), "/c/a.c"),
        (("", "", "a.c"), "a.c"),
        (("./src", "./src", "a.c"), "./src/a.c"),
        (("./src", "../inc", "a.h"), "./src/../inc/a.h"),
        (("/src", "b", "<stdin>"), "<stdin>"),
        (("C:\\src", "b", "a.c"), "C:\\src\\b\\a.c"),
        (("C:\\src", "b", "D:/a.c"), "D:/a.c"),
        (("C:/src", "b", "a.c"), "C:/src/b/a.c"),
    ],
)
def test_paths_are_joined_as_they_were_recorded(base, path):
    """Nothing is simplified: the meaning of ``..`` depends on symbolic links."""
    strings, offsets = b"", []
    for part in base:
        offsets.append(len(strings))
        strings += bytes([len(part)]) + part.encode()

    assert SymCache(built(files=[offsets], strings=strings)).file_path(0) == path
