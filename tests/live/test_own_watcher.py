"""A process that watches itself: incidents of its threads, loops and scopes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import machtrace as mt
from machtrace.errors import ArgumentError, FileAccessError, TargetSpecError
from machtrace.model.incident.facts import IncidentKind, Verdict, VerdictCertainty, WatchIncident
from tests.support.reports.incidents import BLOCKED, stack

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")
if sys.platform != "linux":
    pytest.skip("the watchdog is for Linux", allow_module_level=True)

from machtrace.watching.own.loops import LoopBeacons, await_chain
from machtrace.watching.own.record import read_record
from machtrace.watching.own.watcher import OwnWatcher
from machtrace.watching.thresholds import WatchOptions, parse_cpu, parse_memory

HANG = 0.1


class Incidents:
    """Incidents as they are reported."""

    def __init__(self) -> None:
        self.all: list[WatchIncident] = []

    def __call__(self, incident: WatchIncident) -> None:
        """Take one."""
        self.all.append(incident)

    def until(self, wanted: Callable[[WatchIncident], bool]) -> WatchIncident:
        """Wait for one that has ended; a minute at most."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for incident in [*self.all]:
                if incident.ended is not None and wanted(incident):
                    return incident
            time.sleep(0.02)
        raise AssertionError([(each.thread, each.verdict, each.evidence) for each in self.all])


def is_scope(incident: WatchIncident) -> bool:
    return "scope" in incident.evidence


def blocks_main(incident: WatchIncident) -> bool:
    return incident.thread is not None and incident.thread.is_main


async def sleep_in_a_task() -> None:
    time.sleep(0.3)  # noqa: ASYNC251 - the hang


async def request() -> None:
    await sleep_in_a_task()


def run_with_hang(incidents: Incidents) -> None:
    async def main() -> None:
        with mt.watch("self", hang=HANG, lines=False, on_incident=incidents):
            await asyncio.sleep(0.3)
            await asyncio.create_task(request(), name="request-7")
            await asyncio.sleep(0.3)

    asyncio.run(main())


def test_a_sleep_in_a_task_is_blamed_on_its_function_with_the_await_chain() -> None:
    incidents = Incidents()
    run_with_hang(incidents)
    incident = incidents.until(lambda each: each.verdict is Verdict.BLOCKED)
    assert incident.kind is IncidentKind.HANG
    assert incident.culprit is not None
    assert incident.culprit.function == "sleep_in_a_task"
    assert incident.culprit.native is not None
    chain = str(incident.evidence["await_chain"])
    assert [each.partition(" ")[0] for each in chain.split(" ← ")] == ["sleep_in_a_task", "request"]
    assert chain.count("test_own_watcher.py:") == 2
    assert incident.evidence["task"] == "request-7"
    assert str(incident.evidence["awaited_by"]).startswith("Task-")
    (line,) = (line for line in str(incident).splitlines() if line.startswith("  task  "))
    assert "request-7: sleep_in_a_task (test_own_watcher.py:" in line
    assert incident.thread is not None
    assert incident.thread.is_main
    assert incident.threshold == "100ms"
    assert incident.duration_ns >= HANG * 1e9
    assert incident.began.earliest_ns == incident.began.latest_ns  # the loop states it
    assert incident.capture is not None
    assert incident.host is not None
    assert incident.cost is not None
    assert incident.representative is not None


def test_an_incident_becomes_a_report() -> None:
    incidents = Incidents()
    run_with_hang(incidents)
    incident = incidents.until(lambda each: each.verdict is Verdict.BLOCKED)
    from machtrace.reports.stacks.incidents import report_of_incident
    from machtrace.watching.jsonl import incident_object

    assert report_of_incident(incident).threads
    written: dict[str, Any] = incident_object(incident)
    assert written["phase"] == "ended"
    assert written["culprit"]["function"] == "sleep_in_a_task"


def test_an_idle_loop_and_short_tasks_are_no_incident() -> None:
    async def main() -> tuple[WatchIncident, ...]:
        with mt.watch("self", hang=0.5) as watcher:
            for _ in range(60):
                await asyncio.sleep(0.01)
                time.sleep(0.01)  # noqa: ASYNC251 - a short task
            await asyncio.sleep(1)
        return watcher.incidents

    hangs = [each for each in asyncio.run(main()) if each.verdict and each.verdict.is_hang]
    assert hangs == []


def test_a_thread_that_keeps_the_interpreters_lock_is_named_with_its_waiter() -> None:
    incidents = Incidents()
    library = ctypes.PyDLL(None)

    def keep_the_lock() -> None:
        library.usleep(500_000)

    async def main() -> None:
        with mt.watch("self", hang=HANG, lines=False, on_incident=incidents):
            await asyncio.sleep(0.2)
            thread = threading.Thread(target=keep_the_lock)
            thread.start()
            await asyncio.sleep(0.3)
            thread.join()

    asyncio.run(main())
    incident = incidents.until(lambda each: "gil_holder" in each.evidence)
    assert incident.culprit is not None
    assert incident.culprit.function.endswith("keep_the_lock")
    waiters = incident.evidence["gil_waiters"]
    assert isinstance(waiters, int)
    assert waiters >= 1
    assert incident.verdict is Verdict.BLOCKED
    names = {
        frame.symbol.name
        for timed in incident.stacks
        for frame in timed.stack.frames
        if frame.symbol
    }
    if incident.waits_for is None:  # it is about the holder
        assert "usleep" in names
        assert incident.certainty is VerdictCertainty.CERTAIN


def test_a_scope_is_reported_by_its_name() -> None:
    incidents = Incidents()
    with mt.watch("self", hang=None, lines=False, on_incident=incidents):
        with mt.deadline(0.1, "parse"):
            time.sleep(0.3)
        incident = incidents.until(is_scope)
    assert incident.evidence["scope"] == "parse"
    assert incident.threshold == "100ms parse"
    assert blocks_main(incident)
    assert incident.culprit is not None
    assert incident.culprit.function.endswith("by_its_name")


def test_a_busy_thread_without_a_loop_is_watched_by_what_the_kernel_shows() -> None:
    incidents = Incidents()

    def compute() -> None:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass

    with mt.watch("self", hang=HANG, lines=False, on_incident=incidents) as watcher:
        assert isinstance(watcher, OwnWatcher)

        def work() -> None:
            watcher.watch_thread()
            compute()

        def is_reported() -> bool:
            culprits = [each.culprit for each in incidents.all]
            return any(
                culprit is not None and culprit.function.endswith("compute") for culprit in culprits
            )

        # On a busy machine the thread may hardly run: then it is seen as starved, elsewhere.
        for _ in range(20):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if is_reported():
                break
    assert is_reported()


def test_a_loop_is_as_before_once_it_is_not_watched() -> None:
    loop = asyncio.new_event_loop()
    selector: Any = loop._selector  # noqa: SLF001 - what is watched
    first, second = LoopBeacons(), LoopBeacons()
    try:
        assert first.attach(loop)
        assert first.attach(loop)
        assert second.attach(loop)
        second.detach_all()
        first.detach_all()
        assert "select" not in vars(selector)
        assert first.attach(loop)
        loop.run_until_complete(asyncio.sleep(0.01))
        first.check()
        first.detach_all()
    finally:
        loop.close()


def test_a_loop_without_a_selector_has_no_beacon() -> None:
    class Loop:
        pass

    loop: Any = Loop()
    assert not LoopBeacons().attach(loop)
    assert LoopBeacons().current_task(1) == {}


def test_a_stack_outside_of_tasks_has_no_await_chain() -> None:
    assert await_chain(stack(BLOCKED)) is None


async def waits_plainly(task: asyncio.Task[dict[str, str]]) -> dict[str, str]:
    return await task


async def waits_for_several(task: asyncio.Task[dict[str, str]]) -> dict[str, str]:
    (facts,) = await asyncio.gather(task)
    return facts


async def waits_in_a_group(inner: Callable[[], Coroutine[Any, Any, dict[str, str]]]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(inner(), name="inner")
    return task.result()


@pytest.mark.parametrize("waits", [waits_plainly, waits_for_several, waits_in_a_group])
def test_a_task_is_named_with_those_that_await_it(waits: Callable[..., Any]) -> None:
    beacons = LoopBeacons()
    thread = threading.get_native_id()

    async def inner() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return beacons.current_task(thread)

    async def main() -> dict[str, str]:
        beacons.attach(asyncio.get_running_loop())
        argument: Any = inner
        if waits is not waits_in_a_group:
            argument = asyncio.create_task(inner(), name="inner")
        facts: dict[str, str] = await asyncio.create_task(waits(argument), name="outer")
        beacons.detach_all()
        return facts

    facts = asyncio.run(main())
    assert facts["task"] == "inner"
    outer, _, rest = facts["awaited_by"].partition(": ")
    assert outer == "outer"
    assert f"{waits.__name__} (test_own_watcher.py:" in rest
    assert re.search(r" ← Task-\d+: main \(test_own_watcher\.py:\d+\)$", rest)


def test_a_task_that_kept_the_interpreters_lock_is_named_by_its_function() -> None:
    incidents = Incidents()

    async def keep_the_lock() -> None:
        ctypes.PyDLL(None).usleep(500_000)

    async def main() -> None:
        with mt.watch("self", hang=HANG, lines=False, on_incident=incidents):
            await asyncio.sleep(0.2)
            await asyncio.create_task(serve(), name="server")
            await asyncio.sleep(0.2)

    async def serve() -> None:
        await keep_the_lock()
        await asyncio.sleep(1)

    asyncio.run(main())
    incident = incidents.until(lambda each: "await_chain" in each.evidence)
    assert incident.evidence["task"] == "server"
    assert str(incident.evidence["await_chain"]).startswith("keep_the_lock (")


def test_two_watchers_report_the_same_hang() -> None:
    short, long = Incidents(), Incidents()
    with (
        mt.watch("self", hang=None, lines=False, on_incident=short),
        mt.watch("self", hang=None, lines=False, on_incident=long),
    ):
        with mt.deadline(0.1, "both"):
            time.sleep(0.3)
        first, second = short.until(is_scope), long.until(is_scope)
    assert first.evidence["scope"] == second.evidence["scope"] == "both"


def test_a_forked_child_closes_the_watcher_without_effect() -> None:
    with mt.watch("self", hang=None) as watcher:
        child = os.fork()
        if child == 0:
            watcher.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        watcher.close()
        watcher.close()


CONDITIONS = """
    import threading, time
    import machtrace as mt

    first, second, barrier = threading.RLock(), threading.RLock(), threading.Barrier(2)
    kinds, every = {}, threading.Event()

    def take(one, other):
        with one:
            barrier.wait()
            with other:
                pass

    def burn():
        while True:
            pass

    def add(incident):
        kinds[incident.kind.value] = incident
        if len(kinds) == 3:
            every.set()

    with mt.watch("self", hang=None, cpu="50%/1s", memory="1MiB", lines=False, on_incident=add):
        for body, *locks in ((take, first, second), (take, second, first), (burn,)):
            threading.Thread(target=body, args=locks, daemon=True).start()
        every.wait(60)
    print(sorted(kinds))
    print(kinds["cpu"].culprit.function, kinds["deadlock"].culprit.function)
    print(len(kinds["deadlock"].cycle), len(kinds["cpu"].series) > 0)
"""


def test_processor_time_memory_and_deadlocks_of_this_process_are_watched() -> None:
    command = [sys.executable, "-c", textwrap.dedent(CONDITIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    kinds, culprits, deadlock = done.stdout.splitlines()
    assert kinds == "['cpu', 'deadlock', 'memory']"
    assert culprits == "burn take"
    assert deadlock == "2 True"


def test_an_error_of_the_callback_is_raised_at_the_end() -> None:
    def fail(_: WatchIncident) -> None:
        raise LookupError("the callback's own")

    watcher = OwnWatcher(WatchOptions(hang_ns=None, lines=False), fail)
    thread = threading.Thread(target=watcher.run, args=(60_000_000_000,))
    thread.start()
    with mt.deadline(0.05, "slow"):
        time.sleep(0.2)
    until = time.monotonic() + 60
    while not watcher.has_failed and time.monotonic() < until:
        time.sleep(0.02)
    with pytest.raises(LookupError, match="the callback's own"):
        watcher.close()
    thread.join()
    assert watcher.incidents


def test_a_watcher_is_closed_while_another_thread_runs_it() -> None:
    options = WatchOptions(
        memory=parse_memory("1TiB"), cpu=parse_cpu("90%/5s", processors=1), lines=False
    )
    for _ in range(20):
        watcher = OwnWatcher(options)
        thread = threading.Thread(target=watcher.run, args=(60_000_000_000,))
        thread.start()
        watcher.close()
        thread.join()  # an error of the thread fails the test


@pytest.mark.parametrize("hang", [0, -1, 0.001])
def test_a_hang_that_makes_no_sense_is_refused(hang: float) -> None:
    with pytest.raises(ArgumentError, match="hang"), mt.watch("self", hang=hang):
        pass


def test_a_thread_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TargetSpecError), mt.watch("self", threads="no such thread"):
        pass


def test_a_record_in_no_folder_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(FileAccessError, match="record"),
        mt.watch("self", record=tmp_path / "no" / "record"),
    ):
        pass


KILLED = """
    import asyncio, ctypes, sys, time
    import machtrace as mt

    async def hang_here():
        print("hangs", flush=True)
        HANG

    async def main():
        with mt.watch("self", hang=0.1, record=sys.argv[1]):
            await asyncio.sleep(0.2)
            await asyncio.create_task(hang_here())

    asyncio.run(main())
"""


def test_a_process_that_was_killed_before_its_limit_has_what_was_suspected(tmp_path: Path) -> None:
    path = tmp_path / "record"
    program = textwrap.dedent(KILLED).replace("HANG", "time.sleep(60)").replace("=0.1", "=8")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        until = time.monotonic() + 60
        incidents: tuple[WatchIncident, ...] = ()
        while not any(each.stacks for each in incidents) and time.monotonic() < until:
            time.sleep(0.1)
            incidents = read_record(path)
        process.send_signal(signal.SIGKILL)
    (incident,) = incidents
    assert incident.culprit is not None
    assert incident.culprit.function == "hang_here"
    assert "not exceeded yet" in str(incident.evidence["record"])


@pytest.mark.parametrize(
    "hang", ["time.sleep(60)", "while True: pass", "ctypes.PyDLL(None).usleep(60_000_000)"]
)
def test_the_hang_of_a_killed_process_is_read_from_its_record(hang: str, tmp_path: Path) -> None:
    path = tmp_path / "record"
    program = textwrap.dedent(KILLED).replace("HANG", hang)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        until = time.monotonic() + 60
        incidents: list[WatchIncident] = []
        while not incidents and time.monotonic() < until:
            time.sleep(0.1)
            incidents = [each for each in read_record(path) if blocks_main(each)]
        process.send_signal(signal.SIGKILL)
    incident = next(each for each in read_record(path) if blocks_main(each))
    report = mt.read_reports(path)[0]
    assert report.watch is not None
    assert report.watch.seen_wall_ns is not None
    assert report.threads
    assert str(incident.evidence["await_chain"]).startswith("hang_here (<string>:")
    assert incident.pid == process.pid
    assert incident.ended is None
    assert incident.culprit is not None
    assert incident.culprit.function == "hang_here"
    assert "while this lasted" in str(incident.evidence["record"])
