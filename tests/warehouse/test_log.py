"""The log of received reports: what was acknowledged is read back, what was not is cut off."""

from __future__ import annotations

import errno
import os

import pytest

from machtrace.errors import FileAccessError, FormatError
from machtrace.warehouse.log import LogWriter, read_record, records

BODIES = [b"one", b"", b"\0" * 100, b"MTL1" * 5]


def write(path, bodies) -> list[int]:
    log = LogWriter(path)
    offsets = log.append(bodies)
    log.close()
    return offsets


def test_records_are_read_back(tmp_path):
    path = tmp_path / "1.log"
    offsets = write(path, BODIES[:2]) + write(path, BODIES[2:])
    assert [(record.offset, record.body) for record in records(path)] == [
        *zip(offsets, BODIES, strict=True)
    ]
    assert [read_record(path, offset) for offset in offsets] == BODIES
    assert [record.body for record in records(path, offsets[2])] == BODIES[2:]


def test_a_tail_torn_at_every_byte_is_cut_off(tmp_path):
    path = tmp_path / "1.log"
    offsets = [*write(path, BODIES), path.stat().st_size]
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        expected = [body for body, end in zip(BODIES, offsets[1:], strict=True) if end <= size]
        assert [record.body for record in records(path)] == expected
        write(path, [b"next"])
        assert [record.body for record in records(path)] == [*expected, b"next"]


def test_a_changed_byte_ends_the_log(tmp_path):
    path = tmp_path / "1.log"
    offsets = write(path, BODIES)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        count = sum(offset <= at for offset in offsets) - 1
        assert [record.body for record in records(path)] == BODIES[:count]


def test_nothing_of_a_failed_write_stays(tmp_path, monkeypatch):
    path = tmp_path / "1.log"
    log = LogWriter(path)
    log.append([b"first"])
    write_part = os.pwrite

    def full(file: int, data: memoryview, at: int) -> int:
        if at > 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_part(file, data[:10], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FileAccessError, match="No space left"):
        log.append([b"x" * 100])
    monkeypatch.undo()
    assert path.stat().st_size == log.size
    log.append([b"second"])
    log.close()
    assert [record.body for record in records(path)] == [b"first", b"second"]


def test_what_is_no_record_is_stated(tmp_path):
    path = tmp_path / "1.log"
    write(path, BODIES)
    with pytest.raises(FormatError):
        read_record(path, 1)
    with pytest.raises(FileAccessError):
        read_record(tmp_path / "2.log", 0)
    with pytest.raises(FileAccessError):
        LogWriter(tmp_path / "missing" / "1.log")
