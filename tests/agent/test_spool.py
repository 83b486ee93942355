"""Spools: whole after SIGKILL at any instant, and refused where they cannot be written."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.agent import spool_format
from tests.agent.build import SPOOL, build

pytestmark = pytest.mark.live

KILLS = int(os.environ.get("MACHTRACE_KILLS", "60"))


def payload(number: int) -> bytes:
    return bytes((number + 7 * index) & 0xFF for index in range(1 + number * 37 % 150))


def sums(events: int) -> Counter[tuple[int, int]]:
    result: Counter[tuple[int, int]] = Counter()
    for number in range(events):
        result[number % 7, 1 + number * number % 101] += 1 + number % 3
    return result


def writer(
    built: Path, path: Path, size: int, progress: Path, log: int, events: int
) -> subprocess.Popen[str]:
    program = build(built, "spool_writer.c", SPOOL)
    progress.write_bytes(bytes(4096))
    command = [str(program), str(path), str(size), str(progress), str(log), str(events)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_start(process: subprocess.Popen[str], progress: Path) -> None:
    while progress.read_bytes()[:8] == bytes(8):
        assert process.poll() is None
        time.sleep(0.0005)


def check(path: Path, progress: Path) -> int:
    """Check a killed writer's spool; return how many events were folded into cells."""
    _, log, events, changes = struct.unpack_from("<4Q", progress.read_bytes())
    spool = spool_format.read(path)
    assert spool.incomplete == []
    assert log <= len(spool.log) <= log + 1
    for number, (kind, text) in enumerate(spool.log):
        assert kind == spool_format.INCIDENT
        assert text == payload(number)
    last = spool.events[-1].number + 1 if spool.events else 0
    assert events <= last <= events + 16
    expected, actual = sums(last), spool.sums()
    for stack in range(13):
        done = 2 * len(range(stack, changes, 13))
        assert actual.pop((7, stack), 0) in (done, done + 2 * (changes % 13 == stack))
    assert actual == expected
    return spool.first_event


@pytest.mark.parametrize(
    ("size", "log", "events", "longest"),
    [(1 << 24, 16, 0, 0.02), (1 << 18, 1, 16, 0.02), (1 << 20, 4, 8, 0.05)],
    ids=["log", "rotation", "both"],
)
def test_no_complete_record_is_missing_after_sigkill(
    built: Path, tmp_path: Path, size: int, log: int, events: int, longest: float
) -> None:
    seed = random.Random(size)  # noqa: S311 - when to kill is no secret
    folded = 0
    path, progress = tmp_path / "app.spool", tmp_path / "progress"
    for _ in range(-(-KILLS // 3)):
        process = writer(built, path, size, progress, log, events)
        wait_for_start(process, progress)
        time.sleep(seed.random() * longest)
        process.send_signal(signal.SIGKILL)
        process.wait()
        folded += check(path, progress) > 0
        assert process.stderr is not None
        process.stderr.close()
    assert log == 16 or folded > 0


def test_the_spool_of_an_earlier_run_stays_beside_the_new_one(built: Path, tmp_path: Path) -> None:
    path, progress = tmp_path / "app.spool", tmp_path / "progress"
    runs = []
    for _ in range(3):
        process = writer(built, path, 1 << 20, progress, 4, 8)
        wait_for_start(process, progress)
        process.kill()
        process.communicate()
        runs.append(spool_format.read(path).run)
    assert spool_format.read(tmp_path / "app.spool.1").run == runs[1]
    assert sorted(name.name for name in tmp_path.glob("app*")) == ["app.spool", "app.spool.1"]


def refused(built: Path, path: Path, progress: Path, size: int = 1 << 20) -> str:
    process = writer(built, path, size, progress, 1, 1)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 1
    return text.strip()


def test_a_spool_that_another_agent_writes_is_left_alone(built: Path, tmp_path: Path) -> None:
    path, progress = tmp_path / "app.spool", tmp_path / "progress"
    process = writer(built, path, 1 << 20, progress, 1, 1)
    wait_for_start(process, progress)
    assert refused(built, path, tmp_path / "other") == os.strerror(errno.EBUSY)
    process.kill()
    process.communicate()
    check(path, progress)


def test_files_of_another_version_are_moved_and_not_overwritten(
    built: Path, tmp_path: Path
) -> None:
    path, progress = tmp_path / "app.spool", tmp_path / "progress"
    contents = b"mtspool\n" + struct.pack("<I", 99) + bytes(200)
    path.write_bytes(contents)
    process = writer(built, path, 1 << 20, progress, 1, 1)
    wait_for_start(process, progress)
    process.kill()
    process.communicate()
    assert (tmp_path / "app.spool.1").read_bytes() == contents
    with pytest.raises(ValueError, match="version 99"):
        spool_format.read(tmp_path / "app.spool.1")


@pytest.mark.parametrize("size", [0, 4096, (1 << 20) + 1, 1 << 40])
def test_sizes_that_are_none_are_refused(built: Path, tmp_path: Path, size: int) -> None:
    text = refused(built, tmp_path / "app.spool", tmp_path / "progress", size)
    assert text == os.strerror(errno.EINVAL)
    assert not (tmp_path / "app.spool").exists()


def test_paths_that_cannot_be_written_are_refused(built: Path, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    missing = tmp_path / "missing" / "app.spool"
    assert refused(built, missing, progress) == os.strerror(errno.ENOENT)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert refused(built, tmp_path / "link", progress) == os.strerror(errno.ELOOP)
    assert refused(built, Path("/proc/app.spool"), progress) in {
        os.strerror(errno.ENOENT),
        os.strerror(errno.EACCES),
    }


def test_a_full_disk_is_reported_and_leaves_no_file(built: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted")
    try:
        text = refused(built, disk / "app.spool", tmp_path / "progress", 1 << 22)
        assert text == os.strerror(errno.ENOSPC)
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        text = refused(built, disk / "app.spool", tmp_path / "progress")
        assert text == os.strerror(errno.EROFS)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
