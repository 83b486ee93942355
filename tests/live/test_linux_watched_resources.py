"""Processor time and memory of real processes that are watched. No test has a time to keep."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from machtrace.errors import ArgumentError, TargetGoneError
from machtrace.model.incident.facts import IncidentKind
from machtrace.targets.linux.process_polls import ProcessPolls, host_load
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.watching.api import watch

PROGRAM = Path(__file__).parent / "programs/resources.py"
PATIENCE = 120
MIB = 1 << 20


class Incidents:
    """Takes the incidents of a watcher, and waits for them."""

    def __init__(self):
        self._all = []
        self._changed = threading.Condition()

    def __call__(self, incident):
        """Take one."""
        with self._changed:
            self._all.append(incident)
            self._changed.notify_all()

    def wait_for(self, matches):
        """Return the first one that matches, now or later."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(matches, self._all)), PATIENCE)
            return next(filter(matches, self._all))


@pytest.fixture
def program(start):
    return start(sys.executable, PROGRAM)


def order(program, word):
    program.stdin.write(f"{word}\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


def watched(program, incidents, **thresholds):
    wanted = {"hang": None, "deadlocks": False, "cpu": None, "memory": None} | thresholds
    return watch(program.pid, on_incident=incidents, **wanted)


def test_one_of_three_threads_that_burns_is_named_with_its_function(program):
    incidents = Incidents()
    with watched(program, incidents, cpu="20%/1s") as watcher:
        thread = int(order(program, "burn"))
        seen = incidents.wait_for(lambda incident: incident.ended is None)
        sampled = incidents.wait_for(lambda incident: len(incident.stacks) >= 20)
        assert order(program, "stop") == "ended"
        incidents.wait_for(lambda incident: incident.ended is not None)
    assert seen.kind is IncidentKind.CPU
    assert seen.threshold == "20%/1s"
    assert (seen.thread.id, seen.thread.is_main) == (thread, False)
    assert sampled.culprit.function == "burn"
    assert sampled.culprit.share > 0.9
    own = [timed for timed in sampled.stacks if timed.stack.thread.id == thread]
    assert sum(timed.weight_ns for timed in own) > 0
    (incident,) = watcher.incidents
    assert incident.id == seen.id
    assert incident.duration_ns > 0
    assert incident.host.processors >= 1


def test_the_thread_that_grows_by_300_mib_is_named_with_its_function(program):
    incidents = Incidents()
    with watched(program, incidents, memory="+100MiB/60s") as watcher:
        thread = int(order(program, "grow"))
        seen = incidents.wait_for(lambda incident: incident.kind is IncidentKind.MEMORY)
    (incident,) = watcher.incidents
    assert seen.thread.id == thread
    assert seen.evidence["growth_bytes"] >= 100 * MIB
    assert incident.stacks
    assert incident.culprit.function in ("grow", "touched")
    assert {stack.thread.id for stack in incident.capture.stacks} > {thread}


def test_an_idle_process_has_no_incident_and_a_series(program):
    ticks = threading.Event()
    with watched(program, ticks.set, cpu="80%/60s", memory="1TiB,+1GiB/1s") as watcher:
        # Two points of the series are two seconds.
        while len(watcher.series) < 2:
            assert not ticks.wait(0.05)
    assert not watcher.incidents
    assert watcher.cost.stops == 0
    assert watcher.series[-1].resident > MIB


def test_a_process_that_exits_ends_its_incident(program):
    incidents = Incidents()
    with watched(program, incidents, cpu="20%/1s"):
        order(program, "burn")
        incidents.wait_for(lambda incident: incident.ended is None)
        program.kill()
        program.wait()
        ended = incidents.wait_for(lambda incident: incident.ended is not None)
    assert ended.kind is IncidentKind.CPU


def test_the_command_prints_an_incident_of_memory_as_json(program, tmp_path):
    command = [
        *(sys.executable, "-m", "machtrace", "watch", str(program.pid)),
        *("--memory", "+100MiB/60s", "--until-incident", "--format", "jsonl", "-o", tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        threading.Timer(3, order, [program, "grow"]).start()
        lines = [json.loads(line) for line in watcher.stdout]
        status = watcher.wait()
    assert status == 1
    assert lines[0]["kind"] == "memory"
    assert lines[0]["phase"] == "seen"
    assert lines[0]["threshold"] == "+100MiB/60s"
    assert Path(lines[0]["report"]).is_file()


@pytest.mark.parametrize(
    ("option", "text"), [("--cpu", "0%/60s"), ("--cpu", "900%/0s"), ("--memory", "plenty")]
)
def test_the_command_refuses_senseless_thresholds_with_a_hint(program, option, text):
    command = [sys.executable, "-m", "machtrace", "watch", str(program.pid), option, text]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert repr(text) in result.stderr
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_senseless_thresholds_are_refused_before_watching(program):
    with pytest.raises(ArgumentError), watched(program, print, cpu="80%"):
        pass


def test_polls_of_a_process_count_its_threads_and_what_they_use(program):
    thread = int(order(program, "burn"))
    with ProcessDirectory(program.pid) as directory:
        polls = ProcessPolls(directory)
        first = polls.poll(with_threads=True)
        while True:
            last = polls.poll(with_threads=True)
            if last.threads[thread].run_ns - first.threads[thread].run_ns > 50_000_000:
                break
        limit = polls.limit()
        details = polls.memory_details()
        order(program, "stop")
        program.kill()
        program.wait()
        with pytest.raises(TargetGoneError):
            polls.poll(with_threads=True)
        polls.close()
        polls.close()
    assert len(first.threads) == 4
    assert max(last.threads, key=lambda each: last.threads[each].run_ns) == thread
    assert last.cpu_ns > first.cpu_ns
    assert 0 < last.resident < last.virtual
    assert limit.size > MIB
    assert limit.source
    assert details["anonymous_bytes"] > 0


def test_the_load_of_this_machine_is_known():
    load = host_load()
    assert load.processors >= 1
    assert load.load is None or load.load >= 0
