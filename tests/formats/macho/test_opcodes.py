"""Rebase and bind opcodes, compared with llvm-objdump, and malformed ones."""

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import MachOError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.bind_opcodes import imported_symbols
from machtrace.formats.macho.fixups.rebase_opcodes import rebased_pointers, slid_segment
from machtrace.formats.macho.load_commands import LC_DYLD_INFO_ONLY
from machtrace.targets.emulator import PROGRAM

DEMO = PROGRAM.read_bytes()
REBASE, BIND, WEAK_BIND, LAZY_BIND = 8, 16, 24, 32
"""Where ``dyld_info_command`` has the offset and size of each table."""
DATA_SEGMENT, DATA_START = 3, 0x100008000


def with_table(field, opcodes):
    """Build the demo program with another table of opcodes at its end."""
    data = bytearray(DEMO) + opcodes
    command = next(MachOFileContents(DEMO, "demo").image.commands_of(LC_DYLD_INFO_ONLY))
    struct.pack_into("<II", data, command.offset + field, len(DEMO), len(opcodes))
    return bytes(data)


def rebased(data):
    """Return the addresses as plain numbers."""
    return rebased_pointers(MachOFileContents(data, "demo")).tolist()


def objdump_rebases(path):
    """Return the addresses that llvm-objdump lists."""
    objdump = shutil.which("llvm-objdump-19") or shutil.which("llvm-objdump")
    if objdump is None:
        pytest.skip("llvm-objdump is not installed")
    listed = subprocess.run(
        [objdump, "--macho", "--rebase", path], check=True, capture_output=True, text=True
    ).stdout
    return [int(row[1], 16) for row in re.finditer(r"(0x[0-9A-F]+)\s+pointer", listed)]


OPCODES = {
    "times, immediate": bytes((0x11, 0x20 | DATA_SEGMENT, 0x10, 0x53)),
    "times, uleb": bytes((0x11, 0x20 | DATA_SEGMENT, 0x08, 0x60, 0x90, 0x01)),
    "add after": bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x70, 0x18, 0x51)),
    "skipping": bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x80, 0x05, 0x10, 0x51)),
    "add, and scaled": bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x30, 0x20, 0x43, 0x52)),
    "back again": bytes((0x11, 0x20 | DATA_SEGMENT, 0x40, 0x51, 0x30))
    + b"\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    + b"\x51",
    "after the end": bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x51, 0x00, 0x51)),
    "none": b"",
}


@pytest.mark.peer
@pytest.mark.parametrize("opcodes", OPCODES.values(), ids=OPCODES)
def test_addresses_equal_those_that_objdump_lists(tmp_path, opcodes):
    """For each opcode, and for a linker's table."""
    data = with_table(REBASE, opcodes)
    path = tmp_path / "demo.macho"
    path.write_bytes(data)
    assert objdump_rebases(path) == rebased(data)


@pytest.mark.peer
def test_a_linkers_table_is_read_completely():
    """A hundred pointers of an Objective-C program, each into its image."""
    assert objdump_rebases(PROGRAM) == rebased(DEMO)
    assert len(rebased(DEMO)) > 100


def test_a_segment_is_slid_at_its_pointers_only():
    """Also backwards, and at unaligned addresses."""
    data = with_table(REBASE, bytes((0x11, 0x20 | DATA_SEGMENT, 0x13, 0x51, 0x30, 0x05, 0x51)))
    contents = MachOFileContents(data, "demo")
    segment = contents.image.segments[DATA_SEGMENT]
    before = bytes(contents.read_file(segment.fileoff, segment.filesize))
    for slide in (0x2064000, -0x4000):
        after = slid_segment(contents, segment, rebased_pointers(contents), slide)
        expected = bytearray(before)
        for offset in (0x13, 0x20):
            (word,) = struct.unpack_from("<Q", before, offset)
            struct.pack_into("<Q", expected, offset, (word + slide) % (1 << 64))
        assert bytes(expected) == after


def test_a_segment_without_pointers_is_unchanged():
    """Pointers are in ``__DATA``; ``__TEXT`` equals the file."""
    contents = MachOFileContents(DEMO, "demo")
    text = contents.image.segments[1]
    assert DEMO[: text.filesize] == slid_segment(
        contents, text, rebased_pointers(contents), 0x2064000
    )


@pytest.mark.parametrize(
    ("opcodes", "message"),
    [
        (bytes((0x11, 0x51)), "outside its segment"),
        (bytes((0x11, 0x2F, 0x00, 0x51)), "no segment 15"),
        (bytes((0x12,)), "type 2"),
        (bytes((0x90,)), "no rebase opcode 0x90"),
        (bytes((0x11, 0x20 | DATA_SEGMENT, 0xFF)), "bytes wanted"),
        (bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x60)) + b"\xff" * 8 + b"\x0f", "outside"),
        (bytes((0x11, *(0x20 | DATA_SEGMENT, 0x00, 0x60, 0x80, 0x01) * 200)), "can hold"),
    ],
)
def test_invalid_opcodes_are_refused(opcodes, message):
    """The error names the table; counts are checked before anything is allocated."""
    with pytest.raises(MachOError, match=message) as raised:
        rebased(with_table(REBASE, opcodes))
    assert "rebase opcodes" in str(raised.value)


def test_imports_of_all_tables_are_read():
    """Eagerly, weakly and lazily bound ones; the demo program has none."""
    assert imported_symbols(MachOFileContents(DEMO, "demo")) == frozenset()
    eager = bytes((0x11, 0x40)) + b"_printf\0" + bytes((0x51, 0x72, 0x00, 0x90))
    more = bytes((0x60, 0x7F, 0x80, 0x08, 0xA0, 0x08, 0xB1, 0xC0, 0x02, 0x08, 0x20, 0x01, 0x3E))
    for field, opcodes in (
        (BIND, eager + more + b"\x40_exit\0\0"),
        (WEAK_BIND, eager + more + b"\x40_exit\0"),
        # Between lazy binds stands a DONE each.
        (LAZY_BIND, eager + b"\0" + more + b"\x40_exit\0\x90\0"),
    ):
        contents = MachOFileContents(with_table(field, opcodes), "demo")
        assert imported_symbols(contents) == {"_printf", "_exit"}


@pytest.mark.parametrize("opcodes", [b"\xd0", b"\x40_printf", b"\x70\xff"])
def test_invalid_bind_opcodes_are_refused(opcodes):
    """An unknown opcode, a name without an end, a truncated number."""
    with pytest.raises(MachOError, match="bind opcodes"):
        imported_symbols(MachOFileContents(with_table(BIND, opcodes), "demo"))


@given(st.binary(max_size=64), st.sampled_from([REBASE, BIND, WEAK_BIND, LAZY_BIND]))
def test_random_opcodes_give_a_value_or_an_error(opcodes, field):
    """The value can be applied."""
    contents = MachOFileContents(with_table(field, opcodes), "demo")
    try:
        pointers = rebased_pointers(contents)
        imported_symbols(contents)
    except MachtraceError:
        return
    assert pointers.dtype == np.uint64
    for segment in contents.image.segments:
        assert segment.filesize == len(slid_segment(contents, segment, pointers, 0x4000))
