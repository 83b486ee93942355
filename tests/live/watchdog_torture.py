"""Arm a watchdog, let it copy threads, and disarm it, many times, while everything else continues.

``watchdog_torture.py --cycles 10000 --burners 12 --record FILE`` does so in one process whose
threads come and go, load and unload a library, fork, burn processor time with and without the
interpreter's lock, keep that lock in C, and recurse deeply. The last line is JSON: the counts. A
crash or a standstill is the failure; records that cannot be read are counted as wrong.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from machtrace._native import _inprocess
from machtrace.cpython.runs import PythonRuns
from machtrace.model.snapshot import ThreadId
from machtrace.targets.inprocess.beacons import deadline, idle_wait
from machtrace.targets.inprocess.linux import SelfTarget
from machtrace.targets.inprocess.watchdog import ROOM, STACK_LIMIT
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogEvent,
    WatchdogReader,
)

LIMIT_NS, INTERVAL_NS = 2_000_000, 1_000_000
DEEP = 200
STANDSTILL_S = 120


class Load:
    """Threads that do everything at once, until they are stopped."""

    def __init__(self, burners: int, library: str) -> None:
        self.end = threading.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self.library = library
        self.locked, self.free = ctypes.PyDLL(None), ctypes.CDLL(None)
        bodies: list[Callable[[], None]] = [self.come_and_go, self.load, self.fork, self.keep]
        bodies += [self.burn if number % 2 else self.burn_outside for number in range(burners)]
        bodies += [self.recurse, self.loop]
        self.threads = [threading.Thread(target=self.repeat, args=(body,)) for body in bodies]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()

    def repeat(self, body: Callable[[], None]) -> None:
        """Do something until the end."""
        while not self.end.is_set():
            body()
            self.counts[body.__name__] += 1

    def burn(self) -> None:
        """Use processor time with the lock."""
        sum(range(20_000))

    def burn_outside(self) -> None:
        """Use processor time without the lock."""
        self.free.usleep(1)
        buffer = ctypes.create_string_buffer(1 << 16)
        for _ in range(20):
            self.free.memset(buffer, 1, len(buffer))

    def come_and_go(self) -> None:
        """Start threads that exit soon."""
        threads = [threading.Thread(target=self.enter_scope) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def enter_scope(self) -> None:
        """Exceed one deadline, and not the other."""
        with deadline(0.0005, "short"), deadline(5, "long"):
            time.sleep(0.001)

    def load(self) -> None:
        """Load and unload a library."""
        self.free.dlopen.restype = ctypes.c_void_p
        handle = self.free.dlopen(self.library.encode(), 2)
        time.sleep(0.001)
        self.free.dlclose(ctypes.c_void_p(handle))

    def fork(self) -> None:
        """Start a child that states things about itself."""
        child = os.fork()
        if child == 0:
            with deadline(1, "child"):
                idle_wait(lambda: None)()
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.02)

    def keep(self) -> None:
        """Keep the lock in C."""
        self.locked.usleep(random.randrange(4000))  # noqa: S311 - no secret
        time.sleep(0.01)

    def recurse(self, levels: int = DEEP) -> None:
        """Call deeply, through C."""
        if levels:
            next(map(lambda _: self.recurse(levels - 1), [0]))  # noqa: C417 - C is meant

    def loop(self) -> None:
        """Run tasks between idle waits."""
        wait = idle_wait(time.sleep)
        for _ in range(20):
            wait(0.001)
            sum(range(5000))


class Cycles:
    """Watchdogs that are started and stopped."""

    def __init__(self, load: Load, record: Path) -> None:
        self.load = load
        self.record = record
        self.counts: collections.Counter[str] = collections.Counter()
        with SelfTarget() as target:
            runtime = target.python_runtime()
        self.layout = None if runtime is None else runtime.layout
        self.native = b"" if runtime is None else runtime.layout.native(runtime.address)

    def once(self, number: int) -> None:
        """Arm, hang, and disarm."""
        descriptor = -1
        if number % 4 == 0:
            descriptor = os.open(self.record, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        watchdog = _inprocess.Watchdog(
            LIMIT_NS,
            INTERVAL_NS,
            STACK_LIMIT,
            30_000_000,
            2_000_000,
            0,
            ROOM,
            descriptor,
            b"{}",
            self.native,
        )
        if descriptor >= 0:
            os.close(descriptor)
        watchdog.watch(threading.get_native_id())
        other = self.load.threads[number % len(self.load.threads)].native_id
        if other is not None:
            watchdog.watch(other)
        with deadline(0.001, "cycle"):
            time.sleep(0.004)
        until = time.monotonic() + 0.004
        while time.monotonic() < until:
            pass
        if number % 3:
            watchdog.stop()
        self.check(watchdog.take())
        _, _, _, _, captures, stops, longest, lost = watchdog.counts()
        self.counts.update(captures=captures, stops=stops, lost=lost)
        self.counts["longest_stop_ns"] = max(self.counts["longest_stop_ns"], longest)
        del watchdog

    def check(self, data: bytes) -> None:
        """Read the records; Python functions are decoded where they were copied."""
        for item in WatchdogReader().read(data):
            if isinstance(item, WatchdogEvent):
                self.counts[f"{item.cause.name}_{item.phase.name}"] += 1
            elif isinstance(item, WatchdogCapture):
                runs = item.python(self.layout)
                self.counts["chains"] += len(runs)
                self.counts["unread"] += sum(each is None for each in runs.values())
                self.counts["wrong"] += not names_are_plausible(runs)


def names_are_plausible(runs: dict[ThreadId, PythonRuns]) -> bool:
    """Whether all functions have printable names."""
    return all(
        function.name.isprintable() and function.location.path.isprintable()
        for each in runs.values()
        for run in each or ()
        for function in run
    )


def stand_guard(progress: list[int]) -> None:
    """End the process if no cycle ends for two minutes."""
    before = -1
    while True:
        time.sleep(STANDSTILL_S)
        if progress[0] == before:
            os.write(2, b"no cycle ended for two minutes\n")
            os._exit(3)
        before = progress[0]


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description="Arm and disarm watchdogs under load.")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--burners", type=int, default=4)
    parser.add_argument("--library", default="libutil.so.1", help="is loaded and unloaded")
    parser.add_argument("--record", type=Path, required=True, help="a file for every fourth record")
    options = parser.parse_args()
    began = time.monotonic()
    progress = [0]
    sys.setswitchinterval(0.0005)  # every cycle needs its turns
    threading.Thread(target=stand_guard, args=(progress,), daemon=True).start()
    with Load(options.burners, options.library) as load:
        cycles = Cycles(load, options.record)
        for number in range(options.cycles):
            cycles.once(number)
            progress[0] = number + 1
    seconds = round(time.monotonic() - began, 1)
    counts = {**cycles.counts, "cycles": progress[0], "seconds": seconds}
    print(json.dumps({**counts, "load": load.counts}))  # noqa: T201
    return 1 if cycles.counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
