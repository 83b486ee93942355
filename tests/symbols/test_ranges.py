"""The last start at or before an offset; bulk and single lookups agree."""

import threading
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.symbols import ranges
from machtrace.symbols.ranges import RangeIndex

OFFSETS = st.integers(0, 2**64 - 1)


def expected(starts, values, offsets, back):
    """Return the oracle: Python's bisect."""
    answers = []
    for offset in offsets:
        row = bisect_right(starts, offset - back) - 1
        answers.append(row if row < 0 or values is None else values[row])
    return answers


@given(
    starts=st.lists(OFFSETS | st.integers(0, 4000), min_size=1, max_size=300),
    scale=st.sampled_from([1, 4, 16]),
    has_values=st.booleans(),
    offsets=st.lists(OFFSETS | st.integers(0, 5000), max_size=50),
    back=st.integers(0, 1),
    holes=st.sets(st.integers(0, 299)),
)
def test_bulk_answers_equal_a_search(starts, scale, has_values, offsets, back, holes):
    """Starts close together, far apart, repeated and unaligned, and rows without an answer."""
    starts = sorted(min(start * scale, 2**64 - 1) for start in starts)
    values = [-1 if row in holes else row + 7 for row in range(len(starts))] if has_values else None
    offsets = [*offsets, *starts, *(start - 1 for start in starts if start)]
    index = RangeIndex(
        np.array(starts, np.uint64), None if values is None else np.array(values, np.int32)
    )
    few = index.find(np.array(offsets, np.uint64), back=back).tolist()
    many = index.find(np.array(offsets + [0] * 5000, np.uint64), back=back).tolist()

    assert expected(starts, values, offsets, back) == few
    assert few == many[: len(offsets)]


@pytest.fixture(scope="module")
def large_starts():
    """Return enough starts for pages: sparse, some pages full, some empty."""
    rng = np.random.default_rng(2)
    sparse = rng.choice(20_000_000, 100_000, replace=False).astype(np.uint64)
    full = np.arange(1_000_000, 1_003_000, dtype=np.uint64)
    sparse = sparse[(sparse < 2_000_000) | (sparse > 2_100_000)]
    return 4096 + 4 * np.unique(np.concatenate([sparse, full]))


ORDERS = {
    "random": lambda offsets: offsets,
    "sorted": np.sort,
    "descending": lambda offsets: np.sort(offsets)[::-1],
    "repeated": lambda offsets: np.repeat(offsets[:64], len(offsets) // 64 + 1)[: len(offsets)],
    "near the full pages": lambda offsets: offsets % 20_000 + 4_000_000,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("values", ["rows", "the same rows", "holes"])
def test_large_images_have_the_answers_of_a_search(monkeypatch, large_starts, order, values):
    """For any combination and number of offsets."""
    rows = np.arange(len(large_starts), dtype=np.int32)
    column = {
        "rows": None,
        "the same rows": np.append(rows[:-1], np.int32(-1)),
        "holes": np.where(rows % 3 == 0, np.int32(-1), rows // 2),
    }[values]
    index, twin = RangeIndex(large_starts, column), RangeIndex(large_starts, column)
    index.find(np.zeros(5000, np.uint64))
    monkeypatch.setattr(ranges, "_native_index", lambda *_: None)  # the twin searches
    edges = np.array([0, 1, 4095, 4096, 4097, 2**63, 2**64 - 1], np.uint64)
    offsets = np.random.default_rng(3).integers(0, 81_000_000, 20_000, dtype=np.uint64)
    offsets = np.concatenate([offsets, large_starts[:5000], large_starts[:5000] - 1, edges])
    np.random.default_rng(4).shuffle(offsets)
    offsets = np.ascontiguousarray(ORDERS[order](offsets))

    for size in (len(offsets), 0, 1, 2, 127, 128, 129, 255, 256, 257, 4097):
        for back in (0, 1, 5000):
            found = index.find(offsets[:size], back=back)
            assert (found == twin.find(offsets[:size], back=back)).all()


@pytest.mark.parametrize("size", [199, 200, 201, 999, 1000, 1001, 5000])
@pytest.mark.parametrize("threads", [1, 2, 3, 100, None])
def test_parallel_lookups_keep_the_order(monkeypatch, size, threads):
    """No thread is left afterwards."""
    monkeypatch.setattr(ranges, "_MANY", 1000)
    monkeypatch.setattr(ranges, "_PART", 100)
    starts = np.arange(0, 1 << 20, 16, dtype=np.uint64)
    offsets = np.random.default_rng(1).integers(0, 1 << 20, 5000, dtype=np.uint64)
    index = RangeIndex(starts)
    index.find(offsets)
    before = threading.enumerate()

    found = index.find(offsets[:size], threads=threads)

    assert (found == offsets[:size] // np.uint64(16)).all()
    assert threading.enumerate() == before


def test_lookups_continue_if_no_thread_can_be_started(monkeypatch):
    """As at interpreter shutdown."""
    pytest.importorskip("machtrace._native._ranges", reason="only the C extension is shared")

    def refuse(*_):
        refused.append(True)
        raise RuntimeError

    refused = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    offsets = np.arange(5000, dtype=np.uint64)

    answers = RangeIndex(np.array([16, 32], np.uint64)).find(offsets, threads=3)

    assert expected([16, 32], None, range(5000), 0) == answers.tolist()
    assert not refused  # a single part needs no thread
    monkeypatch.setattr(ranges, "_PART", 100)
    answers = RangeIndex(np.array([16, 32], np.uint64)).find(offsets, threads=3)
    assert expected([16, 32], None, range(5000), 0) == answers.tolist()
    assert refused


def test_32_bit_columns_and_an_empty_index():
    """Columns of 32 bits are not widened; an empty index has no answers."""
    index = RangeIndex(np.array([4, 8], np.uint32))
    assert index.find(np.array([3, 4, 9, 2**63], np.uint64)).tolist() == [-1, 0, 1, 1]
    nothing = RangeIndex(np.zeros(0, np.uint64), np.zeros(0, np.int32))
    assert nothing.find(np.zeros(5000, np.uint64)).tolist() == [-1] * 5000


def test_starts_far_apart_take_little_memory():
    """Addresses come from files: memory follows the number of ranges, not their span."""
    starts = np.array([0, 1, 3, 2**40 + 1, 2**63, 2**64 - 1], np.uint64)
    index = RangeIndex(starts)
    index.find(np.zeros(5000, np.uint64))

    assert index.nbytes < 1 << 21


def test_starts_that_do_not_ascend_are_refused():
    """A search would return wrong answers without an error."""
    pytest.importorskip("machtrace._native._ranges", reason="the index needs the C extension")
    with pytest.raises(ValueError, match="ascend"):
        RangeIndex(np.array([2, 1], np.uint64)).find(np.zeros(5000, np.uint64))


def test_without_the_extension_answers_are_the_same(monkeypatch):
    monkeypatch.setattr(ranges, "_native_index", lambda *_: None)
    starts = np.array([16, 32, 48], np.uint64)
    offsets = np.arange(5000, dtype=np.uint64)

    found = RangeIndex(starts).find(offsets, back=1)

    assert expected([16, 32, 48], None, range(5000), 1) == found.tolist()
