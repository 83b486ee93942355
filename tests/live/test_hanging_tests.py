"""The pytest plugin: tests that hang, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = "machtrace.pytest_plugin"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it traces another process")


def run(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a file with ``tests``."""
    file = folder / "test_it.py"
    file.write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q"]
    return subprocess.run(
        [*command, f"--rootdir={folder}", "-c", "/dev/null", *arguments, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )


SLEEPS = """
import time
def wait_for_the_server():
    time.sleep(4)
def test_slow():
    wait_for_the_server()
def test_quick():
    pass
"""


def test_a_hanging_test_is_printed_and_goes_on(tmp_path: Path) -> None:
    result = run(tmp_path, SLEEPS, "--machtrace-hang=0.5")
    assert result.returncode == 0, result.stderr
    assert "test_it.py::test_slow hangs: more than 0.5 s +++" in result.stderr
    assert "in wait_for_the_server (test_it.py:4)" in result.stderr
    assert "frames of pytest" in result.stderr
    assert "clock_nanosleep" in result.stderr
    assert "+++ machtrace: the test continues +++" in result.stderr
    assert "test_it.py::test_slow ended after 4." in result.stderr
    assert "test_quick" not in result.stderr


LISTS_IMAGES = """
import ctypes, sys, threading, time
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
imported = []
sys.addaudithook(lambda event, arguments: event == "import" and imported.append(arguments[0]))
def test_it():
    within, done = threading.Event(), threading.Event()
    @kind
    def callback(info, size, data):
        within.set()
        while not done.is_set():
            time.sleep(0.001)
        return 1
    thread = threading.Thread(target=ctypes.CDLL(None).dl_iterate_phdr, args=(callback, None))
    thread.start()
    within.wait()
    imported.clear()
    time.sleep(4)
    assert not imported
    done.set()
    thread.join()
"""


def test_the_process_of_the_tests_imports_nothing_for_a_hang(tmp_path: Path) -> None:
    """A thread has the loader's list of images locked, and waits for the interpreter's lock."""
    result = run(tmp_path, LISTS_IMAGES, "--machtrace-hang=0.5")
    assert result.returncode == 0, result.stdout
    assert "test_it.py::test_it hangs: more than 0.5 s +++" in result.stderr


def test_a_lock_of_the_interpreter_kept_in_c_does_not_hide_a_hang(tmp_path: Path) -> None:
    keeps = "import ctypes\ndef test_c():\n    ctypes.PyDLL(None).usleep(4_000_000)\n"
    result = run(tmp_path, keeps, "--machtrace-hang=0.5")
    assert result.returncode == 0, result.stderr
    assert "holds the GIL" in result.stderr
    assert "usleep" in result.stderr
    assert "in test_c (test_it.py:3)" in result.stderr


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    holds = """
import threading, time
def test_lock():
    lock, held = threading.RLock(), threading.Event()
    def holder():
        with lock:
            held.set()
            time.sleep(4)
    thread = threading.Thread(target=holder, name="holder")
    thread.start()
    held.wait()
    with lock:
        pass
    thread.join()
"""
    result = run(tmp_path, holds, "--machtrace-hang=0.5")
    assert result.returncode == 0, result.stdout
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("  waits for"))
    assert "threading.RLock" in line
    assert ", held by thread " in line
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("  waits  "))
    assert line.startswith("  waits      MainThread [")
    assert ": holder [" in line


def test_a_hanging_test_fails_and_the_run_continues(tmp_path: Path) -> None:
    endless = "import threading\ndef test_lock():\n    lock = threading.Lock()\n"
    endless += "    lock.acquire()\n    lock.acquire()\ndef test_quick():\n    pass\n"
    result = run(tmp_path, endless, "--machtrace-hang=0.5", "--machtrace-hang-action=fail")
    assert result.returncode == 1
    assert "1 failed, 1 passed" in result.stdout
    assert "hung for more than 0.5 s" in result.stdout
    assert "+++ machtrace: the test fails +++" in result.stderr


def test_fixtures_that_hang_fail_before_and_after_the_test(tmp_path: Path) -> None:
    fixtures = """
import time, pytest
@pytest.fixture
def slow_to_begin():
    time.sleep(60)
@pytest.fixture
def slow_to_end():
    yield
    time.sleep(60)
def test_begin(slow_to_begin): pass
def test_end(slow_to_end): pass
"""
    result = run(tmp_path, fixtures, "--machtrace-hang=2", "--machtrace-hang-action=fail")
    assert result.returncode == 1
    assert "1 passed, 2 errors" in result.stdout
    assert "in slow_to_begin (test_it.py:5)" in result.stderr
    assert "in slow_to_end (test_it.py:9)" in result.stderr


@pytest.mark.parametrize("option", [("-s",), ("--capture=sys",), ("-p", "no:faulthandler")])
def test_stacks_are_printed_with_other_options(tmp_path: Path, option: tuple[str, ...]) -> None:
    result = run(tmp_path, SLEEPS, "--machtrace-hang=0.5", *option)
    assert result.returncode == 0, result.stderr
    assert "in wait_for_the_server (test_it.py:4)" in result.stderr


def test_an_ignored_interrupt_does_not_prevent_the_failure(tmp_path: Path) -> None:
    ignores = "import signal, time\ndef test_it():\n    signal.signal(signal.SIGINT, "
    ignores += "signal.SIG_IGN)\n    time.sleep(60)\n"
    result = run(tmp_path, ignores, "--machtrace-hang=2", "--machtrace-hang-action=fail")
    assert result.returncode == 1
    assert "hung for more than 2 s" in result.stdout


def test_workers_of_xdist_print_the_stacks_of_their_tests(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    result = run(tmp_path, SLEEPS, "--machtrace-hang=0.5", "-n2")
    assert result.returncode == 0, result.stderr
    assert "in wait_for_the_server (test_it.py:4)" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_hanging_test_ends_the_run(tmp_path: Path) -> None:
    keeps = "import ctypes\ndef test_c():\n    ctypes.PyDLL(None).usleep(100_000_000)\n"
    result = run(tmp_path, keeps, "--machtrace-hang=0.5", "--machtrace-hang-action=exit")
    assert result.returncode < 0
    assert "+++ machtrace: the run ends +++" in result.stderr


def test_a_marker_has_its_own_limit_and_action(tmp_path: Path) -> None:
    marked = """
import time, pytest
@pytest.mark.machtrace_hang(0.4, action="fail")
def test_marked():
    time.sleep(60)
def test_unmarked():
    time.sleep(1)
@pytest.mark.machtrace_hang(0)
def test_without():
    pass
"""
    result = run(tmp_path, marked)
    assert "1 failed, 2 passed" in result.stdout
    assert "test_marked hangs" in result.stderr
    assert "test_unmarked" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machtrace-hang=soon",), "'soon' is not a number of seconds"),
        (("--machtrace-hang=-1",), "'-1' is not a number of seconds"),
        (("--machtrace-hang=nan",), "'nan' is not a number of seconds"),
        (("--machtrace-hang-action=stop",), "choose one of print, fail, exit"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(tmp_path, "def test_it(): pass\n", *arguments)
    assert result.returncode == 4
    assert message in result.stderr


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("'soon'", "machtrace_hang of test_it.py::test_it: 'soon' is not a number of seconds"),
        ("1, 'stop'", "choose one of print, fail, exit"),
        ("1, timeout=3", "machtrace_hang of test_it.py::test_it: pass seconds and action"),
    ],
)
def test_a_wrong_marker_is_a_usage_error(tmp_path: Path, marker: str, message: str) -> None:
    marked = f"import pytest\n@pytest.mark.machtrace_hang({marker})\ndef test_it(): pass\n"
    result = run(tmp_path, marked)
    assert result.returncode == 4
    assert message in result.stderr + result.stdout
    assert "INTERNALERROR" not in result.stdout


def test_nothing_is_started_or_loaded_without_a_limit(tmp_path: Path) -> None:
    looks = """
import subprocess, sys
def test_it(request):
    assert request.config.pluginmanager.get_plugin("machtrace-hang") is None
    assert {name for name in sys.modules if name.startswith("machtrace.")} == {
        "machtrace.pytest_plugin"}
"""
    result = run(tmp_path, looks)
    assert result.returncode == 0, result.stdout


def test_children_that_a_test_forks_do_not_end_the_watching(tmp_path: Path) -> None:
    forks = """
import os, time
def test_fork():
    if not os.fork():
        os._exit(0)
    os.wait()
def test_slow():
    time.sleep(3)
"""
    result = run(tmp_path, forks, "--machtrace-hang=0.4", "-W", "ignore")
    assert result.returncode == 0
    assert "test_slow hangs" in result.stderr
