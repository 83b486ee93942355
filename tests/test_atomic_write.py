"""An atomic write leaves either the new contents or the old ones, however it ends."""

import os

import pytest

from machtrace import atomic_write
from machtrace.atomic_write import replace_file


@pytest.mark.parametrize("name", ["open", "write", "fsync", "close"])
def test_an_interrupted_write_leaves_no_temporary_file(tmp_path, monkeypatch, name):
    """Even if a signal arrives between the system call and Python's record of it."""
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


def test_an_existing_file_of_the_temporary_name_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_write.os, "urandom", bytes)
    other = tmp_path / f"{atomic_write.UNFINISHED}{bytes(8).hex()}"
    other.write_bytes(b"theirs")
    with pytest.raises(atomic_write.FileAccessError, match="exists"):
        replace_file(str(tmp_path / "out"), [b"ours"])
    assert other.read_bytes() == b"theirs"
    assert not (tmp_path / "out").exists()


@pytest.fixture
def umask():
    """Set a umask that is no common default."""
    before = os.umask(0o026)
    yield
    os.umask(before)


def permissions(path):
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("umask")
def test_new_files_have_the_permissions_that_the_umask_leaves(tmp_path):
    path = tmp_path / "page.html"
    replace_file(str(path), [b"a page"])
    assert permissions(path) == 0o640


@pytest.mark.usefixtures("umask")
def test_a_replaced_file_has_the_permissions_of_the_one_before(tmp_path):
    path = tmp_path / "real.txt"
    path.write_bytes(b"before")
    path.chmod(0o664)
    replace_file(str(path), [b"after"])
    assert permissions(path) == 0o664


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("exists", [False, True])
def test_the_memory_of_a_process_is_its_owners(tmp_path, exists):
    path = tmp_path / "core"
    if exists:
        path.write_bytes(b"before")
        path.chmod(0o644)
    replace_file(str(path), [b"memory"], is_private=True)
    assert permissions(path) == 0o600
