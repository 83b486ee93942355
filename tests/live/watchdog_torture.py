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
import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
SEEN_NS = 100_000_000
DEEP = 200
NICE = 10
STANDSTILL_S = 120
DECODED = 16
"""One cycle in sixteen has its Python functions decoded, which takes longer than the cycle."""
PROGRESS_S = 10
DATA = bytes(1 << 21)


class Load:
    """Threads that do everything at once, until they are stopped."""

    def __init__(self, burners: int, library: str) -> None:
        self.end = threading.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self.library = library
        self.locked, self.free = ctypes.PyDLL(None), ctypes.CDLL(None)
        bodies: list[Callable[[], None]] = [self.come_and_go, self.load, self.fork, self.keep]
        bodies += [self.burn_outside if number % 4 else self.burn for number in range(burners)]
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
        """Do something until the end; burners leave processor time to the cycles."""
        if body in (self.burn, self.burn_outside):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self.end.is_set():
            body()
            self.counts[body.__name__] += 1

    def burn(self) -> None:
        """Use processor time with the lock."""
        sum(range(20_000))

    def burn_outside(self) -> None:
        """Use processor time without the lock."""
        hashlib.sha256(DATA).digest()

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
        self.longest_ns = 0
        with SelfTarget() as target:
            runtime = target.python_runtime()
        self.layout = None if runtime is None else runtime.layout
        self.native = b"" if runtime is None else runtime.layout.native(runtime.address)

    def run(self, numbers: Iterable[int]) -> None:
        """Do the cycles of these numbers."""
        for number in numbers:
            self.once(number)

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
        with deadline(0.0001, "cycle"):  # exceeded at once: the wait lasts until that was copied
            watchdog.wait(0, SEEN_NS)
        if number % 3:
            watchdog.stop()
        self.check(watchdog.take(), is_decoded=number % DECODED == 0)
        _, _, _, _, captures, stops, longest, lost = watchdog.counts()
        self.counts.update(cycles=1, captures=captures, stops=stops, lost=lost)
        self.longest_ns = max(self.longest_ns, longest)
        del watchdog

    def check(self, data: bytes, *, is_decoded: bool) -> None:
        """Read the records, and decode the Python functions that were copied."""
        for item in WatchdogReader().read(data):
            if isinstance(item, WatchdogEvent):
                self.counts[f"{item.cause.name}_{item.phase.name}"] += 1
            elif isinstance(item, WatchdogCapture) and is_decoded:
                runs = item.python(self.layout)
                self.counts["chains"] += len(runs)
                self.counts["unread"] += sum(run is None for run in runs.values())
                self.counts["wrong"] += not names_are_plausible(runs)


def names_are_plausible(runs: dict[ThreadId, PythonRuns]) -> bool:
    """Whether all functions have printable names."""
    return all(
        function.name.isprintable() and function.location.path.isprintable()
        for each in runs.values()
        for run in each or ()
        for function in run
    )


def stand_guard(cycles: Sequence[Cycles], wanted: int) -> None:
    """Report the cycles that were done, and end the process if none ends for two minutes."""
    done, changed = 0, time.monotonic()
    while done < wanted:
        time.sleep(PROGRESS_S)
        before, done = done, sum(cycle.counts["cycles"] for cycle in cycles)
        os.write(2, f"{done} of {wanted} cycles\n".encode())
        if done != before:
            changed = time.monotonic()
        elif time.monotonic() - changed > STANDSTILL_S:
            os.write(2, b"no cycle ended for two minutes\n")
            os._exit(3)


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description="Arm and disarm watchdogs under load.")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4, help="watchdogs at the same time")
    parser.add_argument("--burners", type=int, default=4)
    parser.add_argument("--library", default="libutil.so.1", help="is loaded and unloaded")
    parser.add_argument("--record", type=Path, required=True, help="a file for every fourth record")
    options = parser.parse_args()
    began = time.monotonic()
    sys.setswitchinterval(0.0001)  # every cycle needs its turns
    with Load(options.burners, options.library) as load:
        every = [
            Cycles(load, options.record.with_name(f"{options.record.name}-{number}"))
            for number in range(options.at_once)
        ]
        guard = (every, options.cycles)
        threading.Thread(target=stand_guard, args=guard, daemon=True).start()
        with ThreadPoolExecutor(options.at_once) as pool:
            numbers = range(options.cycles)
            for running in [
                pool.submit(cycles.run, numbers[index :: options.at_once])
                for index, cycles in enumerate(every)
            ]:
                running.result()
    counts = sum((each.counts for each in every), collections.Counter[str]())
    figures = {
        "longest_stop_ns": max(each.longest_ns for each in every),
        "unread": counts["unread"],
        "wrong": counts["wrong"],
        "seconds": round(time.monotonic() - began, 1),
        "load": load.counts,
    }
    print(json.dumps({**counts, **figures}))  # noqa: T201
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
