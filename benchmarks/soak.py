"""A server under load for a while, and its memory: ``python -m benchmarks.soak MINUTES [RATE]``.

It gets RATE reports of 20 threads a second (10 by default) from 200 devices, some of which it has
already. Beside that it is queried, and a device is deleted each minute. A line is printed each half
minute: resident bytes of the server and of its reader now, what it stored, the log, and answers by
status.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.test_server import children, served
from tests.warehouse.test_deletion import report

_DEVICES, _PERIOD = 200, 30.0
_QUERIES = (
    ("GET", "/v1/issues?limit=20", b""),
    ("GET", "/v1/flame?format=folded&nodes=500", b""),
    ("POST", "/v1/query", b"SELECT device, count(*) AS n FROM reports GROUP BY ALL"),
    ("GET", "/metrics", b""),
)


def body(number: int) -> bytes:
    """Return a report with 20 threads."""
    text = report(f"incident-{number}", f"device-{number % _DEVICES}")
    thread = b'{"triggered": true, "frames": ['
    frames = b", ".join(
        b'{"imageOffset": %d, "imageIndex": 0}' % (number * at % 5000 * 16) for at in range(30)
    )
    head, _, rest = text.partition(thread)
    others = b'{"frames": [' + frames + b"]}, "
    return head + others * 20 + thread + rest


async def request(port: int, method: str, path: str, data: bytes, answers: Counter) -> None:
    """Send a request, and count the answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"Host: localhost\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}".encode() + data)
        answer = await reader.read()
        answers[answer[9:12].decode()] += 1
        writer.close()
    except OSError as error:
        answers[type(error).__name__] += 1


def resident(pid: int) -> list[int]:
    """Return the resident MB of a process, and of its children together."""
    sizes = []
    for each in (pid, *children(pid)):
        status = Path(f"/proc/{each}/status").read_text()
        sizes += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    return [sizes[0] // 1000, sum(sizes[1:]) // 1000]


async def load(folder: Path, pid: int, port: int, seconds: float, rate: float) -> None:
    """Send requests, and print what becomes of the server."""
    answers: Counter = Counter()
    began = shown = time.monotonic()
    number = 0
    tasks: set[asyncio.Task] = set()

    def begin(method: str, path: str, data: bytes = b"") -> None:
        task = asyncio.create_task(request(port, method, path, data, answers))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    while (now := time.monotonic()) < began + seconds:
        again = random.random() < 0.05  # noqa: S311 - not a secret
        begin("POST", "/v1/reports", body(random.randrange(number + 1) if again else number))  # noqa: S311
        number += not again
        if number % 50 == 0:
            begin(*random.choice(_QUERIES))  # noqa: S311
        if now >= shown + _PERIOD:
            shown = now
            if int((now - began) / _PERIOD) % 2:
                begin("DELETE", f"/v1/devices/device-{random.randrange(_DEVICES)}")  # noqa: S311
            server, reader = resident(pid)
            logs = sum(path.stat().st_size for path in (folder / "log").iterdir())
            segments = len(list((folder / "segments").iterdir()))
            facts = [
                f"{(now - began) / 60:.1f} min: {server} MB, reader {reader} MB",
                f"{number} reports, {segments} segments, {logs >> 20} MB of log, {dict(answers)}",
            ]
            print(*facts, sep=", ", flush=True)  # noqa: T201 - the table
        await asyncio.sleep(max(began + number / rate - time.monotonic(), 0.001))
    await asyncio.gather(*tasks)


def main() -> None:
    """Serve a new warehouse."""
    minutes = float(sys.argv[1])
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "w"
        with served(folder) as (process, port):
            asyncio.run(load(folder, process.pid, port, minutes * 60, rate))


if __name__ == "__main__":
    main()
