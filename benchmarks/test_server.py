"""A server with a thousand clients at once.

Each client has a connection of its own and sends one report of 100 threads; all begin together.
The table has what they waited for, and the largest resident size of the server, its reader
included. Clients and the server share the machine.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra 'server'")

from machtrace.model.address import ImageOffset
from machtrace.reports.writers import write_reports
from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.models import made_report, made_thread

CLIENTS = int(os.environ.get("MACHTRACE_BENCHMARK_CLIENTS", "1000"))
THREADS, FRAMES = 100, 30


def report(number: int) -> bytes:
    """Return an .ips report."""
    names = [f"app:{name % 5000}" for name in range(number * 7, number * 7 + FRAMES)]
    frames = tuple(
        frame._replace(symbol=None, offset=ImageOffset(0x1000 + 16 * (number * 7 + at)))
        for at, frame in enumerate(made_thread(0, names).frames)
    )
    threads = [replace(made_thread(at, []), frames=frames) for at in range(THREADS)]
    return write_reports([made_report(*threads)], "ips")


@contextmanager
def served(folder: Path):
    """Serve a warehouse in a process, and yield it and its port."""
    Warehouse.create(folder).close()
    command = [sys.executable, "-m", "machtrace", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.terminate()


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process started."""
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(each) for started in lists for each in started]


def largest_resident(pid: int) -> float:
    """Return the most that a process and its children have had in memory, in MB."""
    sizes = []
    for each in (pid, *children(pid)):
        status = Path(f"/proc/{each}/status").read_text()
        sizes += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return sum(sizes) / 1000


async def send(port: int, body: bytes, answers: Counter, waits: list[float]) -> None:
    """Send a report, and count the answer."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"Host: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(b"POST /v1/reports HTTP/1.1\r\n" + head.encode() + body)
    answer = await reader.read()
    waits.append(time.monotonic() - began)
    answers[answer[9:12].decode()] += 1
    writer.close()


def test_a_thousand_clients(benchmark, tmp_path):
    """All are answered; what is accepted is on the disk."""
    bodies = [report(number) for number in range(CLIENTS)]
    answers, waits = Counter(), []
    with served(tmp_path / "w") as (process, port):
        idle = largest_resident(process.pid)

        async def all_clients() -> None:
            await asyncio.gather(*(send(port, body, answers, waits) for body in bodies))

        benchmark.pedantic(lambda: asyncio.run(all_clients()), rounds=1)
        accepting = largest_resident(process.pid)
        with Warehouse(tmp_path / "w") as warehouse:
            while sum(row.reports for row in warehouse.segments) < answers["202"]:
                time.sleep(0.5)
        at_end = largest_resident(process.pid)
    waits.sort()
    benchmark.extra_info |= {
        "answers": dict(answers),
        "kB a report": round(len(bodies[0]) / 1000),
        "median, p99, longest wait (s)": [
            round(waits[int(len(waits) * share)], 2) for share in (0.5, 0.99, 1 - 1e-9)
        ],
        "MB idle, accepting, at the end": [round(each) for each in (idle, accepting, at_end)],
    }
    assert sum(answers.values()) == CLIENTS
    assert set(answers) <= {"202", "429", "503"}
