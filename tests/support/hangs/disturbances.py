"""Acts of the runner on a program: stops, freezes, quotas, debuggers, burners."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.support.hangs.programs import Program, Watcher, burners
from tests.support.hangs.scenarios import Step
from tests.support.hangs.truth import Class, Event, boot_ns

_V1 = Path("/sys/fs/cgroup")
_BURNERS = 12
_QUOTA_US, _PERIOD_US = 5_000, 100_000


def _unified() -> Path:
    return _V1 / "unified" if (_V1 / "unified").exists() else _V1


@contextmanager
def _group(parent: Path) -> Iterator[Path]:
    """Create a control group, and remove it after its processes have left it."""
    folder = Path(tempfile.mkdtemp(prefix="machtrace-hangs-", dir=parent))
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        for _ in range(50):
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.01)
            else:
                break


@cache
def missing_reason(name: str) -> str | None:
    """Return why the runner cannot do this here, or None."""
    if name == "@gdb":
        return None if shutil.which("gdb") else "gdb is not installed"
    required = {
        "@freeze-v1": (_V1 / "freezer", "freezer.state"),
        "@freeze-v2": (_unified(), "cgroup.freeze"),
        "@quota": (_V1 / "cpu", "cpu.cfs_quota_us"),
    }.get(name)
    if required is None:
        return None
    parent, file = required
    try:
        with _group(parent) as folder:
            exists = (folder / file).exists()
    except OSError as error:
        return f"no control group can be created in {parent}: {error.strerror}"
    return None if exists else f"control groups in {parent} have no {file}"


def _stop(program: Program, _watcher: Watcher | None, seconds: float, _folder: Path) -> None:
    os.kill(program.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(program.pid, signal.SIGCONT)


def _freeze_v1(program: Program, _watcher: Watcher | None, seconds: float, _folder: Path) -> None:
    with _group(_V1 / "freezer") as group:
        (group / "cgroup.procs").write_text(str(program.pid))
        (group / "freezer.state").write_text("FROZEN")
        time.sleep(seconds)
        (group / "freezer.state").write_text("THAWED")


def _freeze_v2(program: Program, _watcher: Watcher | None, seconds: float, _folder: Path) -> None:
    with _group(_unified()) as group:
        (group / "cgroup.procs").write_text(str(program.pid))
        (group / "cgroup.freeze").write_text("1")
        time.sleep(seconds)
        (group / "cgroup.freeze").write_text("0")


def _quota(program: Program, _watcher: Watcher | None, seconds: float, _folder: Path) -> None:
    with _group(_V1 / "cpu") as group:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        (group / "cgroup.procs").write_text(str(program.pid))
        time.sleep(seconds)


def _gdb(program: Program, _watcher: Watcher | None, seconds: float, _folder: Path) -> None:
    subprocess.run(
        [
            *("gdb", "-nx", "-batch", "-p", str(program.pid)),
            *("-ex", f"shell sleep {seconds}", "-ex", "detach"),
        ],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _late_watcher(_program: Program, watcher: Watcher | None, seconds: float, _: Path) -> None:
    if watcher is None:
        return
    with suppress(ProcessLookupError):
        os.kill(watcher.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(watcher.process.pid, signal.SIGCONT)


def _burn(_program: Program, _watcher: Watcher | None, seconds: float, folder: Path) -> None:
    with burners(_BURNERS, folder):
        time.sleep(seconds)


_ACTS: dict[str, Callable[[Program, Watcher | None, float, Path], None]] = {
    "@stop": _stop,
    "@freeze-v1": _freeze_v1,
    "@freeze-v2": _freeze_v2,
    "@quota": _quota,
    "@gdb": _gdb,
    "@late-watcher": _late_watcher,
    "@burners": _burn,
}


def disturb(program: Program, watcher: Watcher | None, step: Step, folder: Path) -> Event | None:
    """Do it; return when it was, or None if it cannot be done here."""
    if missing_reason(step.action):
        return None
    began = boot_ns()
    _ACTS[step.action](program, watcher, step.ms / 1000, folder)
    # The program, or the watcher, needs a moment to be as before.
    return Event(step.id, step.action, began, boot_ns(), kind=Class.QUIET)
