"""``/proc/PID/maps``, line by line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import FormatError
from machtrace.targets.shared.proc_maps import address_width, parse_maps, stack_ranges

# Written after proc(5), with every kind of name that the kernel gives.
TEXT = """\
00400000-00452000 r--p 00000000 08:02 173521                             /usr/bin/dbus-daemon
00452000-00652000 r-xp 00052000 08:02 173521                             /usr/bin/dbus-daemon
00e03000-00e24000 rw-p 00000000 00:00 0                                  [heap]
35b1800000-35b1820000 ---p 00000000 00:00 0 
7f2c6d2ff000-7f2c6d300000 rw-s 00001000 fd:a1 99                         /srv/a b (deleted)
7f2c6d300000-7f2c6d301000 r--p 00000000 00:1c 7                          /memfd:x\\012y (deleted)
7fff80000000-7fff80021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""  # noqa: W291 - the kernel leaves a space where no name is


def test_fields_of_a_line():
    mappings = parse_maps(TEXT, "maps")
    assert len(mappings) == 8
    code = mappings[1]
    assert (code.start, code.end, code.offset) == (0x452000, 0x652000, 0x52000)
    assert (code.device, code.inode) == ((8, 2), 173521)
    assert code.is_file
    assert code.is_executable
    assert code.is_readable
    assert not code.is_writable
    assert [m.path for m in mappings] == [
        "/usr/bin/dbus-daemon",
        "/usr/bin/dbus-daemon",
        "[heap]",
        "",
        "/srv/a b",
        "/memfd:x\ny",
        "[stack]",
        "[vsyscall]",
    ]
    assert [m.is_deleted for m in mappings] == [False] * 4 + [True, True] + [False] * 2
    assert [m.is_file for m in mappings] == [True, True, False, False, True, True, False, False]


def test_an_exited_process_has_no_mappings():
    assert parse_maps("", "maps") == ()


def test_only_a_newline_ends_a_line():
    """The kernel never writes one in a name."""
    (mapping,) = parse_maps("1000-2000 r--p 0 08:01 5 /srv/a\x85b\u2028c\x0c\n", "maps")
    assert mapping.path == "/srv/a\x85b\u2028c\x0c"


def test_the_error_for_a_bad_line_has_its_offset_and_source():
    with pytest.raises(FormatError) as caught:
        parse_maps("1000-2000 r--p 0 08:01 5 x\n1000 2000 r--p\n", "/proc/1/maps")
    assert caught.value.offset == 27
    assert caught.value.source == "/proc/1/maps"


def test_stack_ranges_are_the_readable_mappings():
    """Start and end alternate."""
    ranges = list(stack_ranges(parse_maps(TEXT, "maps")))
    assert ranges[:4] == [0x400000, 0x452000, 0x452000, 0x652000]
    assert 0x35B1800000 not in ranges
    assert 0xFFFFFFFFFF600000 not in ranges
    assert ranges == sorted(ranges)


@pytest.mark.parametrize(
    ("end", "width"), [("0000fffff0000000", 48), ("0000007fe8001000", 39), ("ffffffff0000", 48)]
)
def test_address_width_is_that_of_the_main_stack(end, width):
    """The kernel's half, where x86-64 shows a page, is ignored."""
    text = f"1000-{end} rw-p 0 00:00 0 [stack]\n" + TEXT.splitlines()[-1] + "\n"
    assert address_width(parse_maps(text, "maps")) == width


@given(st.text())
def test_any_text_is_mappings_or_an_error(text):
    with contextlib.suppress(FormatError):
        assert len(parse_maps(text, "maps")) <= len(text)
