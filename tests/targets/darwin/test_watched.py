"""A process of macOS that is polled, on fakes of libproc and of the kernel."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from errno import EPERM, ESRCH
from itertools import count
from pathlib import Path
from struct import pack, pack_into

import pytest

from machtrace.errors import TargetAccessError, TargetGoneError, ThreadGoneError
from machtrace.formats.macho.thread_state import (
    ARM_THREAD_STATE64,
    X86_THREAD_STATE64,
    thread_command,
)
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import Verdict, VerdictCertainty, WatchIncident
from machtrace.targets.darwin import libproc
from machtrace.targets.darwin.watched import WatchedTask
from machtrace.watching import target as target_module
from machtrace.watching.thresholds import WatchOptions
from machtrace.watching.watcher import Watcher
from tests.support.stand_ins.darwin_task import SnapshotTask
from tests.support.writers.macho_core import loaded_dyld
from tests.support.writers.processes import SyntheticProcess, synthetic_process
from tests.targets.darwin.test_task import DYLD_AT, PID

RUNNING, STOPPED, WAITING, UNINTERRUPTIBLE = 1, 2, 3, 4
RUNS, IS_STOPPED, ZOMBIE, TRACED = 2, 4, 5, 2
TIMEBASE = 125, 3
"""The fraction of Apple silicon."""


@dataclass
class FakeLibproc(libproc.Libproc):
    """libproc of a Mac on which a snapshot's process runs."""

    task: SnapshotTask
    timebase: tuple[int, int] = TIMEBASE
    states: dict[int, int] = field(default_factory=dict)
    """``TH_STATE_…`` by thread, if it does not wait."""
    micros: dict[int, int] = field(default_factory=dict)
    """Processor time by thread."""
    status: int = RUNS
    flags: int = 0
    footprint: int = 5 << 20
    gone: set[int] = field(default_factory=set)
    is_denied: bool = False
    reads: int = 0
    """Reads of registers."""
    wakes_at_reads: bool = False
    open_ports: set[int] = field(default_factory=set)

    def pid_info(self, pid: int, flavor: int, argument: int, size: int, /) -> bytes:
        """See ``Libproc``."""
        if pid != PID or self.status < 0:
            raise OSError(ESRCH, "")
        if flavor == libproc.PIDT_SHORTBSDINFO:
            return pack("<4I16s8I", pid, 77, pid, self.status, b"app", self.flags, *[501] * 7)
        if self.is_denied:
            raise OSError(EPERM, "")
        ids = [thread.info.id for thread in self.task.snapshot.threads]
        if flavor == libproc.PIDLISTTHREADS:
            return pack(f"<{len(ids)}Q", *ids)
        assert flavor in (libproc.PIDTHREADINFO, libproc.PIDTHREADID64INFO)
        if argument not in ids or argument in self.gone:
            raise OSError(ESRCH, "")
        data = bytearray(libproc.THREAD_INFO_SIZE)
        used = 1000 * self.micros.get(argument, 0)
        pack_into("<QQ8i", data, 0, used, 0, 0, 0, self.states.get(argument, WAITING), *[0] * 5)
        data[48:54] = b"worker"
        assert size >= len(data)
        return bytes(data)

    def usage(self, pid: int, /) -> bytes:
        """See ``Libproc``."""
        if pid != PID or self.status < 0:
            raise OSError(ESRCH, "")
        data = bytearray(range(16)) + bytearray(libproc.RUSAGE_SIZE - 16)
        values = {"user_time": 2400, "system_time": 2400, "phys_footprint": self.footprint}
        values |= {"proc_start_abstime": 24, "lifetime_max_phys_footprint": 9, "resident_size": 8}
        for name, value in values.items():
            pack_into("<Q", data, libproc.USAGE_FIELDS[name], value)
        return bytes(data)

    def thread_ports(self, task: int, /) -> dict[int, int]:
        """See ``Libproc``."""
        assert task
        ports = {thread.info.id: thread.info.index for thread in self.task.snapshot.threads}
        assert not self.open_ports
        self.open_ports = {*ports.values()}
        return ports

    def release(self, port: int, /) -> None:
        """See ``Libproc``."""
        self.open_ports.remove(port)

    def registers(self, port: int, flavor: int, size: int, /) -> bytes:
        """See ``Libproc``."""
        assert port in self.open_ports
        assert (flavor, size) in ((ARM_THREAD_STATE64, 272), (X86_THREAD_STATE64, 168))
        (thread,) = (one for one in self.task.snapshot.threads if one.info.index == port)
        self.reads += 1
        if self.wakes_at_reads:
            self.micros[thread.info.id] = self.micros.get(thread.info.id, 0) + 5
        return bytes(thread_command(thread.registers)[16 : 16 + size])


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def process(request: pytest.FixtureRequest) -> SyntheticProcess:
    return synthetic_process(request.param, threads=3, images=3, depth=6)


@pytest.fixture
def mac(process: SyntheticProcess) -> FakeLibproc:
    snapshot = process.snapshot
    listed = [(image.load_address, image.path) for image in snapshot.images]
    return FakeLibproc(SnapshotTask(snapshot, loaded_dyld(DYLD_AT, listed, snapshot.process.arch)))


def opened(mac: FakeLibproc) -> WatchedTask:
    return WatchedTask(PID, extension=mac.task, libproc=mac)


def test_a_waiting_thread_is_polled_with_its_stack_pointer_and_address(mac: FakeLibproc) -> None:
    main = mac.task.snapshot.threads[0]
    with opened(mac) as target:
        first = target.poll_thread(main.info.id, with_status=False)
        second = target.poll_thread(main.info.id, with_status=True)
    assert first.call is not None
    assert (first.call.sp, first.call.pc) == (main.registers.sp, main.registers.pc)
    assert second.call == first.call
    assert (second.is_running, second.state, second.tracer) == (False, "S", 0)
    assert mac.reads == 1  # it did not run, so it is still there
    assert not mac.open_ports
    assert not any(call.startswith("copy") for call in mac.task.calls)


def test_a_thread_that_ran_while_it_was_read_has_no_wait(mac: FakeLibproc) -> None:
    mac.wakes_at_reads = True
    with opened(mac) as target:
        thread = target.thread_ids()[0]
        assert target.poll_thread(thread, with_status=False).call is None
        copy, _ = target.copy_waiting([thread])
    assert not copy.threads


def test_a_running_thread_is_not_read(mac: FakeLibproc) -> None:
    with opened(mac) as target:
        thread = target.thread_ids()[0]
        mac.states[thread], mac.micros[thread] = RUNNING, 1500
        poll = target.poll_thread(thread, with_status=True)
    assert (poll.is_running, poll.call, poll.run_ns, poll.state) == (True, None, 1_500_000, "R")
    assert mac.reads == 0


def test_stops_and_tracers_are_those_of_the_process(mac: FakeLibproc) -> None:
    with opened(mac) as target:
        thread = target.thread_ids()[0]
        mac.status = IS_STOPPED
        assert target.poll_thread(thread, with_status=True).state == "T"
        mac.flags = TRACED
        poll = target.poll_thread(thread, with_status=True)
    assert (poll.state, poll.tracer) == ("t", 77)


def test_a_waiting_thread_is_copied_without_a_stop(
    mac: FakeLibproc, process: SyntheticProcess
) -> None:
    with opened(mac) as target:
        thread = target.thread_ids()[1]
        copy, functions = target.copy_waiting([thread])
    (copied,) = copy.threads
    original = next(one for one in process.snapshot.threads if one.info.id == thread)
    assert copied.registers.pc == original.registers.pc
    sp = original.registers.sp or 0
    end = original.stack.start + len(original.stack.data)
    assert copied.stack.data[-(end - sp) :] == original.stack.data[-(end - sp) :]
    assert not functions
    assert not any(call.startswith("copy") for call in mac.task.calls)


def test_times_are_converted_by_the_timebase(mac: FakeLibproc) -> None:
    with opened(mac) as target:
        polls = target.process_polls()
        poll = polls.poll(with_threads=True)
        assert (poll.cpu_ns, poll.resident) == (200_000, 5 << 20)
        assert target.started_ns() == 1000
        assert target.program_start() == bytes(range(16))
        assert polls.memory_details() == {"resident_bytes": 8, "most_footprint_bytes": 9}
        assert polls.oom_kills() is None
        assert [*(poll.threads or ())] == [*target.thread_ids()]


def test_exits_are_distinguished(mac: FakeLibproc) -> None:
    with opened(mac) as target:
        thread = target.thread_ids()[1]
        mac.gone = {thread}
        with pytest.raises(ThreadGoneError):
            target.poll_thread(thread, with_status=False)
        mac.status = ZOMBIE
        with pytest.raises(TargetGoneError):
            target.poll_thread(thread, with_status=False)
        mac.status = -1
        with pytest.raises(TargetGoneError):
            target.process_polls().poll(with_threads=False)


def test_without_a_task_port_it_is_only_polled(mac: FakeLibproc) -> None:
    mac.task.failing = {"task_read_for_pid": EPERM, "task_for_pid": 5}
    with opened(mac) as target:
        main, *_ = target.thread_ids()
        assert target.thread_info(main).is_main
        assert target.poll_thread(main, with_status=True).is_running is None
        mac.states[main] = RUNNING
        assert target.poll_thread(main, with_status=True).is_running
        assert any("stacks cannot be captured" in sentence for sentence in target.missing)
        with pytest.raises(TargetAccessError):
            target.copy_stopped([main])


def test_another_users_process_is_refused(mac: FakeLibproc) -> None:
    mac.task.failing = {"task_read_for_pid": EPERM, "task_for_pid": 5}
    mac.is_denied = True
    with pytest.raises(TargetAccessError, match="hidden"):
        opened(mac)


@pytest.fixture
def on_mac(mac: FakeLibproc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine a Mac with that process."""
    monkeypatch.setattr(target_module, "this_system", lambda: target_module.System.DARWIN)
    monkeypatch.setattr("machtrace.targets.darwin.watched.Libproc", lambda: mac)
    monkeypatch.setattr("machtrace.targets.darwin.task.task_extension", lambda: mac.task)


@pytest.mark.usefixtures("on_mac")
def test_a_busy_thread_is_an_incident_with_its_stacks(mac: FakeLibproc) -> None:
    """It is idle first; then it runs as long as the clock does."""
    seen: list[WatchIncident] = []
    options = WatchOptions(hang_ns=100_000_000, launch_grace_ns=0, lines=False)
    with Watcher(PID, options, seen.append) as watcher:
        main = min(thread.info.id for thread in mac.task.snapshot.threads)
        mac.states[main] = RUNNING
        began = time.monotonic_ns()

        def run() -> None:
            mac.micros[main] = (time.monotonic_ns() - began) // 1000

        watcher.run(20_000_000_000, should_stop=lambda: bool(seen), on_tick=run)
        missing = watcher.missing
    assert seen[0].verdict is not None
    assert seen[0].thread.id == main
    assert any("crashes" in sentence for sentence in missing)


@pytest.mark.usefixtures("on_mac")
def test_a_wait_that_is_not_its_loops_is_an_incident_without_a_stop(mac: FakeLibproc) -> None:
    """It leaves its loop's wait for another one, again and again; then it stays there."""
    snapshot = mac.task.snapshot
    first = snapshot.threads[0]
    main = first.info.id
    values = [*first.registers.values]
    values[snapshot.process.arch.registers.sp] -= 0x40  # type: ignore[operator]  # it is known
    pc = snapshot.threads[1].registers.pc
    registers = replace(first.registers, pc=pc, values=tuple(values))
    other = replace(first, registers=registers)
    ticks = count(1)

    def tick() -> None:
        tick_number = next(ticks)
        if tick_number <= 20:
            main_thread = first if tick_number % 4 else other
            threads = (main_thread, *snapshot.threads[1:])
            mac.task.snapshot = replace(snapshot, threads=threads)
            mac.micros[main] = 50 * tick_number

    seen: list[WatchIncident] = []
    options = WatchOptions(hang_ns=100_000_000, launch_grace_ns=0, lines=False)
    with Watcher(PID, options, seen.append) as watcher:
        watcher.run(20_000_000_000, should_stop=lambda: bool(seen), on_tick=tick)
    assert (seen[0].verdict, seen[0].certainty) == (Verdict.BLOCKED, VerdictCertainty.LIKELY)
    assert seen[0].stacks[0].stack.frames[0].address.address == pc
    assert watcher.cost.stops == 0


HEADERS = """
#include <mach/mach.h>
#include <stddef.h>
#include <sys/proc_info.h>
#include <sys/proc.h>
#include <sys/resource.h>
#define SAME(a, b) _Static_assert((a) == (b), #a)
"""


@pytest.mark.peer
@pytest.mark.parametrize("arch", ["aarch64", "x86_64"])
def test_offsets_and_numbers_are_those_of_apples_headers(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="Apple's headers come with ziglang")
    from tests.support.compilers.darwin import header_options

    threads = {"pth_user_time": 0, "pth_system_time": 8, "pth_run_state": 24, "pth_name": 48}
    process = {"pbsi_ppid": 4, "pbsi_status": 12, "pbsi_comm": 16, "pbsi_flags": 32}
    names = {"PROC_PIDTHREADINFO": libproc.PIDTHREADINFO}
    names |= {"PROC_PIDLISTTHREADS": libproc.PIDLISTTHREADS, "RUSAGE_INFO_V4": 4}
    names |= {"PROC_PIDT_SHORTBSDINFO": libproc.PIDT_SHORTBSDINFO, "PROC_FLAG_TRACED": TRACED}
    names |= {"PROC_PIDTHREADID64INFO": libproc.PIDTHREADID64INFO, "SSTOP": 4, "SZOMB": 5}
    names |= {"TH_STATE_RUNNING": RUNNING, "TH_STATE_STOPPED": STOPPED}
    names |= {"TH_STATE_WAITING": WAITING, "TH_STATE_UNINTERRUPTIBLE": UNINTERRUPTIBLE}
    names |= {"THREAD_IDENTIFIER_INFO": 4, "THREAD_IDENTIFIER_INFO_COUNT": 6}
    names |= {"sizeof(struct proc_threadinfo)": libproc.THREAD_INFO_SIZE}
    names |= {"sizeof(struct proc_bsdshortinfo)": libproc.SHORT_INFO_SIZE}
    names |= {"sizeof(struct rusage_info_v4)": libproc.RUSAGE_SIZE}
    names |= {f"offsetof(struct proc_threadinfo, {name})": at for name, at in threads.items()}
    names |= {f"offsetof(struct proc_bsdshortinfo, {name})": at for name, at in process.items()}
    names |= {
        f"offsetof(struct rusage_info_v4, ri_{name})": at
        for name, at in libproc.USAGE_FIELDS.items()
    }
    state = "ARM_THREAD_STATE64" if arch == "aarch64" else "x86_THREAD_STATE64"
    names |= {state: ARM_THREAD_STATE64 if arch == "aarch64" else X86_THREAD_STATE64}
    names |= {f"4 * {state}_COUNT": 272 if arch == "aarch64" else 168}
    source = tmp_path / "layout.c"
    checks = "".join(f"SAME({name}, {value});\n" for name, value in names.items())
    source.write_text(HEADERS + checks)
    command = [sys.executable, "-m", "ziglang", "clang", "-target", f"{arch}-apple-macos13.0"]
    done = subprocess.run(
        [*command, *header_options(), "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_watching_needs_no_extension_and_no_clock_of_linux() -> None:
    """Its modules are imported where ``_ptrace`` and ``CLOCK_BOOTTIME`` do not exist."""
    script = (
        "import sys, time, signal, os\n"
        "sys.modules['machtrace._native._ptrace'] = None\n"
        "del time.CLOCK_BOOTTIME, signal.sigtimedwait, os.eventfd\n"
        "import machtrace.cli.watch, machtrace.watching.api\n"
        "import machtrace.targets.gdbremote.watched, machtrace.targets.frida.watched\n"
        "import machtrace.targets.ios.target, machtrace.targets.darwin.watched\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
