"""Real processes to capture: each prints "ready" itself, and ends with its test."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
_PTRACE = "takes Linux: its processes are captured by ptrace and /proc"
_SIGNALS = "takes Linux: threads of this process are stopped by a signal there"
LINUX_MODULES = {
    "test_audit_breakpoints.py": "takes Linux: lldb-server and gdbserver are the peers",
    "test_audit_frida.py": "takes Linux: the agent that is loaded is that for Linux",
    "test_device_stand_in.py": "takes Linux: lldb-server is the stand-in for a device",
    "test_frida_linux.py": "takes Linux: Frida's images are held to /proc",
    "test_gdb_remote_peers.py": "takes Linux: lldb-server, gdbserver and qemu are the peers",
    "test_own_torture.py": "takes Linux: the torture reads /proc, and counts signals",
    "test_python_functions.py": _PTRACE,
    "test_sampling.py": _PTRACE,
}
"""Why a file's tests run on Linux only; of every other system it is not even imported."""
LINUX_TESTS = {
    "test_a_thread_that_blocks_all_signals_has_its_reason": _SIGNALS,
    "test_a_signal_that_cannot_be_had": _SIGNALS,
    "test_a_signal_that_somebody_else_took_is_left_to_them": _SIGNALS,
    "test_every_way_to_name_a_thread": "takes Linux: the main thread's id is the process id there",
    "test_the_calling_thread_as_glibc_sees_it": "takes glibc as the peer",
    "test_frames_are_those_of_glibc_and_of_the_exact_walk": "takes glibc as the peer",
    "test_the_programs_own_frames_keep_their_numbers": "takes Linux: it knows its folders",
    "test_what_the_cache_tells_apart": "takes Linux: sanitizers are preloaded as there",
}


class _LinuxModule(pytest.Module):
    """A module for Linux that is reported as skipped instead of imported."""

    def collect(self) -> Iterator[pytest.Item]:
        """Skip it, with its reason."""
        reason = LINUX_MODULES.get(self.path.name, _PTRACE)
        raise pytest.skip.Exception(reason, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip files for Linux as a whole elsewhere: they cannot even be imported there."""
    name = module_path.name
    if sys.platform == "linux" or not (name in LINUX_MODULES or name.startswith("test_linux_")):
        return None
    module: pytest.Module = _LinuxModule.from_parent(parent, path=module_path)
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests for Linux elsewhere."""
    for item in items:
        name = item.name.partition("[")[0]
        if sys.platform != "linux" and item.path.parent == HERE and name in LINUX_TESTS:
            item.add_marker(pytest.mark.skip(reason=LINUX_TESTS[name]))


DEADLINE_S = 120
PATIENCE_NS = 10_000_000_000
_LIMITS = {
    "linux.capture": ("STOP_LIMIT_NS",),
    "linux.freeze": ("STOP_LIMIT_NS",),
    "inprocess.copier": ("ANSWER_LIMIT_NS", "LOCKED_ANSWER_LIMIT_NS", "SLEEP_LIMIT_NS"),
    "inprocess.series": ("ANSWER_LIMIT_NS", "SLEEP_LIMIT_NS"),
}
"""Time limits of stops, by the module of ``machtrace.targets``."""
_RAN = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
COMPILE = ["-O2", "-fomit-frame-pointer", "-pthread"]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give threads more time to stop than users would wait: a busy machine schedules them late."""
    for name, limits in _LIMITS.items():
        try:
            module = importlib.import_module(f"machtrace.targets.{name}")
        except ImportError:
            continue  # of another system, or without its extension
        for limit in limits:
            monkeypatch.setattr(module, limit, PATIENCE_NS)


@pytest.fixture(scope="session")
def build() -> Iterator[Callable[..., Path]]:
    """Compile a program of this folder, once."""
    # Other users run some of them. pytest keeps its folders, and so does each run that begins
    # meanwhile, from all but their owner.
    parent = TemporaryDirectory(prefix="machtrace-programs-")
    folder = Path(parent.name).resolve()
    folder.chmod(0o755)

    def compile_program(name: str, *flags: str) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        program = folder / "-".join((name, *(flag.strip("-") for flag in flags)))
        if not program.exists():
            source = PROGRAMS / f"{name}.c"
            command = [compiler, *COMPILE, *flags, str(source), "-o", str(program)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{name}.c cannot be compiled here: {done.stderr.strip()[-200:]}")
        return program

    with parent:
        yield compile_program


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program and wait until it prints "ready"."""
    started: list[subprocess.Popen[str]] = []

    def run(*command: str | Path, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in reversed(started):  # tracers before those that they trace
        process.kill()
        process.communicate()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Poll a condition of another process until it is true."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"in vain: {what}"
            os.sched_yield()

    return wait


@pytest.fixture
def wait_blocked(wait_until: Callable[..., None]) -> Callable[..., None]:
    """Wait until all threads of a process, except the named ones, wait in a system call."""

    def look(task: Path) -> tuple[str, ...]:
        text = (task / "status").read_text()
        return tuple(
            line for line in text.splitlines() if line.startswith(("State", "Name", *_RAN))
        )

    def wait(pid: int, *running: str) -> None:
        last: dict[str, tuple[str, ...]] = {}

        def blocked() -> bool:
            """Return whether all threads sleep and none has run since the last poll."""
            nonlocal last
            before, last = last, {}
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    name, *rest = look(task)
                    if name.removeprefix("Name:").strip() not in running:
                        last[task.name] = (name, *rest)
            except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
                return False
            return last == before and all("S (" in state for _, state, *_ in last.values())

        wait_until(blocked, "all threads wait")

    return wait


@pytest.fixture
def copier() -> Any:
    """The copier of other processes' threads."""
    pytest.importorskip("machtrace._native._ptrace", reason="the extension is not built")
    from machtrace.targets.linux.capture import PtraceCopier

    return PtraceCopier()


@pytest.fixture(scope="session")
def gdb() -> Callable[[int], dict[str, Any]]:
    """Read registers, addresses and images of a process with gdb."""
    program = shutil.which("gdb")
    if program is None:
        pytest.skip("gdb is not installed")
    probe = [program, "-batch", "-nx", "-ex", "python print('python')"]
    if "python" not in subprocess.run(probe, capture_output=True, text=True, check=False).stdout:
        pytest.skip("gdb has no Python")

    def ask(pid: int) -> dict[str, Any]:
        command = [program, "-batch", "-nx", "-iex", "set debuginfod enabled off"]
        command += ["-p", str(pid), "-x", str(PROGRAMS / "gdb_frames.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        found = [line for line in done.stdout.splitlines() if line.startswith("JSON")]
        assert found, done.stderr
        answer: dict[str, Any] = json.loads(found[-1].removeprefix("JSON"))
        return answer

    return ask


@pytest.fixture
def as_nobody() -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a child process as an ordinary user; return its result, passed as JSON."""

    def run(function: Callable[[], Any]) -> Any:
        from machtrace.targets.linux.process import LinuxProcessTarget
        from machtrace.unwinder.unwinder import unwind

        # What is imported later might not be readable.
        with subprocess.Popen(["sleep", "60"]) as process:
            with LinuxProcessTarget(process.pid) as target:
                unwind(target.snapshot())
            process.kill()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                answer = json.dumps(function())
            except BaseException as error:  # noqa: BLE001 - pytest must not continue in the child
                answer = json.dumps(repr(error))
            os.write(writing, answer.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return json.loads(answer)

    return run
