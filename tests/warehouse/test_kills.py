"""A writer that is killed at any moment loses nothing that it acknowledged, and repeats nothing.

``MACHTRACE_KILLS=10000`` sets the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from machtrace.warehouse.warehouse import Warehouse

KILLS = int(os.environ.get("MACHTRACE_KILLS", "12"))


@pytest.mark.peer
@pytest.mark.timeout(60 + 2 * KILLS)
def test_sigkill_at_random_instants(tmp_path):
    """Each writer continues with what the one before left behind."""
    folder = tmp_path / "w"
    Warehouse.create(folder).close()
    chance = random.Random(17)  # noqa: S311 - to repeat a run
    acknowledged: list[str] = []
    for number in range(KILLS):
        command = [sys.executable, "-m", "tests.warehouse.receiver", str(folder), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 80)):
                line = writer.stdout.readline()
                assert line, "the writer failed"
                acknowledged.append(line.strip())
            writer.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    with Warehouse(folder) as warehouse:
        warehouse.flush()
        assert not list(warehouse.check())
        assert not warehouse.quarantined
        stored = warehouse.query("SELECT incident FROM reports")["incident"].to_pylist()
        stacks = warehouse.query("SELECT count(*) AS n FROM occurrences WHERE role = 'crashed'")
    assert len(stored) == len(set(stored)), "a report is there twice"
    assert set(acknowledged) <= set(stored), "an acknowledged report is lost"
    assert stacks["n"][0].as_py() == len(stored)
