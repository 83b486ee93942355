"""The cursor over bytes allocates memory in proportion to the bytes it reads."""

from __future__ import annotations

import tracemalloc

import pytest

from machtrace.errors import FormatError
from machtrace.formats.cursor import ByteCursor


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 5000])
def test_a_string_ends_at_its_first_nul(length: int):
    """For any length and offset."""
    data = b"before" + b"x" * length + b"\0behind\0"
    for view in (data, memoryview(data)):
        cursor = ByteCursor(view, source="strings", offset=6)
        assert cursor.c_string() == b"x" * length
        assert cursor.c_string() == b"behind"
        assert cursor.at_end


def test_a_string_without_an_end_is_an_error_where_it_starts():
    """The error has the start's offset, not the end's."""
    cursor = ByteCursor(b"\0" + b"x" * 1000, source="strings", offset=1)
    with pytest.raises(FormatError, match="without an end"):
        cursor.c_string()
    assert cursor.offset == 1


def test_a_short_string_does_not_copy_what_follows_it():
    """Otherwise the strings of a table take quadratic time."""
    data = memoryview(b"name\0" + bytes(8 << 20))
    tracemalloc.start()
    try:
        assert ByteCursor(data, source="strings").c_string() == b"name"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
