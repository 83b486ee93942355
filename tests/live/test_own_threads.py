"""Threads of the process that runs the tests, stopped by a signal."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import machtrace as mt
from machtrace.errors import TargetError, TargetSpecError
from machtrace.model.symbol import CallStack

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")


@contextmanager
def running(name: str, body: Callable[[threading.Event], object]) -> Iterator[threading.Thread]:
    """Start a thread and end it with the block, if its body waits for the event."""
    begun, done = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        body(done)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    assert begun.wait(20)
    try:
        yield thread
    finally:
        done.set()
        thread.join(20)
        assert not thread.is_alive()


def names(stack: CallStack) -> list[str]:
    """Return the names of a stack's functions."""
    return [frame.symbol.name if frame.symbol else "" for frame in stack.frames]


def wait_for_frame(thread: object, wanted: str) -> list[str]:
    """Return the stack once a function is on it.

    On a busy machine it takes long to capture a thread that holds the interpreter's lock: the
    capturing thread releases it just before, and the other must be scheduled by then. A thread that
    begins blocks all signals until the C library has prepared it.
    """
    deadline = time.monotonic() + 100
    functions: list[str] = []
    while True:
        with suppress(TargetError):
            functions = names(mt.backtrace(thread, lines=False))
        if any(wanted in name.replace("thread", "") for name in functions):
            return functions
        assert time.monotonic() < deadline, functions
        time.sleep(0.001)


def compress(done: threading.Event) -> None:
    """Run C code without the interpreter's lock."""
    block = bytes(range(256)) * 2048
    while not done.is_set():
        zlib.compress(block, 9)


def test_a_running_thread_in_c_code_has_its_whole_stack() -> None:
    """From the interrupted loop to the thread's start."""
    with running("busy", compress) as thread:
        found = wait_for_frame(thread, "deflate")
        stack = mt.backtrace(thread, lines=False)
    assert found[-2:] == ["start_thread", "__clone3"] or "clone" in found[-1]
    assert stack.stop.is_complete
    assert stack.thread.name == "busy"
    assert stack.stopped_for_ns is not None


def test_a_system_call_continues_after_the_capture() -> None:
    """The stack shows the call, and its result is unchanged."""
    reader, writer = os.pipe()
    got: list[bytes] = []

    def body(done: threading.Event) -> None:
        del done
        got.append(os.read(reader, 16))

    with running("reader", body) as thread:
        wait_for_frame(thread, "read")
        for _ in range(20):
            assert mt.backtrace(thread, lines=False).stop.is_complete
        os.write(writer, b"whole")
    assert got == [b"whole"]
    os.close(reader)
    os.close(writer)


def test_a_thread_is_named_by_object_id_pthread_or_name() -> None:
    with running("chosen", threading.Event.wait) as thread:
        assert thread.native_id is not None
        ways = (thread, thread.native_id, thread.ident, "chosen", str(thread.native_id))
        found = [mt.backtrace(way, lines=False).thread.id for way in ways]
        assert found == [thread.native_id] * len(ways)
        main = mt.backtrace("main", lines=False).thread
    assert main.is_main
    assert main.id == os.getpid()


def test_a_thread_unknown_to_python_is_found_by_its_pthread() -> None:
    """A native library may have started it."""
    import _thread

    begun, done = threading.Event(), threading.Event()
    said: list[int] = []

    def body() -> None:
        said.append(_thread.get_native_id())
        begun.set()
        done.wait()

    pthread = _thread.start_new_thread(body, ())
    assert begun.wait(20)
    try:
        assert mt.backtrace(pthread, lines=False).thread.id == said[0]
    finally:
        done.set()


@pytest.mark.parametrize("wanted", [True, 1.5, b"main", 1 << 62, "no such thread"])
def test_values_that_name_no_thread_are_refused(wanted: object) -> None:
    with pytest.raises(TargetSpecError):
        mt.backtrace(wanted)


def test_all_threads_are_refused_where_one_is_required() -> None:
    with pytest.raises(TargetSpecError, match="'all' selects every thread") as refused:
        mt.backtrace("all")
    assert "machtrace.backtraces()" in refused.value.remedy


def test_a_thread_not_started_or_ended_is_refused() -> None:
    ended = threading.Thread(target=int, name="ended")
    with pytest.raises(TargetSpecError, match="ended"):
        mt.backtrace(ended)
    ended.start()
    ended.join()
    with pytest.raises(TargetSpecError, match="ended"):
        mt.backtrace(ended)


def test_all_threads_list_the_caller_without_a_stack() -> None:
    """A thread cannot stop itself."""
    with running("other", threading.Event.wait) as thread, mt.open_target("self") as target:
        listed = {info.id for info in target.threads()}
        copied = {one.info.id for one in target.snapshot().threads}
        own = threading.get_native_id()
        assert {thread.native_id, own} <= listed
        assert thread.native_id in copied
        assert own not in copied


def test_the_calling_threads_frames_equal_those_of_glibc() -> None:
    """``backtrace`` of glibc reads the same tables with other code."""
    libc = ctypes.PyDLL(None)
    if not hasattr(libc, "backtrace"):
        pytest.skip("the C library has no backtrace")
    buffer = (ctypes.c_void_p * 1024)()
    count = libc.backtrace(buffer, 1024)
    theirs = [buffer[index] for index in range(count)]
    ours = [frame.address.address for frame in mt.backtrace(lines=False, limit=1024).frames]
    # The inner ends differ by how each was called from this function's frame.
    pairs = zip(theirs[::-1], ours[::-1], strict=False)
    common = next((number for number, (a, b) in enumerate(pairs) if a != b), len(ours))
    assert common >= len(ours) - 4
    assert common >= 10


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_a_limit_returns_exactly_that_number_of_frames(limit: int) -> None:
    """Also for the calling thread, whose innermost frames are machtrace's and hidden."""
    whole = mt.backtrace()
    limited = mt.backtrace(limit=limit)

    assert len(limited.frames) == limit
    assert limited.gap is not None
    assert limited.gap.count == len(whole.frames) - limit
    assert limited.frames[0].symbol == whole.frames[0].symbol


def test_a_thread_that_holds_the_interpreters_lock_is_copied() -> None:
    """It is in a function that does not release the lock."""
    libc = ctypes.PyDLL(None)
    libc.qsort.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    compare = ctypes.cast(libc.memcmp, ctypes.c_void_p)
    block = ctypes.create_string_buffer(os.urandom(1 << 20))

    def body(done: threading.Event) -> None:
        while not done.is_set():
            libc.qsort(block, 1 << 14, 64, compare)

    with running("holder", body) as thread:
        assert any("sort" in name for name in wait_for_frame(thread, "sort"))


def test_a_thread_that_blocks_all_signals_is_a_problem() -> None:
    """The others are copied; the late signal does no harm once the thread unblocks it."""
    unblock, blocked = threading.Event(), threading.Event()

    def body(done: threading.Event) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        blocked.set()
        unblock.wait()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        done.wait()

    with (
        running("deaf", body) as deaf,
        running("other", threading.Event.wait) as other,
        mt.open_target("self") as target,
    ):
        assert blocked.wait(20)
        for _ in range(3):
            snapshot = target.snapshot()
            reasons = {item.thread: str(item.error) for item in snapshot.problems}
            assert "blocks the signal" in reasons[deaf.native_id]  # type: ignore[index]
            assert other.native_id in {item.info.id for item in snapshot.threads}
        unblock.set()
        deadline = time.monotonic() + 20
        # Other threads may block the signal forever: those of a library that another test loaded.
        while deaf.native_id in {item.thread for item in target.snapshot().problems}:
            assert time.monotonic() < deadline


def test_concurrent_captures_wait_for_their_turns_and_are_whole() -> None:
    failures: list[BaseException] = []

    def body(done: threading.Event) -> None:
        try:
            with mt.open_target("self") as target:
                while not done.is_set():
                    for thread in target.snapshot().threads:
                        assert thread.stack.data
        except BaseException as error:  # noqa: BLE001 - reported in the main thread
            failures.append(error)

    with running("first", body), running("second", body), running("third", body):
        time.sleep(0.5)
    assert not failures


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=250,  # long on a busy machine: children rebuild all rules and names
        check=False,
        env={**os.environ, **environment},
    )


def test_a_forked_child_captures_itself() -> None:
    """Also if another thread was capturing during the fork."""
    code = """
import os, threading, machtrace as mt
done = threading.Event()
def always():
    with mt.open_target("self") as target:
        while not done.is_set():
            target.snapshot()
thread = threading.Thread(target=always, daemon=True)
thread.start()
for _ in range(20):
    mt.backtrace("main", lines=False)
    child = os.fork()
    if not child:
        whole = mt.backtrace(lines=False).stop.is_complete and mt.call_stack_symbols()
        os._exit(0 if whole else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()  # what runs while the interpreter ends may fail
thread.join()
print("well")
"""
    done = _run(code)
    assert (done.stdout, done.stderr) == ("well\n", "")


@pytest.mark.parametrize(
    ("number", "message"),
    [("37", "handles signal 37"), ("9", "not a real-time"), ("x", "not a real")],
)
def test_an_unusable_signal_is_an_error_with_a_remedy(number: str, message: str) -> None:
    """The remedy names the environment variable that selects another signal."""
    code = """
import signal, threading, machtrace as mt
signal.signal(37, lambda *_: None)
threading.Thread(target=threading.Event().wait, daemon=True).start()
with mt.open_target("self") as target:
    try:
        target.snapshot()
    except mt.MachtraceError as error:
        print(error, error.remedy)
"""
    done = _run(code, MACHTRACE_SIGNAL=number)
    assert message in done.stdout
    assert "MACHTRACE_SIGNAL" in done.stdout


def test_a_signal_with_a_foreign_handler_is_not_replaced() -> None:
    """Another one is chosen, unless the user has named one."""
    code = """
import signal, threading, machtrace as mt
from machtrace._native import _inprocess
from machtrace.targets.inprocess import copier
copier.ANSWER_LIMIT_NS = 10_000_000_000  # a busy machine schedules it late
threading.Thread(target=threading.Event().wait, daemon=True).start()
with mt.open_target("self") as target:
    target.snapshot()
    first = _inprocess.signal_in_use()
    signal.signal(first, signal.SIG_IGN)
    assert not target.snapshot().problems
    assert _inprocess.signal_in_use() != first
    assert signal.getsignal(first) is signal.SIG_IGN
print("well")
"""
    assert _run(code).stdout == "well\n"


CALLER = """
import os, machtrace as mt
def count():
    stacks = mt.backtraces(lines=False)
    assert any("_PyEval" in frame.symbol.name for frame in stacks[0].frames if frame.symbol)
    return len(stacks)
print(count(), flush=True)
child = os.fork()
print(count(), flush=True)
if child:
    os.waitpid(child, 0)
"""


def test_the_calling_thread_has_a_stack_in_a_program_of_one_thread():
    """In the child of a fork, too."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # numpy's import starts no threads
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"1"}


def test_all_threads_of_this_process_are_the_calling_one_and_the_others():
    with running("other", threading.Event.wait):
        stacks = mt.backtraces(lines=False)
        listed = {thread.native_id for thread in threading.enumerate()}
    assert listed <= {stack.thread.id for stack in stacks}
    assert [stack.thread.is_main for stack in stacks].count(True) == 1
