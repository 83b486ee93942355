"""Files as memory: opened on the first read, and read only while unchanged."""

from __future__ import annotations

import copy
import gc
import os
import pickle

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, FileOffset
from machtrace.targets.linux.memory import FileIdentity, FileMemory, FileSegment, MappedFile


@pytest.fixture
def path(tmp_path):
    """A file of 100 bytes, each equal to its offset."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return path


def memory_of(file):
    """Map bytes 10 to 60 at 0x1000, and bytes 60 to 200 (beyond the end) at 0x2000."""
    return FileMemory(
        [
            FileSegment(Avma(0x2000), 140, file, FileOffset(60)),
            FileSegment(Avma(0x1000), 50, file, FileOffset(10)),
        ]
    )


def test_only_bytes_of_segments_are_readable(path):
    memory = memory_of(MappedFile(str(path), FileIdentity.of(path.stat())))
    assert bytes(memory.read(Avma(0x1000), 50)) == bytes(range(10, 60))
    assert bytes(memory.read(Avma(0x1031), 1)) == b"\x3b"
    assert bytes(memory.read(Avma(0x2000), 40)) == bytes(range(60, 100))
    for address, size in [
        (0xFFF, 1),
        (0x1000, 51),
        (0x1032, 1),
        (0x2000, 41),
        (0x3000, 1),
        (0x1000, -1),
    ]:
        with pytest.raises(MemoryReadError):
            memory.read(Avma(address), size)


def test_a_changed_file_is_not_read(path):
    """Not even if it has the same length."""
    file = MappedFile(str(path), FileIdentity.of(path.stat()))
    path.write_bytes(bytes(100))
    os.utime(path, ns=(0, 0))
    with pytest.raises(MemoryReadError):
        memory_of(file).read(Avma(0x1000), 1)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda file: pickle.loads(pickle.dumps(file))],  # noqa: S301
    ids=["copy", "pickle"],
)
def test_a_pickled_file_is_opened_again_if_unchanged(path, copied):
    """Mappings cannot be pickled."""
    file = MappedFile(str(path), FileIdentity.of(path.stat()))
    assert len(file.data) == 100
    again = copied(file)
    assert bytes(again.data) == bytes(file.data)
    later = copied(file)
    path.write_bytes(bytes(101))
    assert not len(later.data)


def test_a_missing_file_is_unreadable_memory(path):
    file = MappedFile(str(path), FileIdentity.of(path.stat()))
    path.unlink()
    with pytest.raises(MemoryReadError):
        memory_of(file).read(Avma(0x1000), 1)


def test_an_open_file_is_read_after_it_was_deleted(path):
    """The descriptor is closed with its last user."""
    descriptor = os.open(path, os.O_RDONLY)
    file = MappedFile("", FileIdentity.of(path.stat()), descriptor)
    path.unlink()
    memory = memory_of(file)
    assert bytes(memory.read(Avma(0x1000), 2)) == b"\x0a\x0b"
    del file, memory
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
