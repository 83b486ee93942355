"""The programs: built, started, given commands; and the command that watches them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.hangs.incidents import Line, parse_line
from tests.support.hangs.truth import boot_ns

SOURCES = Path(__file__).parents[2] / "lab" / "hangs" / "programs"
ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
"""Seconds after which a program or a watcher that does not answer fails the run."""
WATCH_FLAGS = ("--hang", "100ms", "--deadlocks", "--format", "jsonl")


_PLACE = """
import os, sys
# Above both of the wanted numbers first, so that neither overwrites the other.
truth, release = (__import__("fcntl").fcntl(int(fd), 0, 10) for fd in sys.argv[1:3])
os.dup2(truth, 3), os.dup2(release, 4)
os.closerange(5, 256)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Places both descriptors where the programs expect them; shells do so with small numbers only."""


class LabError(Exception):
    """A program or the watcher did not do its part."""


def build(folder: Path) -> None:
    """Compile the C sources that have changed into a folder.

    Raises:
        subprocess.CalledProcessError: the compiler refused them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in (
        ("loop", ["-pthread"]),
        ("burner", []),
        ("resources", ["-pthread"]),
        ("keep_gil", ["-shared", "-fPIC"]),
    ):
        source = SOURCES / f"{name}.c"
        built = folder / name
        if source.exists() and (
            not built.exists() or built.stat().st_mtime < source.stat().st_mtime
        ):
            subprocess.run(["gcc", "-O1", "-g", *flags, source, "-o", built], check=True)


def missing_reason(program: str) -> str | None:
    """Return why a program cannot be run here, or None."""
    tool = {"c": "gcc", "node": "node"}.get(program)
    return f"{tool} is not installed" if tool and shutil.which(tool) is None else None


def command_of(program: str, mode: str, folder: Path, launch_ms: int = 0) -> list[str]:
    """Return the command line of a program."""
    launch = [str(launch_ms)] if launch_ms else []
    if program == "c":
        return [str(folder / "loop"), mode, *launch]
    if program == "python":
        return [sys.executable, str(SOURCES / "loop.py"), mode, *launch]
    offset = boot_ns() - time.monotonic_ns()
    return ["node", "--expose-gc", str(SOURCES / "loop.js"), mode, str(offset)]


class Program:
    """A running program; use it with ``with``."""

    def __init__(
        self,
        program: str,
        mode: str,
        folder: Path,
        *,
        launch_ms: int = 0,
        watches_self: Path | None = None,
    ) -> None:
        """Start it.

        Args:
            program: ``c``, ``python`` or ``node``.
            mode: how its loop waits.
            folder: of the compiled programs, and its working directory.
            launch_ms: the time until it is ready.
            watches_self: where a Python program that watches itself has its record.
        """
        truth_read, truth_write = os.pipe()
        release_read, self._release = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-ISc", _PLACE, str(truth_write), str(release_read)),
                    *command_of(program, mode, folder, launch_ms),
                ],
                stdin=subprocess.PIPE,
                cwd=folder,
                pass_fds=(truth_write, release_read),
                env={
                    **os.environ,
                    "KEEP_GIL": str(folder / "keep_gil"),
                    "WATCH_SELF": "" if watches_self is None else str(watches_self),
                },
            )
        finally:
            os.close(truth_write)
            os.close(release_read)
        self.pid = self._process.pid
        self.lines: list[Mapping[str, Any]] = []
        self._arrived = threading.Condition()
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, args=(open(truth_read, "rb"),))  # noqa: PTH123, SIM115
        self._reader.start()

    def _read(self, source: IO[bytes]) -> None:
        with source:
            for text in source:
                with self._arrived:
                    self.lines.append(json.loads(text))
                    self._arrived.notify_all()
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait for the end of its launch.

        Raises:
            LabError: it exited.
        """
        self._wait(lambda: any("ready" in line for line in self.lines), "its launch")

    def send(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def wait_for(self, step: int, count: int = 1) -> None:
        """Wait for the truth of a step's callbacks.

        Raises:
            LabError: it exited, or does not answer.
        """
        self._wait(
            lambda: sum(line.get("id") == step for line in self.lines) >= count, f"step {step}"
        )

    def _wait(self, condition: object, subject: str) -> None:
        assert callable(condition)
        with self._arrived:
            self._arrived.wait_for(lambda: condition() or self._is_closed, PATIENCE)
            if not condition():
                raise LabError(f"the program {self.pid} did not finish {subject}")

    def release(self) -> None:
        """End a callback that lasts until it is released."""
        os.write(self._release, b"x")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()

    @property
    def threads(self) -> int:
        """The number of its threads."""
        return len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208 (no paths are needed)

    def stop(self) -> None:
        """End it, and collect what it stated."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._release >= 0:
            os.close(self._release)
            self._release = -1


class Watcher:
    """A running ``machtrace watch``; use it with ``with``."""

    def __init__(
        self, pid: int, *, flags: Sequence[str] = WATCH_FLAGS, reports: Path | None = None
    ) -> None:
        """Start it."""
        folder = [] if reports is None else ["-o", str(reports)]
        self._pid = pid
        self.process = subprocess.Popen(
            [sys.executable, "-m", "machtrace", "watch", str(pid), *flags, *folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        self.lines: list[Line] = []
        self.errors = b""
        self.status: int | None = None
        self._arrived = threading.Condition()
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._drain)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as source:
            for text in source:
                line = parse_line(boot_ns(), text.decode())
                with self._arrived:
                    self.lines.append(line)
                    self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as source:
            for text in source:
                self.errors = (self.errors + text)[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()

    def wait_until_watching(self) -> None:
        """Wait until it has files of the program open, and a moment more.

        Raises:
            LabError: it exited.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._holds_files():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.finish()
                raise LabError(f"the watcher did not start: {self.errors.decode()}")
            time.sleep(0.02)
        time.sleep(0.4)

    def _holds_files(self) -> bool:
        folder = f"/proc/{self.process.pid}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 (no paths are needed)
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith(f"/proc/{self._pid}/"):  # noqa: PTH115
                        return True
        return False

    def wait_for(self, condition: object) -> None:
        """Wait until a function of the lines is true.

        Raises:
            LabError: it is not, for a minute.
        """
        assert callable(condition)
        with self._arrived:
            if not self._arrived.wait_for(lambda: condition(self.lines), PATIENCE):
                last = [line.values for line in self.lines[-2:]]
                raise LabError(f"the watcher did not answer; its last lines are {last}")

    def cpu_ns(self) -> int:
        """Return the processor time of its threads so far."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total

    def finish(self) -> None:
        """Let it end, after its target or by SIGINT, and collect its lines."""
        if self.status is not None:
            return
        for wait, act in ((3.0, self.process.terminate), (5.0, self.process.kill)):
            try:
                self.process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                act()
        self.status = self.process.wait()
        for reader in self._readers:
            reader.join()


@contextmanager
def burners(count: int, folder: Path) -> Iterator[None]:
    """Run processes that use all the processor time they are given."""
    processes = [subprocess.Popen([folder / "burner"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
