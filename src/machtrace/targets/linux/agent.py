"""Programs that this process starts with the agent preloaded, so that their calls are recorded."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import TargetError, TargetSpecError
from machtrace.targets.child_process import StartedProgram

LIBRARY = "libmachtrace.so"
_PATTERN = "%p-%t.spool"
"""A process that runs another program has a spool for each."""
_SUFFIX = "*.spool"
_MAX_LENGTH = 4000
"""Bytes of a list of functions in the environment, as agent/start_at_load.c has room for."""
_READ = 1 << 16
_DRAIN_S = 1.0
_STDERR = 2


class Mark(NamedTuple):
    """A moment that was observed from outside."""

    time_ns: int
    """Since 1970."""
    text: str


class AgentProgram:
    """A program that records calls of some functions, to spools in a folder.

    Its children record, too, each to a spool of its own. Its standard output is this process's
    standard error, so that a report has the standard output for itself.

    Args:
        arguments: the program and its arguments.
        functions: the functions to watch: what its images import of these.
        folder: for the spools; it exists.
        consent: the function that is called when the user consents.
        library: the agent, if that is not the installed one.
        line: a mark is made when a line of the program's output has this text.
        key: whether a mark, ``consent``, is made when the return key is pressed; the program's
            standard input is empty then.

    Raises:
        TargetSpecError: this system is not Linux.
        TargetError: this installation has no agent.
        FileAccessError, TargetAccessError: the program cannot be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        functions: Sequence[str],
        folder: Path,
        *,
        consent: str | None = None,
        library: Path | None = None,
        line: str | None = None,
        key: bool = False,
    ) -> None:
        self.marks: list[Mark] = []
        self._folder = folder
        self._line = None if line is None else line.encode()
        environment = agent_environment(functions, folder, consent=consent, library=library)
        read, write = os.pipe() if line is not None else (-1, _STDERR)
        try:
            self.program = StartedProgram(
                arguments,
                environment=environment,
                stdin=_empty_input() if key else None,
                stdout=write,
            )
        except BaseException:
            if line is not None:
                os.close(read)
            raise
        finally:
            if line is not None:
                os.close(write)
        self._watchers = []
        if line is not None:
            self._watchers.append(_started(lambda: self._pass_output(read)))
        if key:
            _started(self._await_key)

    def spools(self) -> list[Path]:
        """Return the spools, after the program's end.

        Raises:
            TargetError: it wrote none.
        """
        for watcher in self._watchers:
            watcher.join(_DRAIN_S)
        files = sorted(self._folder.glob(_SUFFIX))
        if not files:
            raise TargetError(
                "the program did not load the agent",
                remedy="check whether it is linked statically, of another machine's instructions, "
                "or has more rights than its user (setuid)",
            )
        return files

    def _pass_output(self, source: int) -> None:
        """Copy the program's output to standard error, and look for the line."""
        rest = b""
        with os.fdopen(source, "rb", buffering=0) as output:
            while data := output.read(_READ):
                seen = time.time_ns()
                os.write(_STDERR, data)
                if self._line is None:
                    continue
                if self._line in rest + data:
                    self.marks.append(Mark(seen, self._line.decode()))
                    self._line = None
                else:
                    rest = (rest + data)[-len(self._line) :]

    def _await_key(self) -> None:
        if sys.stdin.readline():
            self.marks.append(Mark(time.time_ns(), "consent"))


def agent_environment(
    functions: Sequence[str],
    folder: Path,
    *,
    consent: str | None = None,
    library: Path | None = None,
) -> Mapping[str, str]:
    """Return the environment in which programs record calls; see :class:`AgentProgram`.

    Raises:
        TargetSpecError: this system is not Linux.
        TargetError: this installation has no agent.
    """
    if sys.platform != "linux":
        raise TargetSpecError(
            "programs are started with the agent on Linux only",
            remedy="link the agent into the app, and pass the spools: docs/agent.md",
        )
    if not functions:
        raise TargetSpecError(
            "the rules watch no C function, and in programs of Linux these are watched alone",
            remedy="pass rules for C functions; methods are those of Apple's systems",
        )
    path = agent_library() if library is None else library.resolve()
    names = ",".join(functions)
    if len(names) > _MAX_LENGTH:
        raise TargetSpecError(
            f"{len(functions)} functions: their names have more than {_MAX_LENGTH} bytes",
            remedy="pass rules that watch fewer functions",
        )
    before = os.environ.get("LD_PRELOAD")
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{path}:{before}" if before else str(path),
        "MACHTRACE_WATCH": names,
        "MACHTRACE_SPOOL": str(folder.resolve() / _PATTERN),
    }
    if consent is not None:
        environment["MACHTRACE_CONSENT"] = consent
    return environment


def agent_library() -> Path:
    """Return the agent of this installation.

    Raises:
        TargetError: it has none.
    """
    path = Path(str(resources.files("machtrace._native") / LIBRARY))
    if not path.exists():
        raise TargetError(
            f"this installation has no {LIBRARY}",
            remedy="build it by: make agent; and pass it with --agent",
        )
    return path


def _empty_input() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _started(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="machtrace output", daemon=True)
    thread.start()
    return thread
