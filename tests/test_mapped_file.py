"""Mapped files: read-only bytes that need no descriptor."""

import gc
import os
from pathlib import Path

import pytest

from machtrace.images.open_file import open_image_file
from machtrace.mapped_file import mapped_file


def descriptors():
    """How many are open."""
    return len(list(Path("/dev/fd").iterdir()))


def test_bytes_are_those_of_the_file(tmp_path):
    """All of them, still when it is closed and taken away; nobody can write to them."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 33)
    with path.open("rb") as file:
        data = mapped_file(file.fileno())
    path.unlink()
    assert data == bytes(range(256)) * 33
    assert data.readonly
    part = data[256:512]
    del data
    gc.collect()
    assert part == bytes(range(256))


def test_many_files_take_no_descriptors(tmp_path):
    """As many as a process of a Mac may have at once, and more."""
    pytest.importorskip("machtrace._native._mapping", reason="installed without a compiler")
    before = descriptors()
    held = []
    for number in range(300):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number)
        held.append(open_image_file(path))
    assert descriptors() == before
    assert [bytes(one) for one in held] == [b"%d" % number for number in range(300)]


def test_mappings_go_with_their_last_view(tmp_path):
    """Nothing keeps the memory."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux lists mappings")
    path = tmp_path / "a mapped file"
    path.write_bytes(b"x" * 5000)
    data = open_image_file(path)
    assert path.name in maps.read_text()
    part = data[10:20]
    data.release()
    assert path.name in maps.read_text()
    part.release()
    del data, part
    assert path.name not in maps.read_text()


def test_what_cannot_be_mapped_is_refused(tmp_path):
    """As Python's own mappings refuse it."""
    path = tmp_path / "empty"
    path.touch()
    with path.open("rb") as file, pytest.raises(ValueError, match="empty"):
        mapped_file(file.fileno())
    reader, writer = os.pipe()
    try:
        with pytest.raises((OSError, ValueError)):
            mapped_file(reader)
    finally:
        os.close(reader)
        os.close(writer)
