"""Rotation: each call is in one of the files, and each file can be read alone."""

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

from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format
from tests.agent.build import LINKED, build, numbers, run
from tests.agent.spool_format import Nodes
from tests.agent.test_hooks import shared

pytestmark = pytest.mark.live
RUNNING, STOPPED, ROTATED = 1, 2, 3
KILLS = int(os.environ.get("MACHTRACE_KILLS", "30"))
FUNCTIONS = ("observed", "observed_twice", "observed_result")
THREADS = 4
BATCH = 200
"""Calls before a flush, in the program."""


def program(built: Path) -> Path:
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}"]
    return build(built, "rotation.c", LINKED, link=link)


def rotate(
    built: Path, path: Path, how: str, *, threads: int = 0, rounds: int = 0
) -> dict[str, float]:
    return numbers(run(program(built), path, threads, rounds, how))


def spools(path: Path) -> list[Path]:
    return [path, *path.parent.glob(f"{path.name}.*[0-9]")]


def read_alone(file: Path) -> spool_format.Spool:
    """Return a spool, all of whose stacks it has."""
    spool = spool_format.read(file)
    assert spool.incomplete == []
    nodes = Nodes(spool)
    assert all(nodes.stack(node) for _, node in spool.sums() if node)
    parsed = Spool.read(file)
    assert parsed.problems == ()
    assert parsed.is_stopped == (spool.state != RUNNING)
    return spool


def check_sums(files: list[Path], result: dict[str, float]) -> None:
    """Check that calls by function and stack are those that the program counted."""
    calls: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for file in files:
        spool = read_alone(file)
        names = {rule.number: name for name, rule in spool_format.rules(spool).items()}
        calls.update({name: spool.calls[number] for number, name in names.items()})
        for (rule, _), count in spool.sums().items():
            stored[names[rule]] += count
    assert calls == {name: result[name] for name in FUNCTIONS}
    # Of functions that are only counted there are no stacks.
    assert stored == Counter({name: int(result[name]) for name in FUNCTIONS[:2]})


@pytest.mark.parametrize(
    ("how", "threads", "rounds"), [("call", 8, 40), ("call", 16, 40), ("age", 16, 150)]
)
def test_each_call_is_in_one_of_the_files(
    built: Path, tmp_path: Path, how: str, threads: int, rounds: int
) -> None:
    path = tmp_path / "app.spool"
    result = rotate(built, path, how, threads=threads, rounds=rounds)
    files = spools(path)
    assert result["errors"] == 0
    assert len(files) == result["finished"] + 1 >= 2
    if how == "call":
        assert result["finished"] == result["rotations"] == rounds
    check_sums(files, result)
    for file in files:
        assert spool_format.read(file).state == (STOPPED if file == path else ROTATED)
    assert not list(tmp_path.glob("*.next"))


def test_a_spool_is_rotated_when_its_log_is_nearly_full(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    result = rotate(built, path, "full", rounds=2)
    files = spools(path)
    assert result["finished"] == 2
    assert len(files) == 3
    check_sums(files, result)


def test_a_full_log_is_counted_where_spools_are_not_rotated(built: Path, tmp_path: Path) -> None:
    """Calls by function stay exact; stacks that have no room end at frames that had."""
    path = tmp_path / "app.spool"
    result = rotate(built, path, "never", rounds=1)
    assert result["finished"] == 0
    assert spools(path) == [path]
    check_sums([path], result)
    spool = spool_format.read(path)
    incomplete = sum(event.flags & 4 != 0 for event in spool.events)
    assert 0 < incomplete <= spool.losses["log_full"]
    rule = spool_format.rules(spool)["observed"].number
    assert sum(calls for (number, _), calls in spool.sums().items() if number == rule) > 0


def test_stacks_of_incidents_are_in_the_file_that_has_the_incident(
    built: Path, tmp_path: Path
) -> None:
    path = tmp_path / "app.spool"
    result = rotate(built, path, "incidents", threads=1, rounds=100)
    assert result["finished"] == 100
    incidents = 0
    for file in spools(path):
        spool = Spool.read(file)
        incidents += len(spool.incidents)
        assert all(
            spool.stack(taken.stack) for incident in spool.incidents for taken in incident.stacks
        )
    assert incidents > 0


def test_no_call_is_lost_where_an_older_file_cannot_be_moved(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    (tmp_path / "app.spool.1").mkdir()
    result = rotate(built, path, "once", rounds=3)
    assert (result["errors"], result["error"]) == (3, errno.EISDIR)
    assert result["finished"] == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["app.spool", "app.spool.1"]
    check_sums([path], result)


def test_no_call_is_lost_where_the_next_file_cannot_be_created(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    (tmp_path / "app.spool.next").mkdir()
    result = rotate(built, path, "once", rounds=3)
    assert (result["errors"], result["error"]) == (3, errno.EISDIR)
    check_sums([path], result)


def test_a_file_that_was_removed_is_not_reported_as_finished(built: Path, tmp_path: Path) -> None:
    result = rotate(built, tmp_path / "app.spool", "removed", rounds=6)
    assert (result["errors"], result["finished"]) == (0, 3)
    assert len(spools(tmp_path / "app.spool")) == 4


def check_killed(folder: Path, flushed: list[int]) -> int:
    """Check the files of a killed process; return how many are finished.

    Calls that were flushed are there, and at most the batch that each thread was in.
    """
    path = folder / "app.spool"
    total = done = 0
    for file in folder.iterdir():
        if file == folder / "progress":
            continue
        if file.suffix == ".next":
            # It is being created, or has no call.
            if file.read_bytes()[:8] == b"mtspool\n":
                assert read_alone(file).sums() == {}
            continue
        spool = read_alone(file)
        done += spool.state == ROTATED
        assert spool.state == (RUNNING if file == path else ROTATED) or file.suffix == ".1"
        total += sum(spool.sums().values())
    assert sum(flushed) <= total <= sum(flushed) + THREADS * BATCH
    return done


def test_no_flushed_call_is_missing_after_sigkill_in_rotations(built: Path, tmp_path: Path) -> None:
    seed = random.Random(19)  # noqa: S311 - when to kill is no secret
    finished = 0
    for attempt in range(KILLS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        progress = folder / "progress"
        progress.write_bytes(bytes(4096))
        command = [program(built), folder / "app.spool", str(THREADS), "0", "killed", progress]
        with subprocess.Popen([str(word) for word in command]) as process:
            while progress.read_bytes()[: 8 * THREADS] == bytes(8 * THREADS):
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(seed.random() * 0.1)
            process.send_signal(signal.SIGKILL)
        flushed = struct.unpack_from(f"<{THREADS}Q", progress.read_bytes())
        finished += check_killed(folder, list(flushed))
    assert finished > 0
