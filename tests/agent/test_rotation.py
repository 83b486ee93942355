"""Rotation: each call is in one of the files, and each file can be read alone."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format
from tests.agent.build import LINKED, build, numbers
from tests.agent.spool_format import Nodes
from tests.agent.test_hooks import shared

pytestmark = pytest.mark.live
ROTATED, STOPPED = 3, 2


def program(built: Path) -> Path:
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}"]
    return build(built, "rotation.c", LINKED, link=link)


def spools(path: Path) -> list[Path]:
    return [path, *path.parent.glob(f"{path.name}.*[0-9]")]


@pytest.mark.parametrize("how", ["call", "age"])
def test_each_call_is_in_one_of_the_files(built: Path, tmp_path: Path, how: str) -> None:
    path = tmp_path / "app.spool"
    command = [str(program(built)), str(path), "4", "3", how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = numbers(done.stdout.splitlines()[1])
    files = spools(path)
    assert result["errors"] == 0
    assert len(files) == result["finished"] + 1
    if how == "call":
        assert result["finished"] == result["rotations"]
    assert len(files) >= 2
    total = stored = 0
    for file in files:
        spool = spool_format.read(file)
        assert spool.state == (STOPPED if file == path else ROTATED)
        assert spool.incomplete == []
        number = spool_format.rules(spool)["observed"].number
        total += spool.calls[number]
        stored += sum(spool.sums().values())
        nodes = Nodes(spool)
        assert all(nodes.stack(event.stack) for event in spool.events)
        parsed = Spool.read(file)
        assert parsed.is_stopped
        assert parsed.problems == ()
    assert total == stored == result["calls"]
    assert not list(tmp_path.glob("*.next"))


def test_files_of_a_process_that_is_killed_while_it_rotates(built: Path, tmp_path: Path) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        command = [str(program(built)), str(folder / "app.spool"), "2", "0", "forever"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready 1\n"
            time.sleep(0.02 + 0.037 * attempt)
            process.send_signal(signal.SIGKILL)
        files = [file for file in folder.iterdir() if file.stat().st_size]
        assert files
        for file in files:
            if file.read_bytes()[:8] == b"mtspool\n":
                spool = spool_format.read(file)
                assert spool.incomplete == []
                nodes = Nodes(spool)
                assert all(nodes.stack(node) for _, node in spool.sums() if node)
            else:
                assert file.suffix == ".next", "it was being created"
