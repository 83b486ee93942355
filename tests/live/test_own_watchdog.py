"""The watchdog of this process: what it sees, copies and records, whatever Python does."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import machtrace as mt
from machtrace.errors import ArgumentError, FileAccessError, FormatError, ThreadGoneError
from machtrace.model.options import NameOptions, WalkOptions
from machtrace.model.symbol import CallStack
from machtrace.pipeline.backtraces import build_capture

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")
if sys.platform != "linux":
    pytest.skip("the watchdog is for Linux", allow_module_level=True)

from machtrace.targets.inprocess.beacons import idle_wait, silence, stated_by
from machtrace.targets.inprocess.linux import SelfTarget
from machtrace.targets.inprocess.watchdog import OwnWatchdog
from machtrace.targets.inprocess.watchdog_file import (
    WatchdogFile,
    parse_watchdog_file,
    read_watchdog_file,
)
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogCause,
    WatchdogEvent,
    WatchdogPhase,
)

MS = 1_000_000
LIMIT_NS = 100 * MS


@pytest.fixture
def target() -> Iterator[SelfTarget]:
    with SelfTarget() as own:
        yield own


@pytest.fixture
def watchdog(target: SelfTarget) -> Iterator[OwnWatchdog]:
    with target.watchdog(LIMIT_NS, 10 * MS) as own:
        yield own


class Taken:
    """The records of a watchdog so far."""

    def __init__(self, watchdog: OwnWatchdog) -> None:
        self.watchdog = watchdog
        self.events: list[WatchdogEvent] = []
        self.captures: list[WatchdogCapture] = []

    def until(self, phase: WatchdogPhase, cause: WatchdogCause) -> WatchdogEvent:
        """Take records until there is such an event; for a minute at most."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            self.all()
            for event in self.events:
                if (event.phase, event.cause) == (phase, cause):
                    return event
            time.sleep(0.01)
        raise AssertionError(f"no {cause} reached {phase}: {self.events}")

    def all(self) -> Taken:
        """Take what was recorded since."""
        for item in self.watchdog.take():
            if isinstance(item, WatchdogEvent):
                self.events.append(item)
            else:
                self.captures.append(item)
        return self

    def stacks(self, event: WatchdogEvent) -> list[CallStack]:
        """Return the stacks of an incident's thread."""
        return [
            stack
            for capture in self.captures
            if capture.incident == event.incident
            for stack in named(self.watchdog, capture)
            if stack.thread.id == event.thread
        ]


def named(watchdog: OwnWatchdog, capture: WatchdogCapture) -> tuple[CallStack, ...]:
    snapshot, python = watchdog.copy_of(capture)
    walk, names = WalkOptions(scan=True), NameOptions(lines=False)
    return build_capture(snapshot, walk, names, python=python).stacks


def functions(stack: CallStack) -> list[str]:
    """Return the names of the Python functions, without those that they are defined in."""
    return [
        function.name.rpartition(".<locals>.")[2]
        for frame in stack.frames
        for function in frame.python
    ]


def symbols(stack: CallStack) -> list[str]:
    return [frame.symbol.name for frame in stack.frames if frame.symbol is not None]


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def in_thread(body: Callable[[], object]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def test_a_thread_that_is_busy_for_the_limit_is_seen_and_copied_with_its_python_functions(
    watchdog: OwnWatchdog,
) -> None:
    def body() -> None:
        watchdog.watch(threading.get_native_id())
        spin(0.4)

    in_thread(body)
    taken = Taken(watchdog)
    seen = taken.until(WatchdogPhase.SEEN, WatchdogCause.THREAD)
    assert seen.at_ns - seen.began_ns >= LIMIT_NS
    assert seen.limit_ns == LIMIT_NS
    assert any("spin" in functions(stack) for stack in taken.stacks(seen))
    assert any("_PyEval_EvalFrameDefault" in symbols(stack) for stack in taken.stacks(seen))
    assert any(capture.is_all for capture in taken.captures)
    taken.until(WatchdogPhase.ENDED, WatchdogCause.THREAD)  # the thread has exited
    assert watchdog.counts.stops > 0


def test_a_thread_that_waits_is_copied_without_a_signal(watchdog: OwnWatchdog) -> None:
    began = threading.Event()
    end = threading.Event()

    def body() -> None:
        watchdog.watch(threading.get_native_id())
        began.set()
        end.wait()

    thread = threading.Thread(target=body)
    thread.start()
    began.wait()
    taken = Taken(watchdog)
    seen = taken.until(WatchdogPhase.SEEN, WatchdogCause.THREAD)
    while not any(functions(stack) for stack in taken.all().stacks(seen)):
        time.sleep(0.01)
    end.set()
    thread.join()
    one = [capture for capture in taken.captures if not capture.is_all]
    assert all(len(row[4]) == 16 for capture in one for row in capture.recorded.threads)
    stack = next(stack for stack in taken.stacks(seen) if functions(stack))
    assert functions(stack)[:2] == ["Condition.wait", "Event.wait"]
    polls = [poll for _, one_thread, poll in watchdog.polls(seen.first_poll)]
    assert any(poll.call is not None and poll.call.number > 0 for poll in polls)


def test_an_idle_place_ends_the_suspicion_of_a_thread(watchdog: OwnWatchdog) -> None:
    thread = threading.get_native_id()
    watchdog.watch(thread)
    end = threading.Event()
    taken = Taken(watchdog)
    place = None
    until = time.monotonic() + 60
    while place is None and time.monotonic() < until:
        end.wait(0.2)
        for _, _, poll in watchdog.polls(1):
            place = poll.call.place if poll.call is not None else place
    assert place is not None
    watchdog.set_idle(thread, [place])
    while not any(event.phase is WatchdogPhase.ENDED for event in taken.all().events):
        end.wait(0.05)


def test_a_kept_interpreter_lock_is_seen_with_its_holders_native_and_python_frames(
    watchdog: OwnWatchdog,
) -> None:
    kept = ctypes.PyDLL(None)
    holder: list[int] = []

    def keep_the_lock() -> None:
        holder.append(threading.get_native_id())
        kept.usleep(400_000)

    in_thread(keep_the_lock)
    taken = Taken(watchdog)
    seen = taken.until(WatchdogPhase.SEEN, WatchdogCause.GIL)
    assert seen.thread == holder[0]
    assert seen.waiters >= 1
    assert seen.waiter == threading.main_thread().native_id
    stacks = taken.stacks(seen)
    assert all("keep_the_lock" in functions(stack) for stack in stacks)
    assert all("usleep" in symbols(stack) for stack in stacks)
    ended = taken.until(WatchdogPhase.ENDED, WatchdogCause.GIL)
    assert ended.at_ns > seen.at_ns


def test_a_loop_that_returns_to_its_wait_is_never_suspected(target: SelfTarget) -> None:
    wait = idle_wait(time.sleep)
    with target.watchdog(LIMIT_NS, 10 * MS) as watchdog:

        def body() -> None:
            thread = threading.get_native_id()
            wait(0)
            watchdog.watch(thread)
            for _ in range(20):
                wait(0.02)
            stated = stated_by(thread)
            assert stated is not None
            assert stated[0] > 0
            assert stated[1] == 21
            watchdog.unwatch(thread)

        in_thread(body)
        causes = Taken(watchdog).all().events
    assert [event for event in causes if event.cause is WatchdogCause.THREAD] == []


def test_a_task_after_an_idle_wait_is_seen_with_its_number(watchdog: OwnWatchdog) -> None:
    wait = idle_wait(lambda: None)

    def body() -> None:
        wait()
        wait()
        watchdog.watch(threading.get_native_id())
        time.sleep(0.3)
        wait()

    in_thread(body)
    seen = Taken(watchdog).until(WatchdogPhase.SEEN, WatchdogCause.THREAD)
    assert seen.key == 2
    busy = [poll for _, _, poll in watchdog.polls(1) if poll.task == 2]
    assert {poll.busy_since_ns for poll in busy} == {seen.began_ns}


def test_a_thread_that_left_its_loop_states_nothing() -> None:
    idle_wait(lambda: None)()
    thread = threading.get_native_id()
    assert stated_by(thread) is not None
    silence(thread)
    assert stated_by(thread) is None


def test_a_scope_that_is_left_too_late_is_seen_by_its_name(watchdog: OwnWatchdog) -> None:
    with mt.deadline(5, "all"), mt.deadline(0.1, "parse"), mt.deadline(60, "inner"):
        time.sleep(0.3)
    taken = Taken(watchdog)
    seen = taken.until(WatchdogPhase.SEEN, WatchdogCause.SCOPE)
    assert (seen.label, seen.limit_ns) == ("parse", 100 * MS)
    assert seen.thread == threading.get_native_id()
    taken.until(WatchdogPhase.ENDED, WatchdogCause.SCOPE)
    assert {event.label for event in taken.events if event.cause is WatchdogCause.SCOPE} == {
        "parse"
    }


def test_a_scope_that_is_left_in_time_is_not_seen(watchdog: OwnWatchdog) -> None:
    for _ in range(10):
        with mt.deadline(30, "quick"):
            time.sleep(0.02)
    events = Taken(watchdog).all().events
    assert [event for event in events if event.cause is WatchdogCause.SCOPE] == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_deadline_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ArgumentError, match="invalid deadline"):
        mt.deadline(seconds)


def test_a_scope_is_entered_once() -> None:
    scope = mt.deadline(1, "ä" * 40)
    with scope, pytest.raises(RuntimeError, match="entered already"):
        scope.__enter__()
    with scope:
        pass


def test_two_watchdogs_see_the_same(target: SelfTarget) -> None:
    with (
        target.watchdog(LIMIT_NS, 10 * MS) as short,
        target.watchdog(2 * LIMIT_NS, 20 * MS) as long,
    ):

        def body() -> None:
            for watchdog in (short, long):
                watchdog.watch(threading.get_native_id())
            spin(0.5)

        in_thread(body)
        first = Taken(short).until(WatchdogPhase.SEEN, WatchdogCause.THREAD)
        second = Taken(long).until(WatchdogPhase.SEEN, WatchdogCause.THREAD)
    assert first.thread == second.thread
    assert second.limit_ns == 2 * first.limit_ns


def test_the_child_of_a_fork_has_no_watchdog_and_its_own_beacons(target: SelfTarget) -> None:
    idle_wait(lambda: None)()
    with target.watchdog(LIMIT_NS, 10 * MS) as watchdog:
        child = os.fork()
        if child == 0:  # no other thread of this process exists here
            threads = len(list(Path("/proc/self/task").iterdir()))
            with mt.deadline(10, "child"):
                idle_wait(lambda: None)()
            own = stated_by(os.getpid()) is not None
            watchdog.close()
            os._exit(0 if threads == 1 and own else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rounds = watchdog.counts.rounds
        while watchdog.counts.rounds == rounds:
            time.sleep(0.01)


def test_a_thread_that_does_not_exist_cannot_be_watched(watchdog: OwnWatchdog) -> None:
    with pytest.raises(ThreadGoneError):
        watchdog.watch(2**22 + 7)


def test_threads_that_exit_make_room_for_others(watchdog: OwnWatchdog) -> None:
    for _ in range(100):
        threads = [
            threading.Thread(target=lambda: watchdog.watch(threading.get_native_id()))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rounds = watchdog.counts.rounds
        while watchdog.counts.rounds < rounds + 2:
            time.sleep(0.002)


# --- the record ---

HANGING = """
    import ctypes, sys, threading, time
    from machtrace.targets.inprocess.linux import SelfTarget
    target = SelfTarget()
    watchdog = target.watchdog(100_000_000, 10_000_000, record=sys.argv[1])
    watchdog.watch(threading.get_native_id())

    def hang_here():
        print("hangs", flush=True)
        HANG

    threading.Thread(target=lambda: [time.sleep(0.001) for _ in range(10**6)], daemon=True).start()
    hang_here()
"""


def is_recorded(record: WatchdogFile, cause: WatchdogCause) -> bool:
    """Return whether an incident with this cause was seen, and copied after that."""
    seen: set[int] = set()
    for item in record.items:
        if isinstance(item, WatchdogEvent):
            if (item.phase, item.cause) == (WatchdogPhase.SEEN, cause):
                seen.add(item.incident)
        elif item.incident in seen and not item.is_all:
            return True
    return False


def killed(path: Path, hang: str, cause: WatchdogCause) -> WatchdogFile:
    """Run a program that hangs, kill it once that is recorded, and read its record."""
    program = textwrap.dedent(HANGING).replace("HANG", hang)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if is_recorded(read_watchdog_file(path), cause):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    return read_watchdog_file(path)


@pytest.mark.parametrize(
    ("hang", "symbol", "cause"),
    [
        ("time.sleep(60)", "clock_nanosleep", WatchdogCause.THREAD),
        ("while True: pass", "_PyEval_EvalFrameDefault", WatchdogCause.THREAD),
        ("ctypes.PyDLL(None).usleep(60_000_000)", "usleep", WatchdogCause.GIL),
    ],
)
def test_a_record_is_readable_after_its_process_was_killed(
    hang: str, symbol: str, cause: WatchdogCause, tmp_path: Path
) -> None:
    record = killed(tmp_path / "record", hang, cause)
    assert record.line.phase is WatchdogPhase.SEEN
    assert record.line.at_ns - record.line.began_ns >= record.limit_ns == LIMIT_NS
    assert record.polls[-1][0] - record.line.polls in (0, 1)  # it is killed between the two writes
    events = [item for item in record.items if isinstance(item, WatchdogEvent)]
    captures = [item for item in record.items if isinstance(item, WatchdogCapture)]
    incidents = {event.incident for event in events if event.cause is cause}
    chosen = [
        capture for capture in captures if capture.incident in incidents and not capture.is_all
    ]
    assert chosen
    for snapshot, python in record.copies(chosen[-1:]):
        walk, names = WalkOptions(scan=True), NameOptions(lines=False)
        stack = build_capture(snapshot, walk, names, python=python).stacks[0]
        assert "hang_here" in functions(stack)
        assert any(symbol in name for name in symbols(stack)), symbols(stack)


def test_a_record_is_removed_when_the_watchdog_is_closed(
    target: SelfTarget, tmp_path: Path
) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"")
    with target.watchdog(LIMIT_NS, 10 * MS, record=str(path)):
        record = read_watchdog_file(path)
        assert record.process.pid == os.getpid()
        assert record.line.phase is WatchdogPhase.ENDED
    assert not path.exists()


def test_a_file_that_is_no_record_is_not_replaced(target: SelfTarget, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine" * 100)
    with pytest.raises(FileAccessError, match="is no record: it is not replaced"):
        target.watchdog(LIMIT_NS, 10 * MS, record=str(path))
    assert path.read_text() == "mine" * 100


def test_a_record_that_is_written_now_is_not_replaced(target: SelfTarget, tmp_path: Path) -> None:
    path = tmp_path / "record"
    with target.watchdog(LIMIT_NS, 10 * MS, record=str(path)):
        child = os.fork()
        if child == 0:  # another process
            try:
                target.watchdog(LIMIT_NS, 10 * MS, record=str(path))
            except FileAccessError as error:
                os._exit(0 if f"process {os.getppid()} writes" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(FileAccessError, match=f"process {os.getpid()} writes this record"):
            target.watchdog(LIMIT_NS, 10 * MS, record=str(path))
        assert path.exists()


def test_the_record_of_a_killed_process_is_renamed(target: SelfTarget, tmp_path: Path) -> None:
    record = killed(tmp_path / "record", "time.sleep(60)", WatchdogCause.THREAD)
    with target.watchdog(LIMIT_NS, 10 * MS, record=str(tmp_path / "record")):
        old = read_watchdog_file(tmp_path / "record.previous")
        assert old.process.pid == record.process.pid
        assert old.items


def test_a_record_that_cannot_be_created_is_an_error(target: SelfTarget, tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="cannot create the record"):
        target.watchdog(LIMIT_NS, 10 * MS, record=str(tmp_path / "no" / "folder"))


@pytest.mark.parametrize("data", [b"", b"machwtc1", b"x" * 5000, b"machwtc1" + bytes(5000)])
def test_a_file_that_is_no_record_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="record"):
        read_watchdog_file(path)


def test_a_record_without_an_incident_is_no_report(target: SelfTarget, tmp_path: Path) -> None:
    path = tmp_path / "record"
    with (
        target.watchdog(LIMIT_NS, 10 * MS, record=str(path)),
        pytest.raises(FormatError, match="no incident"),
    ):
        mt.read_report(path)


def test_a_damaged_record_is_an_error_or_has_fewer_incidents(
    target: SelfTarget, tmp_path: Path
) -> None:
    path = tmp_path / "record"
    with target.watchdog(LIMIT_NS, 10 * MS, record=str(path)) as watchdog:
        watchdog.watch(threading.get_native_id())
        spin(0.3)
        data = path.read_bytes()
    for size in (*range(0, 600, 13), len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError):
            parse_watchdog_file(data[:size], "a part")
    random = Random(14)  # noqa: S311 - no secret
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(random.choice((1, 2, 8))):
            # Of the head and the text, of polls, and of the ring.
            start = random.choice((0, 20480, 745472))
            damaged[start + random.randrange(2000)] = random.randrange(256)
        with suppress(FormatError):
            parse_watchdog_file(bytes(damaged), "damaged")


def test_a_record_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError):
        read_watchdog_file(tmp_path / "none")


# --- safety ---


def test_watchdogs_that_come_and_go_under_load_harm_nothing(tmp_path: Path) -> None:
    """``MACHTRACE_WATCHDOG_CYCLES`` makes it longer."""
    cycles = os.environ.get("MACHTRACE_WATCHDOG_CYCLES", "30")
    program = Path(__file__).parent / "watchdog_torture.py"
    command = [sys.executable, str(program), "--cycles", cycles, "--record", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["cycles"] == int(cycles)
    assert counts["chains"] > 0
    assert counts["wrong"] == 0
    assert all(counts["load"].values())
