"""Incidents of a process behind a scripted debug server: no Mac and no phone is involved."""

import threading
import time

import pytest

import machtrace as mt
from machtrace.errors import ArgumentError
from machtrace.model.incident.facts import IncidentKind
from machtrace.watching.thresholds import WatchOptions, parse_cpu, parse_memory
from machtrace.watching.watcher import Watcher
from tests.support.stand_ins.running_stub import RunningStub, profile

pytestmark = pytest.mark.emulated

LIMIT_NS = 20_000_000_000


@pytest.fixture(scope="module")
def process():
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    return mt.snapshot("emulated:demo")


def watch(stub, options, script):
    """Watch the stub's process until there is an incident, while ``script`` runs beside."""
    incidents = []
    with stub.serving() as port:
        writer = threading.Thread(target=script, daemon=True)
        with Watcher(f"gdb://127.0.0.1:{port}", options, incidents.append) as watcher:
            writer.start()
            watcher.run(LIMIT_NS, should_stop=lambda: bool(incidents))
        writer.join(20)
    return incidents, watcher


def send_profiles(stub, make):
    """Send a profile again and again until the client has left."""

    def script():
        began = time.monotonic()
        while not stub.closed.is_set():
            try:
                stub.send_profile(make(round((time.monotonic() - began) * 1e6)))
            except (OSError, AssertionError):
                return
            time.sleep(0.05)

    return script


def test_a_hot_thread_is_an_incident_with_its_stacks(process):
    """Its time is that of the profiles; the process is interrupted for the samples alone."""
    stub = RunningStub(process)
    main, hot = (thread.info.id for thread in process.threads[:2])

    def make(passed_us):
        return profile({main: (1000, ""), hot: (passed_us, "")})

    options = WatchOptions(hang_ns=None, cpu=parse_cpu("80%/500ms", processors=1), lines=False)
    incidents, watcher = watch(stub, options, send_profiles(stub, make))
    assert incidents[0].kind is IncidentKind.CPU
    assert incidents[0].thread.id == hot
    assert {timed.stack.thread.id for timed in incidents[0].stacks} == {hot}
    assert incidents[0].host is None  # this machine's load is not the device's
    assert 0 < watcher.cost.stops <= stub.interrupts


def test_a_jump_of_memory_shows_the_busiest_thread(process):
    stub = RunningStub(process)
    main, busy = (thread.info.id for thread in process.threads[:2])

    def make(passed_us):
        size = 64 << 20 if passed_us < 1_000_000 else 512 << 20
        return profile({main: (1000, ""), busy: (passed_us // 2, "")}, footprint=size)

    memory = parse_memory("+100MiB/1s")
    options = WatchOptions(hang_ns=None, memory=memory, lines=False)
    incidents, _ = watch(stub, options, send_profiles(stub, make))
    assert incidents[0].kind is IncidentKind.MEMORY
    assert incidents[0].thread.id == busy
    assert any("busiest" in sentence for sentence in incidents[0].missing)


def test_a_crash_ends_watching(process):
    stub = RunningStub(process)
    crashed = process.threads[1].info.id
    reply = f"T91thread:{crashed:x};metype:1;mecount:2;medata:1;medata:10;".encode()
    options = WatchOptions(hang_ns=None, lines=False)
    incidents, watcher = watch(stub, options, lambda: stub.stop(reply))
    assert [incident.kind for incident in watcher.incidents] == [IncidentKind.CRASH]
    assert incidents[0].thread.id == crashed
    assert stub.closed.wait(10)
    assert stub.requests[-1] == b"D"  # the exception is passed on


def test_a_hang_shorter_than_two_interrupts_cannot_be_seen(process):
    stub = RunningStub(process)
    with stub.serving() as port, pytest.raises(ArgumentError, match="cannot be seen"):
        Watcher(f"gdb://127.0.0.1:{port}", WatchOptions(hang_ns=250_000_000))
