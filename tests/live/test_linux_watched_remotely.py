"""Watching a real process through a real gdbserver, and through Frida."""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import TargetError
from machtrace.model.incident.facts import IncidentKind, Verdict, WatchIncident
from machtrace.targets.frida.process import FridaTarget
from machtrace.watching.watcher import Watcher
from tests.live.conftest import DEADLINE_S
from tests.support.stand_ins.usbmuxd import free_port

Process = subprocess.Popen[str]


@pytest.fixture
def process(build: Callable[..., Path], start: Callable[..., Process]) -> Process:
    """Start the program in a group of its own: gdbserver interrupts the group of that id."""
    return start(build("remote_hangs"), process_group=0)


@pytest.fixture
def serve(process: Process) -> Iterator[Callable[[str], str]]:
    """Return a function that returns the spec by which the process is reached."""
    stubs: list[Process] = []

    def gdb() -> str:
        program = shutil.which("gdbserver")
        if program is None:
            pytest.skip("gdbserver is not installed")
        place = f"127.0.0.1:{free_port()}"
        command = [program, "--once", "--attach", place, str(process.pid)]
        stub = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        stubs.append(stub)
        assert stub.stderr is not None
        shown = []
        while not shown or not shown[-1].startswith("Listening"):
            shown.append(stub.stderr.readline())
            if not shown[-1]:
                pytest.skip(f"gdbserver cannot attach here: {''.join(shown)}")
        return f"gdb://{place}"

    def frida() -> str:
        pytest.importorskip("frida", reason="frida:// needs the extra 'frida'")
        spec = f"frida://local/{process.pid}"
        try:
            FridaTarget(spec).close()
        except TargetError as error:
            pytest.skip(f"Frida cannot attach here: {error}")
        return spec

    yield lambda way: {"gdb": gdb, "frida": frida}[way]()
    for stub in stubs:
        stub.kill()
        stub.communicate()


def send(process: Process, byte: str) -> None:
    assert process.stdin is not None
    process.stdin.write(byte)
    process.stdin.flush()


def wait_until_idle(watcher: Watcher) -> None:
    """Wait until it is known where the program's loop waits."""
    while watcher.cost.polls < 6:
        signal.sigtimedwait((), 0.05)


@pytest.mark.parametrize("way", ["gdb", "frida"])
@pytest.mark.parametrize(
    ("byte", "function", "verdict"),
    [("b", "run_in_task", Verdict.BUSY), ("s", "block_in_task", Verdict.BLOCKED)],
)
def test_a_hang_is_seen_while_it_lasts(
    process: Process,
    serve: Callable[[str], str],
    way: str,
    byte: str,
    function: str,
    verdict: Verdict,
) -> None:
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(serve(way), hang=0.5, on_incident=seen.put) as watcher:
        wait_until_idle(watcher)
        send(process, byte)
        first = seen.get(timeout=DEADLINE_S)
        while first.verdict is None or not first.verdict.is_hang:
            first = seen.get(timeout=DEADLINE_S)  # a busy machine may starve it first
        process.send_signal(signal.SIGUSR1)
        last = first
        while last.ended is None:
            last = seen.get(timeout=DEADLINE_S)
        missing = watcher.missing
    assert first.verdict is verdict
    assert first.culprit is not None
    assert first.culprit.function == function
    assert any("deadlocks" in sentence for sentence in missing)
    assert process.poll() is None


def test_a_crash_is_seen_through_gdbserver(process: Process, serve: Callable[[str], str]) -> None:
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(serve("gdb"), on_incident=seen.put) as watcher:
        wait_until_idle(watcher)
        send(process, "c")
        incident = seen.get(timeout=DEADLINE_S)
    assert incident.kind is IncidentKind.CRASH
    assert incident.capture is not None
    names = [frame.symbol.name for frame in incident.capture.stacks[0].frames if frame.symbol]
    assert names[0] == "crash_in_task"
    assert process.wait(timeout=DEADLINE_S) == -signal.SIGSEGV
