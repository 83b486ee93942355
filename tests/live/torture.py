"""Capture every thread of a process that does everything at once: ``torture.py SECONDS``.

32 threads mix what makes stopping a thread dangerous: malloc, the loader's lock, fork and exec,
exceptions, fights for the interpreter's lock, deep recursion, threads that come and go. Every
other thread is sampled up to 200 times a second by the core alone (every eighth time all stand
still together), while a second copy of the core captures for Python, which walks all stacks; each
must be well formed. A machine that has more to do than processors samples less often, for a thread
needs its turn to answer. A watch ends the process with all Python stacks when nothing moves any
more. The last line is JSON: what was captured, what was missing and why, and how far the workers
came.
"""

from __future__ import annotations

import _ctypes
import collections
import contextlib
import ctypes
import faulthandler
import glob
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from machtrace._native import _self
from machtrace.capture.unwinding import Unwinder
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import StopReason
from machtrace.target.self_process import SelfTarget

WORKERS = 32
HZ = 200
STANDSTILL_S = 60
DEPTH = 400
SAMPLED = ("samples", "copied", "gone", "blocked", "late", "failed", "malformed")

done = threading.Event()
progress: collections.Counter[str] = collections.Counter()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def allocate() -> None:
    """Take and give back memory of all sizes, in C and in Python."""
    for size in range(1, 1 << 18, 4099):
        libc.free(libc.malloc(size))
    [bytearray(n) for n in range(0, 4096, 64)]


_EXTENSIONS = sorted(glob.glob(f"{sysconfig.get_path('stdlib')}/lib-dynload/*.so"))[:8]  # noqa: PTH207


def load() -> None:
    """Load and unload images."""
    for path in _EXTENSIONS:
        handle = _ctypes.dlopen(path, os.RTLD_LAZY | os.RTLD_LOCAL)
        _ctypes.dlclose(handle)


def execute() -> None:
    """Fork and run another program; and fork without."""
    subprocess.run(["/bin/true"], check=True)
    time.sleep(0.02)


def fork() -> None:
    """Fork; the child captures itself now and then."""
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.02)


def raise_and_catch() -> None:
    """Exceptions through many frames."""

    def descend(depth: int) -> None:
        if not depth:
            raise LookupError
        descend(depth - 1)

    for _ in range(20):
        with contextlib.suppress(LookupError):
            descend(30)


def fight() -> None:
    """Hold the interpreter's lock as much as it can be held."""
    sum(range(20_000))


def recurse() -> None:
    """A deep stack of the machine, through C at each level."""

    def descend(depth: int) -> object:
        return next(map(lambda _: descend(depth - 1), [0])) if depth else time.sleep(0.001)  # noqa: C417

    descend(DEPTH // 4)


def churn() -> None:
    """Threads that are gone soon."""
    threads = [threading.Thread(target=int) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compress() -> None:
    """C code without the lock."""
    zlib.compress(bytes(1 << 18), 6)


def wait() -> None:
    """System calls that signals interrupt."""
    reader, writer = os.pipe()
    os.write(writer, b"x" * 10)
    assert os.read(reader, 10) == b"x" * 10
    os.close(reader)
    os.close(writer)
    began = time.monotonic()
    time.sleep(0.01)
    assert time.monotonic() - began >= 0.01, "a sleep ended early"


KINDS = (allocate, load, execute, fork, raise_and_catch, fight, recurse, churn, compress, wait)
failures: list[str] = []


def work(kind: Callable[[], None]) -> None:
    """Do one kind of thing until the end."""
    try:
        while not done.is_set():
            kind()
            progress[kind.__name__] += 1
    except BaseException as error:  # noqa: BLE001 - told at the end
        failures.append(f"{kind.__name__}: {error!r}")
        done.set()


captured: collections.Counter[str] = collections.Counter()
stops: list[int] = []


def sampler(folder: str) -> ctypes.CDLL:
    """The core without Python: its threads need no turn at the interpreter's lock."""
    here = Path(__file__).parent
    native = Path(_self.__file__).parent
    library = Path(folder) / "sampler.so"
    sources = [*sorted(native.glob("capture_linux*.c")), native / "linux_registers.c"]
    command = ["cc", "-std=c11", "-O2", "-fPIC", "-shared", "-pthread", f"-I{native}"]
    command += [str(here / "programs/own_capture.c"), *map(str, sources), "-o", str(library)]
    subprocess.run([*command, "-Wl,-z,now"], check=True)
    return ctypes.CDLL(str(library))


def capture() -> None:
    """Capture all threads as users do, and walk some, as often as this thread has its turn."""
    try:
        unwinder = Unwinder()
        with SelfTarget() as target:
            due = time.monotonic()
            while not done.is_set():
                snapshot = target.snapshot(stack_limit=1 << 20)
                captured["snapshots"] += 1
                captured["threads"] += len(snapshot.threads)
                for problem in snapshot.problems:
                    captured[type(problem.error).__name__] += 1
                stops.extend(one.stopped_for_ns or 0 for one in snapshot.threads)
                check(unwinder, snapshot)
                due = max(due + 1 / HZ, time.monotonic() - 1)
                time.sleep(max(0, due - time.monotonic()))
    except BaseException as error:  # noqa: BLE001 - told at the end
        failures.append(f"capture: {error!r}")
        done.set()


def check(unwinder: Unwinder, snapshot: Snapshot) -> None:
    """Every stack has its registers, bytes around its stack pointer, and reaches its root."""
    for walked in unwinder.unwind(snapshot, limit=4096):
        thread = walked.thread
        sp = thread.registers.sp
        assert sp is not None
        assert thread.stack.start <= sp <= thread.stack.end
        captured["walked"] += 1
        if walked.stop.reason is not StopReason.ROOT:
            captured[f"stopped: {walked.stop.reason.value}"] += 1


def watch() -> None:
    """Say it when nothing moves, instead of standing still forever."""
    before = None
    while not done.wait(STANDSTILL_S):
        now = (captured["snapshots"], sum(progress.values()))
        if before is not None and (now[0] == before[0] or now[1] == before[1]):
            faulthandler.dump_traceback(all_threads=True)
            os._exit(3)
        before = now


def main(seconds: float) -> int:
    """Run for so long."""
    faulthandler.enable()
    folder = tempfile.TemporaryDirectory()
    core = sampler(folder.name)
    began = time.monotonic()
    workers = [threading.Thread(target=work, args=(KINDS[n % len(KINDS)],)) for n in range(WORKERS)]
    others = [
        threading.Thread(target=capture),
        threading.Thread(target=watch, daemon=True),
    ]
    core.sampler_start(HZ)
    for thread in workers + others:
        thread.start()
    done.wait(seconds)
    done.set()
    counts = (ctypes.c_uint64 * 7)()
    core.sampler_stop(counts)
    sampled = dict(zip(SAMPLED, counts, strict=True))
    elapsed = time.monotonic() - began
    if sampled["malformed"] or sampled["failed"] or not sampled["copied"]:
        failures.append("the core's samples are not well")
    for thread in workers + others[:1]:
        thread.join(STANDSTILL_S)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            os._exit(3)
    quantiles = statistics.quantiles(stops, n=100) if len(stops) > 1 else [0] * 99
    print(  # noqa: T201 - what it is run for
        json.dumps(
            {
                "captured": captured,
                "sampled": sampled,
                "samples_per_second": round(sampled["samples"] / elapsed, 1),
                "progress": progress,
                "failures": failures,
                "stopped_us": {"median": quantiles[49] / 1000, "p99": quantiles[98] / 1000},
            }
        )
    )
    folder.cleanup()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 180.0))
