"""Threads of Python that wait for one another.

rlock [COUNT]: each of COUNT threads holds its own RLock and waits for that of the next. lock: the
same with Lock, which has no owner. gil: a thread holds the GIL while it waits in C for a mutex that
another thread holds, which waits for the GIL. With LOCKS_GATE in the environment the last thread
waits for a line first, and states the time (CLOCK_BOOTTIME, in nanoseconds).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

kind = sys.argv[1]
count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
barrier = threading.Barrier(count + (kind != "gil"))


def state_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if "LOCKS_GATE" in os.environ:
        sys.stdin.readline()
        sys.stdout.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n")
        sys.stdout.flush()


class Account:
    """Has a lock as an attribute, as programs do."""

    def __init__(self) -> None:
        self.lock = threading.Lock() if kind == "lock" else threading.RLock()


accounts = [Account() for _ in range(count)]


def transfer(index: int) -> None:
    other = accounts[(index + 1) % count]
    with accounts[index].lock:
        barrier.wait()
        barrier.wait()
        if index % 2:
            other.lock.acquire()
        else:
            with other.lock:
                pass


def wait_for_gil() -> None:
    mutex = (ctypes.c_long * 16)()
    without_gil, with_gil = ctypes.CDLL(None), ctypes.PyDLL(None)

    def hold() -> None:
        without_gil.pthread_mutex_lock(mutex)
        held.set()
        # Busy with the GIL given up and taken: soon it waits for it.
        while True:
            pass

    held = threading.Event()
    threading.Thread(target=hold, daemon=True, name="holder").start()
    held.wait()
    state_ready()
    with_gil.pthread_mutex_lock(mutex)


if kind == "gil":
    wait_for_gil()
for index in range(count):
    threading.Thread(target=transfer, args=(index,), name=f"transfer-{index}", daemon=True).start()
barrier.wait()
state_ready()
barrier.wait()
threading.Event().wait()
