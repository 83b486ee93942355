"""A server that is killed under load loses nothing that it acknowledged, and repeats nothing.

``MACHTRACE_SERVER_KILLS=10000`` sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread

import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.receiver import report

KILLS = int(os.environ.get("MACHTRACE_SERVER_KILLS", "5"))
_CLIENTS = 4


def send(port: int, names: list[str], acknowledged: list[str], enough: Event, most: int) -> None:
    """Send reports until the server is gone."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        for name in names:
            connection.request("POST", "/v1/reports", report(name))
            response = connection.getresponse()
            if response.status == 202 and json.loads(response.read())["ids"]:
                acknowledged.append(name)
                if len(acknowledged) >= most:
                    enough.set()
    except (OSError, HTTPException, ValueError):
        pass  # it was killed
    finally:
        connection.close()
        enough.set()


@pytest.mark.peer
@pytest.mark.timeout(120 + 20 * KILLS)
def test_sigkill_under_load(folder):
    chance = random.Random(17)  # noqa: S311 - to repeat a run
    every: list[str] = []
    command = [sys.executable, "-m", "machtrace", "serve", str(folder), "--port", "0"]
    for number in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            match = re.search(r":(\d+)$", line.strip())
            assert match is not None, line
            acknowledged: list[str] = []
            enough = Event()
            most = chance.randrange(1, 200)
            clients = [
                Thread(
                    target=send,
                    args=(
                        int(match[1]),
                        [f"{number}-{client}-{at}" for at in range(200)],
                        acknowledged,
                        enough,
                        most,
                    ),
                )
                for client in range(_CLIENTS)
            ]
            for client in clients:
                client.start()
            enough.wait(60)
            server.send_signal(signal.SIGKILL)
            for client in clients:
                client.join()
            assert acknowledged
            every += acknowledged
    with Warehouse(folder) as warehouse:
        warehouse.flush()
        assert not list(warehouse.check())
        assert not warehouse.quarantined
        stored = warehouse.query("SELECT incident FROM reports")["incident"].to_pylist()
    assert len(stored) == len(set(stored)), "a report is there twice"
    assert set(every) <= set(stored), "an acknowledged report is lost"


@pytest.mark.peer
def test_a_server_that_is_interrupted_ends_in_order(folder):
    command = [sys.executable, "-m", "machtrace", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/reports", report("a"))
        assert connection.getresponse().status == 202
        connection.close()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=100)
    assert "Traceback" not in errors
    with Warehouse(folder) as warehouse:
        warehouse.flush()
        assert warehouse.query("SELECT incident FROM reports")["incident"].to_pylist() == ["a"]
