"""Mapped files: read-only bytes that need no descriptor."""

import gc
import os
from pathlib import Path

import pytest

from machtrace.images.open_file import open_image_file
from machtrace.mapped_file import mapped_file


def descriptors():
    """Return the number of open descriptors."""
    return len(list(Path("/dev/fd").iterdir()))


def test_bytes_equal_the_file_and_are_read_only(tmp_path):
    """They outlive the closed and deleted file."""
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
    """As many as a process on macOS may have open at once, and more."""
    pytest.importorskip("machtrace._native._mapping", reason="installed without a compiler")
    before = descriptors()
    held = []
    for number in range(300):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number)
        held.append(open_image_file(path))
    assert descriptors() == before
    assert [bytes(one) for one in held] == [b"%d" % number for number in range(300)]


def test_mappings_are_released_with_their_last_view(tmp_path):
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


def test_unmappable_files_are_refused(tmp_path):
    """With the error of Python's own mappings."""
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
