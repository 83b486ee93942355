"""The signals that stop threads of this process, where a thread does not take its own."""

from __future__ import annotations

import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import machtrace as mt

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")
if sys.platform != "linux":
    pytest.skip("only Linux stops threads by signals", allow_module_level=True)

from machtrace._native import _inprocess

HERE = Path(__file__).parent
NATIVE = Path(__file__).parents[2] / "native"
KERNEL = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def test_a_thread_that_blocks_the_signal_has_one_pending_at_most() -> None:
    """Real-time signals queue, and all processes of a user share one limit."""
    counts: list[int] = []
    count, begun, done = 100, threading.Barrier(101), threading.Event()

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        begun.wait()
        done.wait()
        number = 0
        while signal.sigtimedwait({_inprocess.signal_in_use()}, 0) is not None:
            number += 1
        counts.append(number)

    threads = [threading.Thread(target=block) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        begun.wait()
        with mt.open_target("self") as target:
            for _ in range(3):
                reasons = {item.thread: str(item.error) for item in target.snapshot().problems}
                assert all("blocks" in reasons[t.native_id] for t in threads)  # type: ignore[index]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert counts == [1] * count


@pytest.mark.parametrize(
    ("how", "table", "lines"),
    [
        # Entries of threads that have exited are used again.
        ("blocked", 48, ["200 40 1"] * 3),
        # Those without an entry are not sent another, and later ones none.
        ("blocked", 8, ["200 9 1", "200 0 0", "200 0 0"]),
        ("files", 48, ["0 40 1"]),
        ("ended", 48, ["0 1 1"]),
    ],
)
def test_no_second_signal_is_sent(tmp_path: Path, how: str, table: int, lines: list[str]) -> None:
    """Also with more such threads than can be noted, without files, and of an ended main thread."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path / "own_signals"
    sources = [HERE / "programs/own_signals.c", *sorted(NATIVE.glob("inprocess/core/linux/*.c"))]
    sources.append(NATIVE / "common/linux/registers.c")
    flags = ["-std=c11", "-g", "-O1", "-pthread", f"-DOVERDUE_MAX={table}", f"-I{NATIVE}"]
    subprocess.run(
        ["cc", *flags, *map(str, sources), "-o", str(program), "-ldl"],
        check=True,
        capture_output=True,
    )
    done = subprocess.run([str(program), how], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == lines


discards_timers = pytest.mark.skipif(
    KERNEL < (4, 14), reason="before 4.14 signals of timers cannot be sent as such"
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )


@discards_timers
def test_a_pending_signal_does_not_end_the_program_that_is_executed() -> None:
    """Nor is it lost where the program cannot be executed: then it is taken late, as ever."""
    code = """
import os, signal, sys, threading
import machtrace as mt
from machtrace._native import _inprocess

def capture():
    with mt.open_target("self") as target:
        problems.extend(target.snapshot().problems)

def captured():
    problems.clear()
    thread = threading.Thread(target=capture)
    thread.start()
    thread.join()
    return [problem for problem in problems if problem.thread == os.getpid()]

problems = []
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
assert "blocks" in str(captured()[0].error)
assert _inprocess.signal_in_use() in signal.sigpending()
try:
    os.execv("/nonexistent", ["nonexistent"])
except FileNotFoundError:
    pass
signal.pthread_sigmask(signal.SIG_SETMASK, [])
while captured():
    pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
assert captured()
number = _inprocess.signal_in_use()
assert number in signal.sigpending()
new = f'''
import signal
assert {number} not in signal.sigpending()
signal.pthread_sigmask(signal.SIG_SETMASK, [])
print("alive")
'''
os.execv(sys.executable, [sys.executable, "-c", new])
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


@discards_timers
def test_programs_that_are_executed_during_a_series_live() -> None:
    """By the main thread, by another one, and by children."""
    if not Path("/bin/true").exists():
        pytest.skip("no /bin/true")
    code = """
import os, subprocess, threading
from machtrace._native import _inprocess

def series():
    made = _inprocess.Series(100_000, 1 << 16, 10**9, 2 * 10**7, 0, False, 1 << 20)
    while not any(made.counts()[:3]):
        pass
    return made

def execute():
    os.execv("/bin/true", ["true"])

ended = []
for number in range(60):
    child = os.fork()
    if not child:
        running = series()
        if number % 2:
            execute()
        thread = threading.Thread(target=execute)
        thread.start()
        thread.join()
    ended.append(os.waitpid(child, 0)[1])
running = series()
for number in range(30):
    ended.append(subprocess.run(["/bin/true"], close_fds=False).returncode)
running.stop()
assert set(ended) == {0}, ended
print("well")
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("well\n", "")
