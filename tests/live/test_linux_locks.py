"""Deadlocks of real processes, proven by the owners that their locks record."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from machtrace.model.incident.facts import IncidentKind
from machtrace.reports.analysis.waits.graph import EdgeSource, wait_graph
from machtrace.reports.files import read_report
from machtrace.targets.linux.locks import LinuxLocks
from machtrace.watching.api import watch as watch_process
from machtrace.watching.jsonl import incident_object
from machtrace.watching.locks.deadlocks import DeadlockDetector
from machtrace.watching.locks.waits import LockSurveyor
from machtrace.watching.reports import report_of

PYTHON_LOCKS = Path(__file__).parent / "programs/python_locks.py"
RINGS = {
    ("mutex", 2): {"mutex"},
    ("mutex", 8): {"mutex"},
    ("recursive", 3): {"recursive mutex"},
    ("errorcheck", 2): {"error-checking mutex"},
    ("robust", 2): {"robust mutex"},
    ("inherit", 2): {"mutex", "priority-inheriting mutex"},
    ("rwlock", 4): {"read-write lock"},
    ("join", 2): {"end of a thread"},
    ("stream", 2): {"lock of a stdio stream"},
    ("mixed", 6): {"mutex", "read-write lock", "end of a thread"},
}
FILES = {"flock": ["flock", "flock"], "record": ["flock", "record lock"]}


class Watched:
    """A process whose locks are surveyed."""

    def __init__(self, pid):
        self.source = LinuxLocks()
        self.surveyor = LockSurveyor(pid, self.source)
        self._detector = DeadlockDetector()

    def deadlocks(self, surveys=2):
        """Return what the last of several surveys proves."""
        return [self._detector.cycles(self.surveyor.survey()) for _ in range(surveys)][-1]


@pytest.fixture
def watch():
    watched = []

    def begin(pid):
        watched.append(Watched(pid))
        return watched[-1]

    yield begin
    for one in watched:
        one.source.close()


@pytest.fixture
def stuck(build, start, wait_blocked, watch, tmp_path):
    """Start a program of locks, wait until its threads wait, and watch it."""

    def begin(kind, count=2):
        process = start(build("locks"), kind, count, tmp_path / "a", tmp_path / "b")
        wait_blocked(process.pid)
        return process, watch(process.pid)

    return begin


@pytest.mark.parametrize(("kind", "count"), RINGS)
def test_a_ring_of_threads_is_proven(stuck, kind, count):
    _, watched = stuck(kind, count)
    (cycle,) = watched.deadlocks()
    assert len(cycle.threads) == count
    assert {thread.wait.waits_for.what for thread in cycle.threads} == RINGS[kind, count]
    following = [*cycle.threads[1:], cycle.threads[0]]
    assert [thread.wait.owner.thread for thread in cycle.threads] == [
        one.thread for one in following
    ]


def test_one_survey_proves_nothing(stuck):
    _, watched = stuck("mutex")
    assert watched.deadlocks(surveys=1) == ()


def test_a_thread_that_waits_for_its_own_mutex(stuck):
    process, watched = stuck("self")
    ((thread,),) = (cycle.threads for cycle in watched.deadlocks())
    assert thread.thread == thread.wait.owner.thread == process.pid


@pytest.mark.parametrize("kind", FILES)
def test_processes_that_wait_for_each_others_file(stuck, wait_until, watch, kind):
    process, _ = stuck(kind)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    watched = watch(process.pid)
    wait_until(watched.deadlocks, "the child waits, too")
    (cycle,) = watched.deadlocks()
    assert {thread.pid for thread in cycle.threads} == {process.pid, child}
    assert {thread.wait.owner.pid for thread in cycle.threads} == {process.pid, child}
    kinds = sorted(thread.wait.waits_for.what.partition(" of ")[0] for thread in cycle.threads)
    assert kinds == FILES[kind]


def test_files_of_a_process_that_owns_nothing_any_more_are_closed(stuck, wait_until, watch):
    process, _ = stuck("flock")
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    watched = watch(process.pid)

    def opened():
        links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
        return [link for link in links if link.startswith(f"/proc/{child}")]

    wait_until(watched.deadlocks, "the child waits, too")
    assert opened()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not watched.deadlocks(), "the lock is taken")
    watched.deadlocks()
    assert not opened()


def test_a_parent_that_waits_for_a_child_that_waits_for_its_file(stuck, wait_until):
    process, watched = stuck("wait")
    wait_until(watched.deadlocks, "the child waits, too")
    (cycle,) = watched.deadlocks()
    kinds = {thread.wait.waits_for.what.partition(" of ")[0] for thread in cycle.threads}
    assert kinds == {"end", "flock"}
    assert process.pid in {thread.pid for thread in cycle.threads}


def test_a_wait_with_a_time_limit_ends_by_itself(stuck):
    _, watched = stuck("timed")
    assert watched.deadlocks() == ()
    waits = list(watched.surveyor.waits().values())
    assert [(wait.is_timed, wait.owner is not None) for wait in waits] == [(True, True)] * 2


@pytest.mark.parametrize("kind", ["readers", "semaphore", "condition"])
def test_an_owner_that_is_not_recorded(stuck, kind):
    _, watched = stuck(kind)
    assert watched.deadlocks() == ()
    (wait,) = watched.surveyor.waits().values()
    assert wait.waits_for.owner == (None, None, False)


def test_contended_locks_are_no_deadlock(build, start, watch):
    process = start(build("locks"), "ordered", 6)
    watched = watch(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    proven = []
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1:
        pass
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1:
        proven += watched.deadlocks()
    assert process.stdout.readline() == "done\n"
    assert proven == []


@pytest.mark.parametrize("count", [2, 5])
def test_threads_of_python_with_rlocks(start, wait_blocked, watch, count):
    process = start(sys.executable, PYTHON_LOCKS, "rlock", count)
    wait_blocked(process.pid)
    watched = watch(process.pid)
    (cycle,) = watched.deadlocks()
    assert [thread.wait.waits_for.what for thread in cycle.threads] == ["threading.RLock"] * count
    following = [*cycle.threads[1:], cycle.threads[0]]
    assert [thread.wait.owner.thread for thread in cycle.threads] == [
        one.thread for one in following
    ]


def test_locks_of_python_have_no_owner(start, wait_blocked, watch):
    process = start(sys.executable, PYTHON_LOCKS, "lock")
    wait_blocked(process.pid)
    watched = watch(process.pid)
    assert watched.deadlocks() == ()
    waits = list(watched.surveyor.waits().values())
    assert [wait.waits_for.what for wait in waits] == ["threading.Lock"] * 3
    assert all(wait.waits_for.owner == (None, None, False) for wait in waits)


def test_a_mutex_and_the_interpreter_lock(start, wait_until, watch):
    process = start(sys.executable, PYTHON_LOCKS, "gil")
    watched = watch(process.pid)
    wait_until(watched.deadlocks, "one waits for the mutex, the other one for the GIL")
    (cycle,) = watched.deadlocks()
    assert {thread.wait.waits_for.what for thread in cycle.threads} == {
        "mutex",
        "interpreter lock (GIL)",
    }
    assert cycle.threads[0].thread == process.pid


def seen(incidents, kind=IncidentKind.DEADLOCK):
    while (incident := incidents.get(timeout=120)).kind is not kind:
        pass
    return incident


def test_the_watcher_reports_a_deadlock_and_its_end(stuck):
    process, _ = stuck("mutex", 3)
    incidents = queue.Queue()
    with watch_process(process.pid, lines=False, on_incident=incidents.put) as watcher:
        first = seen(incidents)
        process.kill()
        last = seen(incidents)
    assert (first.id, first.certainty.value, first.ended) == (last.id, "certain", None)
    assert last.ended is not None
    assert first.capture is not None
    assert first.culprit.function == "run"
    line = json.loads(json.dumps(incident_object(first)))
    assert line["waits_for"] == line["cycle"][0]["waits_for"]
    assert [each["waits_for"]["owner"]["thread"] for each in line["cycle"]] == [
        line["cycle"][at]["id"] for at in (1, 2, 0)
    ]
    assert sum(incident.kind is IncidentKind.DEADLOCK for incident in watcher.incidents) == 1
    assert watcher.cost.stops == 0
    text = "\n".join(first.lines())
    assert "waits for mutex 0x" in text
    assert " → " in text


@pytest.mark.parametrize(("kind", "threads"), [("self", "main"), ("mutex", "all")])
def test_a_deadlock_is_not_a_hang_of_its_threads_as_well(stuck, kind, threads):
    process, _ = stuck(kind)
    incidents = queue.Queue()
    options = {"lines": False, "hang": 0.04, "threads": threads, "cpu": None, "memory": None}
    with watch_process(process.pid, on_incident=incidents.put, **options) as watcher:
        first = incidents.get(timeout=120)
        while watcher.cost.polls < 20:  # longer than the threshold
            os.sched_yield()
    assert first.kind is IncidentKind.DEADLOCK
    cycle = {thread.id for thread in first.cycle}
    others = [
        incident for incident in watcher.incidents if incident.kind is not IncidentKind.DEADLOCK
    ]
    assert not cycle & {other.thread.id for other in others}


def test_a_hang_states_what_it_waits_for(stuck):
    process, _ = stuck("self")
    incidents = queue.Queue()
    options = {"lines": False, "deadlocks": False, "hang": 0.1}
    with watch_process(process.pid, on_incident=incidents.put, **options) as watcher:
        hang = seen(incidents, IncidentKind.HANG)
    assert hang.waits_for.owner == (process.pid, process.pid, True)
    assert {incident.kind for incident in watcher.incidents} == {IncidentKind.HANG}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_capture_has_the_waits_and_its_report_the_deadlock(stuck, tmp_path, form):
    process, _ = stuck("mixed", 3)
    command = ["backtrace", str(process.pid), "--format", form, "--no-lines"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    path = tmp_path / "capture"
    path.write_text(result.stdout)
    report = read_report(path)
    graph = wait_graph(report)
    (deadlock,) = graph.deadlocks
    assert deadlock.is_certain
    assert len(deadlock.threads) == 3
    assert {edge.source for edge in graph.edges} == {EdgeSource.OWNER}
    assert {edge.text.partition(" 0x")[0] for edge in graph.edges} == RINGS["mixed", 6]


def test_an_incident_has_the_waits_of_all_threads(stuck):
    process, _ = stuck("flock")
    incidents = queue.Queue()
    with watch_process(process.pid, lines=False, on_incident=incidents.put):
        first = seen(incidents)
    (edge,) = wait_graph(report_of(first)).edges
    assert edge.source is EdgeSource.OWNER
    assert edge.owner is None
    assert edge.owner_label.startswith("process [")
