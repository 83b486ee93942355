"""Copies of threads equal the values that gdb and the kernel show."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from machtrace.errors import TargetGoneError, ThreadGoneError
from machtrace.formats.elf.core.registers import layout_of
from machtrace.model.arch import Arch
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.shared.thread_copy import RED_ZONE

NAMES = ["condition", "read", "spin", "recursion", "handler", "other stack", "sort"]
PATIENCE_NS = 5_000_000_000


def statuses(pid: int) -> list[str]:
    """Return each thread's state and the remaining fields of ``stat``."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "stat").read_text().rpartition(") ")[2] for task in tasks]


@pytest.fixture
def threads(build, start, wait_blocked):
    """The C program with one thread of every kind, each in the function it is named after."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    return process


def test_threads_are_listed_main_first_and_by_name(threads):
    """The others follow in the order in which they were started."""
    with LinuxProcessTarget(threads.pid) as target:
        listed = target.threads()
    assert [thread.name for thread in listed] == ["threads", *NAMES]
    assert [thread.index for thread in listed] == list(range(1, len(listed) + 1))
    assert [thread.is_main for thread in listed] == [True] + [False] * len(NAMES)
    assert listed[0].id == threads.pid


def test_the_process_has_its_id_path_and_platform(threads, build):
    with LinuxProcessTarget(threads.pid) as target:
        process = target.process
    assert process.pid == threads.pid
    assert process.path == str(build("threads"))
    assert process.arch.value == {"aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def test_registers_equal_those_that_gdb_reads(threads, copier, gdb, wait_blocked):
    """Every register with a DWARF number, for every blocked thread."""
    with LinuxProcessTarget(threads.pid, copier=copier) as target:
        snapshot = target.snapshot()
    wait_blocked(threads.pid, "spin")  # until then they are about to restart their calls
    truth = {thread["id"]: thread["registers"] for thread in gdb(threads.pid)["threads"]}
    assert {thread.info.id for thread in snapshot.threads} == set(truth)
    assert not snapshot.problems
    for thread in snapshot.threads:
        if thread.info.name == "spin":
            continue
        width = 8 * thread.registers.arch.pointer_size
        expected = {name: value % (1 << width) for name, value in truth[thread.info.id].items()}
        numbers = thread.registers.arch.registers
        named = {
            name: value
            for name, value in zip(numbers.names, thread.registers.values, strict=True)
            if value is not None and name in expected
        }
        assert named == {name: value for name, value in expected.items() if name in named}
        assert len(named) >= 15
        assert thread.registers.pc == expected.get("rip", expected.get("pc"))


def test_stack_is_the_memory_above_the_stack_pointer(threads, copier):
    """From the red zone to the thread's control block, or to the end of the mapping without one."""
    with LinuxProcessTarget(threads.pid, copier=copier) as target:
        snapshot = target.snapshot()
    maps = Path(f"/proc/{threads.pid}/maps").read_text().splitlines()
    ranges = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in maps]
    with Path(f"/proc/{threads.pid}/mem").open("rb", buffering=0) as memory:
        for thread in snapshot.threads:
            assert thread.registers.sp is not None
            start, end = next(r for r in ranges if r[0] <= thread.registers.sp < r[1])
            assert thread.stack.start == max(start, thread.registers.sp - RED_ZONE)
            layout = layout_of(len(thread.native_registers))
            words = layout.words.unpack(thread.native_registers)
            block = end if layout.block is None else words[layout.block]
            assert thread.stack.end == (block if start < block < end else end)
            if thread.info.name in {"condition", "read", "recursion", "sort"}:
                assert layout.block is None or thread.stack.end == block
            if thread.info.name != "spin":
                memory.seek(thread.stack.start)
                now = memory.read(len(thread.stack.data))
                # The C library has struct rseq there; the kernel writes the CPU's number to it.
                changed = [i for i, byte in enumerate(thread.stack.data) if byte != now[i]]
                assert len(changed) <= 16, changed
                assert all(i > RED_ZONE + 1024 for i in changed)


def test_at_most_the_stack_limit_is_copied_above_the_red_zone(threads, copier):
    with LinuxProcessTarget(threads.pid, copier=copier) as target:
        snapshot = target.snapshot(stack_limit=512)
    assert {len(thread.stack.data) for thread in snapshot.threads} == {512 + RED_ZONE}


def test_only_requested_threads_are_copied(threads, copier):
    """A thread that does not exist is a problem, not an error."""
    with LinuxProcessTarget(threads.pid, copier=copier) as target:
        wanted = target.threads()[2]
        snapshot = target.snapshot([wanted.id, 2**22 + 5])
    assert [thread.info for thread in snapshot.threads] == [wanted]
    assert [problem.thread for problem in snapshot.problems] == [2**22 + 5]


def test_stop_times_are_measured(threads, copier):
    """Every thread has the time and duration of its stop; the shortest is very short."""
    shortest = {}
    with LinuxProcessTarget(threads.pid, copier=copier) as target:
        for _ in range(20):
            before = time.monotonic_ns()
            snapshot = target.snapshot()
            after = time.monotonic_ns()
            for thread in snapshot.threads:
                assert thread.taken_at_ns is not None
                assert thread.stopped_for_ns is not None
                assert 0 < thread.stopped_for_ns < after - before
                assert before < thread.taken_at_ns < after
                known = shortest.get(thread.info.id, thread.stopped_for_ns)
                shortest[thread.info.id] = min(known, thread.stopped_for_ns)
    # On a busy machine some stops last until the tracer is scheduled.
    assert len(shortest) == len(NAMES) + 1
    assert max(shortest.values()) < 500_000_000


def test_more_running_threads_than_processors_are_all_copied(build, start, copier):
    """No thread stops at once."""
    process = start(build("spinners"), "12")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        for _ in range(5):
            snapshot = target.snapshot()
            assert not snapshot.problems
            assert len(snapshot.threads) == 13
            spinning = [thread for thread in snapshot.threads if not thread.info.is_main]
            assert all(thread.stack.data for thread in spinning)
            assert len({thread.stack.start for thread in spinning}) == 12
    states = [line.split()[0] for line in statuses(process.pid)]
    assert set(states) <= {"R", "S"}


def test_threads_that_start_during_a_capture_are_copied(start, copier):
    source = """
import threading
event = threading.Event()
print("ready", flush=True)
while input():
    threads = [threading.Thread(target=event.wait) for _ in range(3)]
    [thread.start() for thread in threads]
    print(*(thread.native_id for thread in threads), flush=True)
"""
    process = start(sys.executable, "-c", source)
    started = []

    class Starting:
        """A process that starts threads before the listed ones are copied, twice."""

        def copy(self, threads, stack_ranges, *, stack_limit):
            if len(started) < 6:
                process.stdin.write("more\n")
                process.stdin.flush()
                started.extend(map(int, process.stdout.readline().split()))
            return copier.copy(threads, stack_ranges, stack_limit=stack_limit)

    with LinuxProcessTarget(process.pid, copier=Starting()) as target:
        snapshot = target.snapshot()
    assert len(started) == 6
    assert not snapshot.problems
    assert [thread.info.id for thread in snapshot.threads] == [process.pid, *started]
    assert [thread.info.index for thread in snapshot.threads] == [1, 2, 3, 4, 5, 6, 7]


@pytest.fixture
def slow_locks(monkeypatch):
    """Allow long waits: threads that start and end others wait for locks of the kernel."""
    monkeypatch.setattr("machtrace.targets.linux.capture.SLEEP_LIMIT_NS", PATIENCE_NS)


@pytest.mark.usefixtures("slow_locks")
def test_a_process_whose_threads_start_and_end_all_the_time_is_captured(build, start, copier):
    """Some of the short-lived threads are captured, too."""
    process = start(build("churn"))
    counts = []
    deadline = time.monotonic() + 60
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        # Five live on; a busy machine copies others only where it is quick enough.
        while len(counts) < 5 or (max(counts) <= 5 and time.monotonic() < deadline):
            snapshot = target.snapshot()
            ids = [thread.info.id for thread in snapshot.threads]
            assert len(ids) == len(set(ids))
            assert process.pid in ids
            assert [p for p in snapshot.problems if not isinstance(p.error, ThreadGoneError)] == []
            counts.append(len(ids))
    assert max(counts) > 5
    assert process.poll() is None


def test_threads_are_captured_after_the_main_thread_exited(build, start, copier, wait_until):
    """The kernel shows nothing of the process through the main thread then."""
    process = start(build("without_main"))
    # It is joined before it has quite exited.
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: ") Z " in stat.read_text(), "the main thread exits")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
        listed = target.threads()
    assert [thread.info for thread in snapshot.threads] == [listed[1]]
    assert [problem.thread for problem in snapshot.problems] == [process.pid]
    assert len(snapshot.threads[0].stack.data) > RED_ZONE
    assert any(image.name.startswith("libc") for image in snapshot.images)


def test_an_uninterruptible_thread_has_the_kernels_registers_and_a_problem(
    build, start, copier, wait_until
):
    process = start(build("vfork"))
    task = next(
        t for t in Path(f"/proc/{process.pid}/task").iterdir() if int(t.name) != process.pid
    )
    wait_until(lambda: ") D " in (task / "stat").read_text(), "the thread waits for its child")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
    assert [problem.thread for problem in snapshot.problems] == [int(task.name)]
    assert "uninterruptible" in str(snapshot.problems[0].error)
    waiting = snapshot.threads[1]
    assert waiting.info.id == int(task.name)
    assert waiting.stopped_for_ns is None
    image = snapshot.images.find(waiting.registers.pc)
    assert image is not None
    assert image.name.startswith("libc")
    assert waiting.stack.start <= waiting.registers.sp < waiting.stack.end
    # It is released: once its child ends, it continues undisturbed.
    process.stdin.write("x")
    process.stdin.flush()
    wait_until(lambda: not task.exists(), "the thread runs on and ends")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="runs 32-bit x86 programs")
def test_a_32_bit_process_has_32_bit_registers(build, start, copier, wait_blocked):
    flags = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie")
    process = start(build("small", *flags))
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        assert target.process.arch is Arch.I386
        snapshot = target.snapshot()
    (thread,) = snapshot.threads
    assert thread.registers.arch is Arch.I386
    wait_blocked(process.pid)
    fields = Path(f"/proc/{process.pid}/syscall").read_text().split()
    assert thread.registers.sp == int(fields[-2], 16)
    assert thread.registers.pc == int(fields[-1], 16)
    assert thread.registers.get(3) == 0x5EED  # ebx, an argument of the system call
    assert thread.stack.start <= thread.registers.sp < thread.stack.end
    assert snapshot.images.find(thread.registers.pc) is not None


def test_all_python_threads_are_captured(start, wait_blocked, copier):
    """Their ids are the native ids that CPython reports."""
    source = """
import threading
event = threading.Event()
threads = [threading.Thread(target=event.wait) for _ in range(8)]
[thread.start() for thread in threads]
print("ready", flush=True)
print(*sorted(thread.native_id for thread in threads), flush=True)
event.wait()
"""
    process = start(sys.executable, "-c", source)
    ids = [int(word) for word in process.stdout.readline().split()]
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
    assert sorted(thread.info.id for thread in snapshot.threads) == sorted([process.pid, *ids])


def test_own_child_can_still_be_waited_for(build, start, copier):
    """Capturing a child that exits leaves its exit status to its parent."""
    process = start(build("threads"))
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        assert target.snapshot().threads
    process.terminate()
    assert process.wait() == -15


def capture_until_error(target):
    while True:
        target.snapshot()


def test_the_exit_status_of_a_child_killed_during_a_capture_reaches_its_parent(
    build, start, copier
):
    program = build("churn")
    for rounds in range(3):
        process = start(program)
        begun = threading.Event()

        def kill(process=process, begun=begun):
            begun.wait()
            # Popen polls the child first, and may take a stop for its end.
            os.kill(process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with LinuxProcessTarget(process.pid, copier=copier) as target:
            for _ in range(rounds):
                target.snapshot()
            begun.set()
            with pytest.raises(TargetGoneError):
                capture_until_error(target)
        killer.join()
        assert process.wait() == -9


def test_a_red_zone_in_a_guard_page_is_not_copied(build, start, wait_blocked, copier):
    """The readable part of the stack is."""
    process = start(build("edge"))
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        (thread,) = target.snapshot().threads
    page = os.sysconf("SC_PAGE_SIZE")
    assert thread.stack.start == thread.registers.sp - 32
    assert thread.stack.start % page == 0
    assert len(thread.stack.data) == page
