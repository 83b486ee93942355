"""Capturing this process while one of its threads holds a lock that nearly all code needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")

PROGRAMS = Path(__file__).parent / "programs"
NATIVE = Path(__file__).parents[2] / "native"
DOCUMENT = Path(__file__).parents[2] / "docs/live-capture.md"
CORE = [
    *sorted(NATIVE.glob("inprocess/core/linux/*.c")),
    *(NATIVE / "inprocess/core" / name for name in ("batches.c", "ring.c", "series.c")),
    NATIVE / "common/linux/registers.c",
]
LIMIT_S = 100


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a program or library of this folder with the capture core."""
    folder = tmp_path_factory.mktemp("own")

    def compile_program(name: str, *flags: str, core: bool = True) -> Path:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        program = folder / "".join((name, *flags))
        command = ["cc", "-std=gnu11", "-O1", "-g", "-pthread", f"-I{NATIVE}", *flags]
        command += [str(PROGRAMS / f"{name}.c"), *(map(str, CORE) if core else ())]
        done = subprocess.run(
            [*command, "-o", str(program), "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"{name}.c cannot be compiled here: {done.stderr[-300:]}")
        return program

    return compile_program


@pytest.mark.parametrize("lock", ["malloc", "constructor", "list"])
def test_the_core_needs_no_lock_that_a_thread_holds(
    lock: str, compiled: Callable[..., Path]
) -> None:
    """The allocator's, the loader's (in a constructor), and the loader's list's (in a callback).

    The thread releases it only after 20 captures: one that needed the lock would never end.
    """
    program = compiled("own_locks", "-rdynamic", "-fno-builtin")
    plugin = compiled("own_locks", "-DPLUGIN", "-fPIC", "-shared", core=False)
    done = subprocess.run(
        [str(program), lock, str(plugin)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20


def test_which_system_calls_end_early_is_documented(compiled: Callable[..., Path]) -> None:
    """The result of each call equals the table in docs/live-capture.md."""
    if not DOCUMENT.exists():
        pytest.skip("the documentation is not here")
    done = subprocess.run(
        [str(compiled("interrupted"))], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = dict(line.split(": ") for line in done.stdout.splitlines())
    rows = [line.split("|")[1:3] for line in DOCUMENT.read_text().splitlines() if "| `" in line]
    documented = {
        name.strip().strip("`"): outcome.strip().strip("`")
        for names, outcome in rows
        for name in names.split(", ")
    }
    assert len(seen) > 20
    assert {name: documented.get(name) for name in seen} == seen


PATIENT = """
from machtrace.targets.inprocess import copier
copier.ANSWER_LIMIT_NS = 10_000_000_000  # a busy machine schedules it late
"""


def run(code: str, begin: str = PATIENT) -> subprocess.CompletedProcess[str]:
    """Run a process; where it hangs, fail with its stacks."""
    limit = f"import faulthandler; faulthandler.dump_traceback_later({LIMIT_S - 10}, exit=True)\n"
    return subprocess.run(
        [sys.executable, "-c", limit + begin + code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


UNDER_THE_LOCK = """
import ctypes, threading, time
import machtrace as mt
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
libc = ctypes.CDLL(None)
within, done = threading.Event(), threading.Event()
def callback(info, size, data):
    within.set()
    while not done.is_set():
        sum(range(1000))
    return 1
wrapped = kind(callback)
thread = threading.Thread(target=libc.dl_iterate_phdr, args=(wrapped, None))
"""


@pytest.mark.parametrize(
    "capture",
    [
        "mt.call_stack_symbols()",
        "mt.backtraces('self')",
        "mt.backtraces('self', python=True)",
        "mt.backtraces('self', lines=False)",
        "mt.backtrace(thread)",
        "sample('self', duration=0.1)",
        "target.snapshot().threads",
    ],
)
def test_a_python_function_under_the_loaders_lock(
    capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in threadpoolctl.

    It waits for the interpreter's lock, which the capturing thread holds. It returns only after
    the captures, and what they look up was not looked up before.
    """
    monkeypatch.setenv("MACHTRACE_CACHE", str(tmp_path))
    done = run(
        f"""{UNDER_THE_LOCK}
sample = mt.sample
with mt.open_target("self") as target:
    mt.call_stack_symbols(), mt.backtraces("self", symbolicate=False), target.snapshot()
    thread.start()
    within.wait()
    for _ in range(2):
        assert {capture}
    done.set()
    thread.join()
print("well")
"""
    )
    assert done.stdout == "well\n", done.stderr


@pytest.mark.parametrize(
    "capture",
    [
        "mt.backtraces('self')",
        "mt.call_stack_symbols()",
        "mt.sample('self', duration=0.1)",
        "mt.watch('self').__enter__()",
    ],
)
def test_the_first_capture_while_images_are_listed(capture: str) -> None:
    """It imports extensions; each of them meets a callback that waits for the interpreter's lock.

    One that was loaded with that lock held would never end.
    """
    done = run(
        f"""
import ctypes, os, threading, time
import machtrace as mt
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
libc = ctypes.CDLL(None)
within = threading.Event()
def callback(info, size, data):
    within.set()
    for _ in range(5):
        time.sleep(0.0005)
    return 1
wrapped = kind(callback)
def list_images():
    while True:
        libc.dl_iterate_phdr(wrapped, None)
        time.sleep(0.0005)
threading.Thread(target=list_images, daemon=True).start()
within.wait()
assert {capture}
print("well", flush=True)
os._exit(0)
""",
        begin="",
    )
    assert done.stdout == "well\n", done.stderr


def test_the_loaders_lock_is_known_after_an_import_by_a_constructor(
    compiled: Callable[..., Path],
) -> None:
    """A thread in dlopen has another lock of the loader, which looks the same."""
    library = compiled("calls_back", "-fPIC", "-shared", core=False)
    done = run(
        f"""{UNDER_THE_LOCK}
import os, sys
assert "machtrace._native._inprocess" not in sys.modules
@ctypes.CFUNCTYPE(None)
def import_extension():
    import machtrace._native._inprocess
os.environ["CALLED_BACK"] = str(ctypes.cast(import_extension, ctypes.c_void_p).value)
assert libc.dlopen({str(library)!r}.encode(), os.RTLD_NOW)
assert "machtrace._native._inprocess" in sys.modules
from machtrace._native import _inprocess
first = mt.call_stack_symbols()
changes = _inprocess.image_changes()
thread.start()
within.wait()
assert _inprocess.image_changes() != changes  # unknown
assert mt.call_stack_symbols()
done.set()
thread.join()
assert _inprocess.image_changes() == changes
print("well")
""",
        begin="",
    )
    assert done.stdout == "well\n", done.stderr


def test_python_captures_while_a_constructor_runs(compiled: Callable[..., Path]) -> None:
    """The thread is in dlopen and holds the loader's lock; its stack shows the constructor.

    The constructor ends only after it was captured: waiting for it would never end.
    """
    plugin = compiled("slow_constructor", "-fPIC", "-shared", core=False)
    done = run(
        f"""
import ctypes, os, threading
import machtrace as mt
reading, writing = os.pipe()
os.environ["END_OF_CONSTRUCTOR"] = str(reading)
with mt.open_target("self") as target:
    mt.backtraces("self"), target.snapshot()
    thread = threading.Thread(target=ctypes.CDLL(None).dlopen, args=({str(plugin)!r}.encode(), 2))
    thread.start()
    names = set()
    while "slow_constructor" not in names:
        stacks = mt.backtraces("self", lines=False)
        names = {{f.symbol.name for s in stacks for f in s.frames if f.symbol}}
        assert thread.is_alive()
    os.write(writing, b"x")
    thread.join()
print("well")
"""
    )
    assert done.stdout == "well\n", done.stderr


def test_a_thread_that_waits_for_a_child_of_vfork(compiled: Callable[..., Path]) -> None:
    """It sleeps uninterruptibly and handles no signal: its reason is reported, others are copied.

    The child ends only after the capture: waiting for the thread would never end.
    """
    library = compiled("wait_for_vfork", "-fPIC", "-shared", core=False)
    done = run(
        f"""
import ctypes, os, threading, time
import machtrace as mt
library = ctypes.CDLL({str(library)!r})
reading, writing = os.pipe()
with mt.open_target("self") as target:
    other = threading.Thread(target=time.sleep, args=(100,), daemon=True)
    waiting = threading.Thread(target=library.wait_for_vfork, args=(reading,))
    other.start(), waiting.start()
    while True:
        snapshot = target.snapshot()
        reasons = {{one.thread: str(one.error) for one in snapshot.problems}}
        if "uninterruptible" in reasons.get(waiting.native_id, ""):
            break
        assert waiting.is_alive(), reasons
    copied = {{one.info.id: one for one in snapshot.threads}}
    assert other.native_id in copied
    assert not copied[waiting.native_id].stack.data or waiting.native_id in copied
    os.write(writing, b"x")
    waiting.join()
    while os.path.exists(f"/proc/self/task/{{waiting.native_id}}"):
        time.sleep(0.001)  # Python's part of it ends first
    assert not target.snapshot([waiting.native_id or 0]).threads
print("well")
"""
    )
    assert done.stdout == "well\n", done.stderr
