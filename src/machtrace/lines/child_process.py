"""Starting the child processes that make indices, and telling what became of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import BinaryIO, NamedTuple

from machtrace.lines.worker import REFUSED

_COMPLAINT = 400
"""Characters of what the child said last that are told."""


class WorkerAnswer(NamedTuple):
    """What a child process wrote, and how it ended."""

    output: bytes
    """All of it that came in time."""
    problem: str | None
    """Why there may be no more of it; None where the child ended well."""
    was_started: bool = True


def run_worker(
    module: str, arguments: Sequence[str], given: bytes | memoryview | BinaryIO, *, seconds: float
) -> WorkerAnswer:
    """Run a module of ours in a process of its own, and wait for it. Raises nothing.

    Args:
        module: its full name.
        arguments: of its command line.
        given: what is at its standard input; of a file, from where it is now.
        seconds: after so many, by the clock on the wall, the child is ended.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # a program that embeds Python
        reason = "no process can be started to read debug information (no Python executable)"
        return WorkerAnswer(b"", reason, was_started=False)
    data, file = (given, None) if isinstance(given, bytes | memoryview) else (None, given)
    try:
        done = subprocess.run(  # noqa: S603 (our own interpreter and arguments)
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=file,
            input=data,
            capture_output=True,
            env=worker_environment(),
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"debug information was not read within {seconds:.0f} seconds"
        return WorkerAnswer(error.stdout or b"", reason)
    except OSError as error:
        reason = f"no process could be started to read debug information ({error})"
        return WorkerAnswer(b"", reason, was_started=False)
    problem = _why_it_ended(done.returncode, done.stderr) if done.returncode else None
    return WorkerAnswer(done.stdout, problem)


def worker_environment() -> dict[str, str]:
    """This process's, with its ``sys.path``: the child is to find the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def _why_it_ended(status: int, complaint: bytes) -> str:
    """What became of a child with an exit status that is not 0, and with what it said last."""
    said = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2][-_COMPLAINT:]
    if status == REFUSED:
        return f"debug information cannot be read ({said})"
    if status < 0:
        try:
            name = Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the reader of debug information died ({name})"
    return f"the reader of debug information ended with status {status} ({said})"
