"""A file has all of what was written or what it had before, whatever happens meanwhile."""

import os

import pytest

from machtrace import atomic_write
from machtrace.atomic_write import replace_file


@pytest.mark.parametrize("name", ["open", "write", "fsync", "close"])
def test_nothing_is_left_of_what_was_interrupted(tmp_path, monkeypatch, name):
    """Also where a signal comes when the system has done it and Python has not noted it yet."""
    path = tmp_path / "out"
    path.write_bytes(b"before")
    real = getattr(os, name)

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_write.os, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(str(path), [b"after"])
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    assert path.read_bytes() == b"before"


def test_somebody_elses_file_stays(tmp_path, monkeypatch):
    """One that has the name by chance, or on purpose."""
    monkeypatch.setattr(atomic_write.os, "urandom", bytes)
    other = tmp_path / f"{atomic_write.UNFINISHED}{bytes(8).hex()}"
    other.write_bytes(b"theirs")
    with pytest.raises(atomic_write.FileAccessError, match="exists"):
        replace_file(str(tmp_path / "out"), [b"ours"])
    assert other.read_bytes() == b"theirs"
    assert not (tmp_path / "out").exists()
