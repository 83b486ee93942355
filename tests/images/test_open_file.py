"""Opening image files, and the errors."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from machtrace.errors import FileAccessError
from machtrace.images.open_file import open_image_file


def test_the_bytes_outlive_the_deletion_of_the_file(tmp_path: Path):
    """The view keeps the mapping alive; nothing has to be closed."""
    path = tmp_path / "file"
    path.write_bytes(b"contents" * 1000)
    view = open_image_file(path)
    path.unlink()
    gc.collect()

    assert bytes(view[-8:]) == b"contents"
    assert view.readonly
    assert len(view) == 8000


def test_a_path_may_be_a_string(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x")

    assert open_image_file(f"{tmp_path}/file") == b"x"


def test_an_unreadable_path_is_refused_with_path_and_reason(tmp_path: Path):
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    reasons = {
        "absent": "no such file",
        "empty": "the file is empty",
        ".": "this is a directory, not a file",
        "pipe": "not a regular file",
        "empty/below": "not a directory",
        "loop": "too many levels of symbolic links",
    }
    for name, reason in reasons.items():
        with pytest.raises(FileAccessError, match=reason) as caught:
            open_image_file(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
        assert caught.value.remedy


def test_a_name_that_no_file_can_have_is_refused():
    """Paths come from cores, which may be damaged."""
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(FileAccessError):
            open_image_file(name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path):
    """The reason is not that it is missing."""
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)

    with pytest.raises(FileAccessError, match="no permission"):
        open_image_file(path)
