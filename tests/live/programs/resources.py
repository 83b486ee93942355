"""Uses processor time or memory in one of three threads when a line is read: ``burn``, ``grow``.

It prints the native id of the thread, and ends it at the next line.
"""

import sys
import threading
import time

MIB = 1 << 20


def burn(stop):
    """Run all the time."""
    number = 0
    while not stop.is_set():
        number += 1


def grow(stop):
    """Touch 30 MiB every tenth of a second: 300 MiB in a second, and then no more."""
    blocks = []
    for _ in range(10):
        blocks.append(touched(30 * MIB))
        time.sleep(0.1)
    stop.wait()
    return blocks


def touched(size):
    """Return a new block whose pages are in memory."""
    return bytearray(size)


def sleep():
    """Wake up now and then, and allocate little."""
    while True:
        time.sleep(0.02)
        bytes(100_000)


for name in ("first", "second"):
    threading.Thread(target=sleep, name=name, daemon=True).start()
print("ready", flush=True)  # noqa: T201
for line in sys.stdin:
    stopped = threading.Event()
    work = {"burn": burn, "grow": grow}[line.strip()]
    worker = threading.Thread(target=work, args=[stopped], name="worker")
    worker.start()
    print(worker.native_id, flush=True)  # noqa: T201
    sys.stdin.readline()
    stopped.set()
    worker.join()
    print("ended", flush=True)  # noqa: T201
