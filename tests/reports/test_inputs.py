"""The files that paths lead to, within limits."""

from __future__ import annotations

import gzip
import io
import os
import time
import tracemalloc
import zipfile

import pytest

from machtrace.errors import FileAccessError
from machtrace.reports.inputs import InputLimits, count_files, report_inputs

SMALL = InputLimits(file_bytes=1000, total_bytes=3000, always_bytes=2000, members=5, ratio=10)


def zipped(*members, method=zipfile.ZIP_DEFLATED):
    """Return an archive's bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return sink.getvalue()


def inputs(path, limits=None):
    """Return names, and contents or reasons."""
    return [
        (
            input_.name,
            input_.source.reason
            if isinstance(input_.source, FileAccessError)
            else input_.source.data,
        )
        for input_ in report_inputs(path, limits)
    ]


def test_archives_in_archives_have_their_members_names(tmp_path):
    """Names are joined by colons; a deeper archive is an error, and the others are read."""
    path = tmp_path / "a"
    deep = zipped(("c", zipped(("d", zipped(("e", b"too deep"))))))
    path.write_bytes(zipped(("x", b"1"), ("b", deep), ("y", gzip.compress(b"2", mtime=0))))

    assert inputs(path) == [
        (f"{path}:x", b"1"),
        (f"{path}:b:c:d", "archives nested 3 deep"),
        (f"{path}:y", b"2"),
    ]


@pytest.mark.parametrize(
    "pack",
    [
        lambda size: gzip.compress(bytes(size), mtime=0),
        lambda size: gzip.compress(bytes(size // 16), mtime=0) * 16,
        lambda size: zipped(("a", bytes(size))),
    ],
    ids=["gzip", "gzip of 16 members", "zip"],
)
def test_an_archive_bomb_is_not_unpacked(tmp_path, pack):
    """A thousand times its size: what is read is bounded by the size that the file has."""
    path = tmp_path / "bomb"
    path.write_bytes(pack(200 << 20))
    tracemalloc.start()
    begun = time.thread_time()
    (refused,) = inputs(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert "exceeds the limit" in refused[1]
    assert most < 200 << 20
    assert time.thread_time() - begun < 10


def test_members_share_the_limit_of_their_file(tmp_path):
    """The rest is one error."""
    path = tmp_path / "a"
    path.write_bytes(zipped(*((str(n), bytes(900)) for n in range(5))))
    members = inputs(path, SMALL)

    assert [bytes(900)] * 3 == [data for _, data in members[:3]]
    assert all("exceeds the limit" in reason for _, reason in members[3:])


def test_too_many_members_are_not_listed(tmp_path):
    """Though the list of an archive is read as a whole."""
    path = tmp_path / "a"
    path.write_bytes(zipped(*((str(n), b"") for n in range(6))))

    assert inputs(path, SMALL) == [(str(path), "more than 5 members")]


def test_a_large_file_is_refused_and_its_size_not_believed(tmp_path):
    """``/proc`` has files of size 0 that hold something."""
    (tmp_path / "a").write_bytes(bytes(1001))

    assert inputs(tmp_path / "a", SMALL) == [(str(tmp_path / "a"), "larger than 1000 bytes")]
    if os.path.exists("/proc/self/status"):  # noqa: PTH110 (no file of ours)
        assert b"Name:" in inputs("/proc/self/status", InputLimits())[0][1]


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(18),
        zipped(("a", b"x" * 100))[:-30],
        zipped(("a", b"x" * 100)).replace(b"x" * 10, b"y" * 10),
        gzip.compress(b"x" * 100, mtime=0)[:-12],
        gzip.compress(b"x" * 100, mtime=0)[:12] + b"\xff" * 40,
    ],
    ids=["header alone", "end alone", "cut zip", "damaged zip", "cut gzip", "damaged gzip"],
)
def test_broken_archives_are_reported_or_empty(tmp_path, data):
    """No error is raised."""
    (tmp_path / "a").write_bytes(data)

    for _, data_or_error in inputs(tmp_path / "a"):
        assert isinstance(data_or_error, str | bytes)


def test_names_do_not_control_a_terminal(tmp_path):
    """They are names of files and of members."""
    (tmp_path / "a\x1b[31m").write_bytes(zipped(("b\x07\n", b"1")))

    ((name, data),) = inputs(tmp_path)
    assert name.isprintable()
    assert data == b"1"


def test_a_folder_is_read_in_order_and_one_file_at_a_time(tmp_path):
    """Files are read lazily."""
    for name in ("b/2", "a", "c", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    entries = report_inputs(tmp_path)
    first = next(entries)
    (tmp_path / "c").write_text("changed since")

    assert first.source.data == b"a"
    assert [entry.source.data for entry in entries] == [b"changed since", b"b/1", b"b/2"]
    assert count_files(tmp_path) == 4
    assert count_files(tmp_path, without=tmp_path / "b") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_listed_is_reported(tmp_path):
    """The others are read."""
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "open").write_text("x")

    assert len(inputs(tmp_path)) == 2


def test_cyclic_links_end(tmp_path):
    """A dangling link is reported."""
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")

    assert [reason for _, reason in inputs(tmp_path)] == ["no such file or directory"]
