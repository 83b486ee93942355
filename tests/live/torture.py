"""Capture all threads of a process under every kind of concurrent load.

``torture.py --minutes 5 --hz 200 --capturers 3`` starts ``programs/torture_process.py``, whose
threads do everything that makes stopping a thread dangerous: malloc, the loader's locks, fork and
exec, exceptions of C++ and of Python, contention for the interpreter's lock, deep recursion,
alternate signal stacks, blocked signals, short-lived threads, hand-offs by condition variables,
semaphores, futexes, epoll and pipes. It captures itself and sends the captures through pipes; they
are unwound and checked in this process, so that no check waits for that process' locks. With
``--external`` it is also captured from this process, by ptrace. A runnable thread can be copied
only when it is scheduled: without ``--pace`` the workers use all processors all the time, and that
bounds the rate. ``--sanitize address,undefined`` builds the extensions with these sanitizers.

The run fails if a counter of the process stops (and names it), if the process ends or a worker
detects an error, and if a stack is not well formed: the stack pointer is in the copied memory, the
walk reaches a root, that root is a function in which threads begin, every address is in an image,
and captures are in order. The last line is JSON: all counts.
"""

from __future__ import annotations

import argparse
import collections
import json
import mmap
import os
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import machtrace
from machtrace.model.address import Avma
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import StopReason
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.targets.inprocess.records import RecordReader
from machtrace.targets.inprocess.series import SnapshotMaker
from machtrace.targets.linux.core_facts import FactsGatherer
from machtrace.targets.linux.identity import identify, read_mappings
from machtrace.targets.linux.memory import ProcessMemory
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.unwinder.stack_columns import STOPS
from machtrace.unwinder.unwinder import Unwinder

HERE = Path(__file__).parent
SOURCES = Path(machtrace.__file__).parent.parent
STANDSTILL_S = 60
ROOTS = {"_start", "__clone3", "clone3", "__clone", "clone", "_dl_start_user", "__restore_rt"}
KEPT = 5
"""At most this number of faulty snapshots is saved."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the library of native workers, and the one that is loaded and unloaded."""
    library, plugin = folder / "torture_library.so", folder / "torture_plugin.so"
    for compiler, flags, source, output in (
        ("c++", ["-std=c++17", "-O1"], "torture_library.cc", library),
        ("cc", ["-std=gnu11", "-O1"], "torture_plugin.c", plugin),
    ):
        command = [compiler, *flags, "-g", "-fPIC", "-shared", "-pthread"]
        command += [str(HERE / "programs" / source), "-o", str(output), "-ldl"]
        subprocess.run(command, check=True)
    return library, plugin


def sanitized(folder: Path, kinds: str) -> dict[str, str]:
    """Build the extensions with sanitizers; return the environment for processes with them."""
    tools = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=f"{tools}:{os.environ['PATH']}") or "cmake"
    shutil.copytree(
        SOURCES / "machtrace",
        folder / "src/machtrace",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    flags = f"-fsanitize={kinds} -fno-sanitize-recover=all -g -O1 -fno-omit-frame-pointer"
    configure = [cmake, "-S", str(SOURCES.parent), "-B", str(folder / "build"), "-G", "Ninja"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Debug"]
    configure += [f"-DCMAKE_C_FLAGS={flags}"]
    ninja = shutil.which("ninja", path=f"{tools}:{os.environ['PATH']}")
    configure += [f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    for command in (
        configure,
        [cmake, "--build", str(folder / "build")],
        [cmake, "--install", str(folder / "build"), "--prefix", str(folder / "src")],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    runtimes = [] if "thread" in kinds else ["libstdc++.so"]
    for kind in kinds.split(","):
        runtimes.insert(
            0, {"address": "libasan.so", "undefined": "libubsan.so"}.get(kind, "libtsan.so")
        )
    paths = [_library(name) for name in sorted(runtimes)]
    return {
        "PYTHONPATH": str(folder / "src"),
        "LD_PRELOAD": ":".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
    }


def _library(name: str) -> str:
    command = ["cc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Checker:
    """Unwinds captures and counts errors."""

    def __init__(self, keep: Path | None) -> None:
        self.keep = keep
        self.unwinder = Unwinder()
        self.names = Symbolicator(lines=False)
        self.counts: collections.Counter[str] = collections.Counter()
        self.missing: collections.Counter[str] = collections.Counter()
        self.stops: collections.Counter[str] = collections.Counter()
        self.roots: dict[int, str] = {}
        self.wrong: collections.Counter[str] = collections.Counter()
        self.stopped_ns: list[int] = []
        self.taken_ns: list[int] = []

    def check(self, snapshot: Snapshot, *, images_changed: bool = False) -> None:
        """Check one capture of all threads.

        Two kinds of stacks are counted separately. If images changed during the capture, a thread
        may have been in one that was loaded neither before nor after, or that another has replaced.
        And while libgcc installs the frame that catches an exception, it overwrites the frame's
        saved registers with the new ones: for some hundred nanoseconds the stack has no callers.
        """
        self.counts["captures"] += 1
        self.counts["threads"] += len(snapshot.threads)
        self._check_copies(snapshot)
        columns = self.unwinder.columns([snapshot], limit=4096)
        unknown = {
            address
            for address in set(columns.addresses.tolist())
            if snapshot.images.find(Avma(address)) is None
        }
        for number, reason in enumerate(columns.stop_reasons.tolist()):
            self.stops[STOPS[reason].value] += 1
            begin, end = int(columns.starts[number]), int(columns.starts[number + 1])
            is_whole = STOPS[reason] is StopReason.ROOT
            frames = columns.addresses[begin:end].tolist()
            root = self._name(frames[-1], snapshot)
            is_known = is_whole and root in ROOTS and unknown.isdisjoint(frames)
            if images_changed and not is_known:
                self.counts["in an image that came and went"] += 1
                continue
            if not is_whole and self._is_in_libgcc(frames[0], snapshot):
                self.counts["while an exception was caught"] += 1
                continue
            if not is_whole:
                self._is_wrong(f"a walk stopped: {STOPS[reason].value}", snapshot)
                continue
            self.counts["frames"] += end - begin
            if root not in ROOTS:
                self._is_wrong(f"a stack ends in {root}", snapshot)
        if unknown and not images_changed:
            self._is_wrong("an address is in no image", snapshot)

    def _check_copies(self, snapshot: Snapshot) -> None:
        for problem in snapshot.problems:
            reason = " ".join(word for word in str(problem.error).split() if not word.isdecimal())
            self.missing[reason] += 1
        for thread in snapshot.threads:
            sp = thread.registers.sp
            if len(self.stopped_ns) < 1 << 20:
                self.stopped_ns.append(thread.stopped_for_ns or 0)
            if sp is None or not thread.stack.start <= sp < thread.stack.end:
                self._is_wrong("the stack pointer is not in the stack", snapshot)

    def _is_in_libgcc(self, address: int, snapshot: Snapshot) -> bool:
        image = snapshot.images.find(Avma(address))
        return image is not None and image.name.startswith("libgcc_s")

    def _name(self, address: int, snapshot: Snapshot) -> str:
        """Return the name of the function that a complete stack begins in."""
        name = self.roots.get(address)
        if name is None or name not in ROOTS:
            from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust

            at = FrameAddress(Avma(address), FrameTrust.CFI, AddressKind.RETURN_ADDRESS)
            symbol = self.names.frame(at, snapshot).symbol
            name = self.roots[address] = symbol.name if symbol else "no function"
        return name

    def _is_wrong(self, defect: str, snapshot: Snapshot) -> None:
        if self.keep is not None and sum(self.wrong.values()) < KEPT:
            path = self.keep / f"{sum(self.wrong.values())}.core"
            machtrace.save_snapshot(snapshot, path)
            print(f"{defect}: {path}", file=sys.stderr)  # noqa: T201
        self.wrong[defect] += 1

    def summary(self) -> dict[str, Any]:
        """Return all counters, and the errors."""
        quantiles = (
            statistics.quantiles(self.stopped_ns, n=100) if self.stopped_ns[1:] else [0] * 99
        )
        return {
            **self.counts,
            "missing": self.missing,
            "stops": self.stops,
            "roots": collections.Counter(self.roots.values()),
            "wrong": self.wrong,
            "stopped_us": {"median": quantiles[49] / 1000, "p99": quantiles[98] / 1000},
        }


class Stream:
    """The captures of one series of the process."""

    def __init__(self, descriptor: int, maker: SnapshotMaker, checker: Checker) -> None:
        self.descriptor = descriptor
        self.checker = checker
        self._maker = maker
        self._reader = RecordReader()
        self._buffer = bytearray()
        self._tick = -1

    def receive(self) -> bool:
        """Check what has arrived; return false at the end of the stream."""
        part = os.read(self.descriptor, 1 << 20)
        self._buffer += part
        while len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[:8], "little")
            if len(self._buffer) < 8 + size:
                break
            data = bytes(self._buffer[8 : 8 + size])
            del self._buffer[: 8 + size]
            for recorded in self._reader.read(data):
                capture = self._maker.make(recorded)
                if capture.tick <= self._tick or capture.ended_ns < capture.began_ns:
                    self.checker.wrong["a capture is out of turn"] += 1
                self._tick = capture.tick
                self.checker.taken_ns.append(capture.ended_ns - capture.began_ns)
                self.checker.check(capture.snapshot, images_changed=capture.images_changed)
        return bool(part)


class Watch:
    """Names a counter that stops."""

    def __init__(self, counters: mmap.mmap, names: list[str]) -> None:
        self._counters = counters
        self.names = names
        self._moved = dict.fromkeys(names, time.monotonic())
        self._last: dict[str, int] = {}

    def now(self) -> dict[str, int]:
        """Return each counter's value."""
        values = struct.unpack_from(f"={len(self.names)}Q", self._counters)
        return dict(zip(self.names, values, strict=True))

    def stopped(self) -> list[str]:
        """Return the counters that have not advanced for too long."""
        values, now = self.now(), time.monotonic()
        for name, value in values.items():
            if self._last.get(name) != value:
                self._moved[name] = now
        self._last = values
        return [name for name in self.names if now - self._moved[name] > STANDSTILL_S]


def external(pid: int, hz: float, until: float, checker: Checker, watch: Watch) -> list[str]:
    """Capture the process by ptrace, at most at that rate."""
    with LinuxProcessTarget(pid) as target:
        due = time.monotonic()
        while time.monotonic() < until or not checker.counts["captures"]:
            began = time.monotonic_ns()
            snapshot = target.snapshot(stack_limit=1 << 20)
            checker.taken_ns.append(time.monotonic_ns() - began)
            checker.check(snapshot, images_changed=True)  # they are all the time, and it takes long
            still = watch.stopped()
            if still:
                return still
            due = max(due + 1 / hz, time.monotonic() - 1 / hz)
            time.sleep(max(0, due - time.monotonic()))
    return []


def receive(streams: list[Stream], until: float, watch: Watch | None) -> list[str]:
    """Check captures and counters until that time; without a watch, until the process ends."""
    while time.monotonic() < until and streams:
        ready, _, _ = select.select([stream.descriptor for stream in streams], [], [], 1)
        streams[:] = [
            stream for stream in streams if stream.descriptor not in ready or stream.receive()
        ]
        still = watch.stopped() if watch is not None else []
        if still:
            return still
    return ["the end"] if streams and watch is None else []


def report_hang(pid: int, still: list[str]) -> None:
    """Print where each thread and each child waits, and all stacks with Python functions."""
    print("stopped counters:", *still, sep="\n  ", file=sys.stderr)  # noqa: T201
    children: list[str] = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        try:
            where = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
            children += (task / "children").read_text().split()
        except OSError:
            continue  # it has ended
        print(task.name, *where, file=sys.stderr)  # noqa: T201
    debugger = shutil.which("gdb")
    for process in [*children, str(pid)] if debugger else ():
        command = [str(debugger), "-batch", "-nx", "-p", process, "-ex", "thread apply all bt 20"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(process, done.stdout, sep="\n", file=sys.stderr)  # noqa: T201
    os.kill(pid, signal.SIGABRT)  # which faulthandler handles


def run(options: argparse.Namespace, folder: Path) -> int:
    """Run the process and all checks; return the counts."""
    library, plugin = build(folder)
    environment = {"PYTHONPATH": str(SOURCES)}
    if options.sanitize:
        environment = sanitized(folder, options.sanitize)
    progress = folder / "progress"
    progress.write_bytes(bytes(4096))
    pipes = [os.pipe() for _ in range(options.capturers)]
    settings = {
        "library": str(library),
        "plugin": str(plugin),
        "progress": str(progress),
        "hz": options.hz,
        "pipes": [writing for _, writing in pipes],
        "snapshots": not options.no_snapshots,
        "sanitized": bool(options.sanitize),
        "pace": options.pace,
    }
    process = subprocess.Popen(
        [sys.executable, str(HERE / "programs/torture_process.py"), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[writing for _, writing in pipes],
        env={**os.environ, **environment},
        text=True,
    )
    for _, writing in pipes:
        os.close(writing)
    os.nice(10)  # checks are deferred: they must not keep workers from their turns to be captured
    try:
        return observe(process, options, progress, [reading for reading, _ in pipes])
    finally:
        process.kill()
        process.wait()


def observe(
    process: subprocess.Popen[str], options: argparse.Namespace, progress: Path, pipes: list[int]
) -> int:
    """Check the captures and counters of the process until it is time to end it."""
    assert process.stdin is not None
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    with progress.open("r+b") as file:
        watch = Watch(mmap.mmap(file.fileno(), 0), first["names"])
    began, busy, used = time.monotonic(), busy_s(), sum(os.times()[:4])
    until = began + options.seconds
    with ProcessDirectory(process.pid) as directory:
        memory = ProcessMemory(directory.open_live("mem"))
        about = identify(directory)
        gathered = FactsGatherer(directory, about.arch).gather(read_mappings(directory), memory)

        def stream(descriptor: int) -> Stream:
            maker = SnapshotMaker(directory, about, memory, gathered, lambda _: "")
            return Stream(descriptor, maker, Checker(options.keep))

        streams = [stream(descriptor) for descriptor in pipes]
        checkers = [source.checker for source in streams]
        if options.external:
            checkers.append(Checker(options.keep))
            still = external(process.pid, options.hz, until, checkers[-1], watch)
        else:
            still = receive(streams, until, watch)
            if not streams and not options.capturers:
                time.sleep(max(0, until - time.monotonic()))
        if still:
            report_hang(process.pid, still)
        process.stdin.close()
        still = still or receive(streams, time.monotonic() + 4 * STANDSTILL_S, None)
    elapsed, busy = time.monotonic() - began, busy_s() - busy
    rest = process.stdout.read()
    status = process.wait()
    used = sum(os.times()[:4]) - used  # of this process, and of the other with all of its children
    ended = json.loads(rest.splitlines()[-1]) if rest.strip() else {}
    wrong = sum((checker.wrong for checker in checkers), collections.Counter())
    failed = bool(still or status or wrong or ended.get("failures"))
    counts = {
        "workers": first["workers"],
        "seconds": round(elapsed, 1),
        "load": os.getloadavg(),
        "processors": os.cpu_count(),
        "processors_used": {"here": round(used / elapsed, 2), "in_all": round(busy / elapsed, 2)},
        "status": status,
        "stopped": still,
        "progress": watch.now(),
        **ended,
        "checked": [{**source.summary(), **spent(source)} for source in checkers],
    }
    for source in counts.get("series", []):
        if source.get("seconds"):
            source["captures_per_second"] = round(source["captures"] / source["seconds"], 1)
    print(json.dumps(counts))  # noqa: T201
    return 1 if failed or not all(watch.now().values()) else 0


def busy_s() -> float:
    """Return the busy seconds of all processors since the machine started (proc(5))."""
    first = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    ticks = [int(word) for word in first]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def spent(checker: Checker) -> dict[str, float]:
    """Return the durations of captures of all threads in milliseconds."""
    if len(checker.taken_ns) < 2:
        return {}
    quantiles = statistics.quantiles(checker.taken_ns, n=100)
    return {"capture_ms_median": quantiles[49] / 1e6, "capture_ms_p99": quantiles[98] / 1e6}


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description="Capture a process that does everything at once.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=3)
    length.add_argument("--seconds", type=float)
    parser.add_argument("--hz", type=float, default=200)
    parser.add_argument(
        "--pace", type=float, default=0, metavar="S", help="seconds that workers rest between steps"
    )
    parser.add_argument("--capturers", type=int, default=1, help="threads that capture at the rate")
    parser.add_argument("--no-snapshots", action="store_true", help="no single ones by Python too")
    parser.add_argument("--external", action="store_true", help="capture from outside, by ptrace")
    parser.add_argument(
        "--sanitize", default="", metavar="KINDS", help="address,undefined or thread"
    )
    parser.add_argument("--keep", type=Path, help="a folder for snapshots of what went wrong")
    options = parser.parse_args()
    options.seconds = options.seconds or options.minutes * 60
    if sysconfig.get_platform().split("-")[0] != "linux":
        parser.error("it captures by signals of Linux")
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
