"""The process that ``torture.py`` runs: it does everything at once and captures itself.

Its argument is a JSON object: ``library``, ``plugin``, ``progress`` (a file of counters), ``hz``,
``pipes`` (a descriptor for each capturing series), ``snapshots`` (whether a Python thread takes
single ones too) and ``sanitized``. The first line of its output lists the counters' names. It ends
once its input does, and then prints the results as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import glob
import json
import mmap
import os
import subprocess
import sys
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machtrace as mt
from machtrace.targets.inprocess.linux import SelfTarget

DRAIN_S = 20
"""How long captures that wait are passed on when all is over."""

done = threading.Event()
failures: list[str] = []
problems: dict[str, int] = {}


def allocate() -> None:
    """Allocate memory of all sizes, by Python."""
    [bytearray(n) for n in range(0, 1 << 17, 4099)]


_EXTENSIONS = sorted(glob.glob(f"{sysconfig.get_path('stdlib')}/lib-dynload/*.so"))[:4]  # noqa: PTH207


_libc = ctypes.CDLL(None)
_libc.dlopen.restype = ctypes.c_void_p
_libc.dlclose.argtypes = [ctypes.c_void_p]


def load() -> None:
    """Load and unload images."""
    for path in _EXTENSIONS:
        handle = _libc.dlopen(path.encode(), os.RTLD_LAZY | os.RTLD_LOCAL)
        assert handle
        _libc.dlclose(handle)
        time.sleep(0.002)


def execute() -> None:
    """Fork and run another program."""
    subprocess.run(["/bin/true"], check=True)


def fork() -> None:
    """Fork without exec."""
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def raise_and_catch() -> None:
    """Raise exceptions through many frames."""

    def descend(depth: int) -> None:
        if not depth:
            raise LookupError
        descend(depth - 1)

    for _ in range(20):
        with contextlib.suppress(LookupError):
            descend(30)


def fight() -> None:
    """Hold the interpreter's lock as long as possible."""
    sum(range(20_000))


def recurse() -> None:
    """Build a deep native stack, through C at each level."""

    def descend(depth: int) -> object:
        return next(map(lambda _: descend(depth - 1), [0])) if depth else time.sleep(0.001)  # noqa: C417

    descend(100)


def churn() -> None:
    """Start short-lived threads."""
    threads = [threading.Thread(target=int) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compress() -> None:
    """Run C code without the lock."""
    zlib.compress(bytes(1 << 18), 6)


def sleep() -> None:
    """Sleep; Python restarts calls that signals interrupt."""
    began = time.monotonic()
    time.sleep(0.01)
    assert time.monotonic() - began >= 0.01, "a sleep ended early"


PYTHON = (
    *(allocate, load, execute, fork, raise_and_catch, recurse, churn, compress, sleep),
    *(fight, fight),
)


class Progress:
    """Counters that another process watches."""

    def __init__(self, path: str, library: ctypes.CDLL) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.counters = (ctypes.c_uint64 * 64).from_buffer(self._map)
        self.names = [
            library.native_kind(index).decode() for index in range(library.native_kinds())
        ]

    def counter(self, name: str) -> Callable[[], None]:
        """Return a function that increments a counter."""
        if name not in self.names:
            self.names.append(name)
        place = self.names.index(name)

        def count() -> None:
            self.counters[place] += 1  # by several threads at most one too few

        return count


def repeat(step: Callable[[], None], count: Callable[[], None], rest: float) -> None:
    """Call a function at least once and until the end, with pauses of ``rest`` seconds."""
    try:
        while True:
            step()
            count()
            if done.wait(rest) if rest else done.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - reported at the end
        failures.append(f"{getattr(step, '__name__', step)}: {error!r}")
        done.set()


def send(descriptor: int, hz: float, *, together: bool, results: dict[str, Any]) -> None:
    """Capture at a rate, and send the captures."""
    try:
        with SelfTarget() as target, target.series(hz, room=128 << 20, together=together) as series:
            began = time.monotonic()
            while True:
                is_last = done.is_set()
                if is_last:
                    series.stop()
                    seconds = results.setdefault("seconds", time.monotonic() - began)
                    if time.monotonic() - began > seconds + DRAIN_S:
                        break  # the checking process is slow
                data = memoryview(series.take_records(4 << 20))
                if not data:
                    if is_last:
                        break
                    time.sleep(0.02)
                    continue
                message = memoryview(len(data).to_bytes(8, "little") + data)
                while message:
                    message = message[os.write(descriptor, message) :]
            counts = series.counts
            results |= {name: getattr(counts, name) for name in counts.__slots__}
    except BaseException as error:  # noqa: BLE001 - reported at the end
        failures.append(f"series: {error!r}")
        done.set()
    finally:
        os.close(descriptor)


def snapshot_step() -> Callable[[], None]:
    """Capture by the public functions."""
    target = SelfTarget()

    def snapshot() -> None:
        for problem in target.snapshot(stack_limit=1 << 20).problems:
            name = type(problem.error).__name__
            problems[name] = problems.get(name, 0) + 1
        own = mt.call_stack_symbols()
        assert len(own) > 2, own

    return snapshot


def main(options: dict[str, Any]) -> int:
    """Run until the input ends."""
    faulthandler.enable()
    library = ctypes.CDLL(options["library"])
    library.native_kind.restype = library.native_stop.restype = ctypes.c_char_p
    library.native_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint]
    with_lock = ctypes.PyDLL(options["library"])
    progress = Progress(options["progress"], library)

    def keep_lock() -> None:
        with_lock.keep_lock(2000)
        time.sleep(0.02)

    steps: list[Callable[[], None]] = [*PYTHON, keep_lock]
    if options["sanitized"]:
        # Python allocates in the child, where libasan's allocator may be locked for good: by a
        # thread that does not exist there.
        steps.remove(fork)
    if options["snapshots"]:
        steps.append(snapshot_step())
    threads = [
        threading.Thread(
            target=repeat,
            args=(step, progress.counter(step.__name__), options["pace"]),
            daemon=True,
        )
        for step in steps
    ]
    for step in steps:
        step()  # imports happen here and not later
    rest = options["pace"]
    library.native_start(
        ctypes.addressof(progress.counters), options["plugin"].encode(), round(rest * 1e6)
    )
    series: list[dict[str, Any]] = [{} for _ in options["pipes"]]
    for number, descriptor in enumerate(options["pipes"]):
        settings = {"together": number % 2 == 1, "results": series[number]}
        threads.append(
            threading.Thread(
                target=send, args=(descriptor, options["hz"]), kwargs=settings, daemon=True
            )
        )
    workers = len(steps) + library.native_threads()
    print(json.dumps({"names": progress.names, "workers": workers}), flush=True)  # noqa: T201
    for thread in threads:
        thread.start()
    sys.stdin.buffer.read()
    done.set()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            failures.append(f"{thread.name} does not end")
            faulthandler.dump_traceback(all_threads=True)
            os._exit(3)
    native = library.native_stop().decode()
    if native:
        failures.append(native)
    print(json.dumps({"series": series, "problems": problems, "failures": failures}), flush=True)  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
