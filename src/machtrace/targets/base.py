"""The interface of targets, and the selection of threads and of processes by name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import TargetSpecError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo

ALL_THREADS = "all"
_LISTED = 12
"""Threads named in an error."""


class Target(AbstractContextManager["Target"], Protocol):
    """A process, dead or alive, whose threads can be listed and copied.

    A context manager: on exit it releases what it opened and resumes every stopped thread.
    """

    @property
    def process(self) -> ProcessInfo:
        """The process's id, path and architecture."""
        ...

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, in the kernel's order.

        Raises:
            TargetGoneError: it exited.
        """
        ...

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Copy ``threads`` (None: all), each stopped only while it is copied.

        At most ``stack_limit`` bytes of each stack are copied. A thread that ends, or whose part
        of a core is bad, is left out and named in :attr:`Snapshot.problems`. As long as the images
        stay the same, :attr:`Snapshot.images` should be the same object: it is the key of what is
        cached about them.

        Raises:
            TargetGoneError: the process exited.
            TargetAccessError: the kernel refused.
        """
        ...

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        ...


@runtime_checkable
class PythonTarget(Protocol):
    """A target that can read Python functions."""

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Capture as :meth:`Target.snapshot` does, with each thread's Python functions.

        Threads that run no Python are left out of the functions. What could not be read is in
        :attr:`Snapshot.problems`, too. Without ``stacks`` a target may leave out native stacks,
        registers and images.
        """
        ...


@runtime_checkable
class ActivityTarget(Protocol):
    """A target that can read what its threads do between snapshots."""

    def observe_activity(self) -> None:
        """From now on, set :attr:`ThreadSnapshot.state` and :attr:`ThreadSnapshot.cpu_ns`."""
        ...


@runtime_checkable
class PausingTarget(Protocol):
    """A target whose process may have to stay stopped between snapshots."""

    @property
    def runs_between_snapshots(self) -> bool:
        """Whether the process is resumed after a snapshot; valid after the first."""
        ...


class ClosedWhenLeft(ABC):
    """A context manager that closes itself on exit."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()


ThreadChoice: TypeAlias = str | Sequence[str]
"""``all``, ``main``, ``crashed``, ``#N`` as lldb counts, a thread id, or a name, which several
threads may share; or several of these."""


def select_threads(
    threads: Sequence[ThreadInfo], wanted: ThreadChoice
) -> tuple[ThreadId, ...] | None:
    """Return the ids of the threads that ``wanted`` names; None means all.

    Raises:
        TargetSpecError: a choice matches no thread; the remedy lists the threads.
    """
    choices = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if ALL_THREADS in choices:
        return None
    ids: set[ThreadId] = set()
    for choice in choices:
        matches = {thread.id for thread in threads if _matches(thread, choice)}
        if not matches:
            raise _no_match(threads, choice)
        ids |= matches
    return tuple(thread.id for thread in threads if thread.id in ids)


def threads_with_names(target: Target, python: PythonTarget | None) -> tuple[ThreadInfo, ...]:
    """List the threads, each again with the name that Python has for it, if that differs."""
    threads = target.threads()
    if python is None:
        return threads
    snapshot, _ = python.snapshot_with_python(stack_limit=0, stacks=False)
    names = {thread.info.id: thread.info.name for thread in snapshot.threads}
    again = (
        replace(thread, name=names[thread.id])
        for thread in threads
        if names.get(thread.id, thread.name) != thread.name
    )
    return (*threads, *again)


def _no_match(threads: Sequence[ThreadInfo], choice: str) -> TargetSpecError:
    if choice == "crashed":
        return TargetSpecError(
            "no thread crashed, as far as the target states",
            remedy="choose all, main, or a thread by its name or id",
        )
    listed = ", ".join(_label(thread) for thread in threads[:_LISTED])
    more = f" and {len(threads) - _LISTED} more" if len(threads) > _LISTED else ""
    return TargetSpecError(
        f"no thread matches {choice!r}", remedy=f"choose all, main, or one of {listed}{more}"
    )


def _matches(thread: ThreadInfo, wanted: str) -> bool:
    if (wanted == "main" and thread.is_main) or (wanted == "crashed" and thread.crashed):
        return True
    if wanted.startswith("#"):
        return wanted[1:] == str(thread.index)
    return wanted in (str(thread.id), thread.name)


def _label(thread: ThreadInfo) -> str:
    return f"{thread.id} ({thread.name})" if thread.name else str(thread.id)


class RunningProcess(NamedTuple):
    """A process in the system's list."""

    pid: int
    name: str
    """As ``ps`` shows it: on Linux at most 15 bytes, which the process can change."""
    program: str
    """The path of its executable; empty if it cannot be read."""
    arguments: tuple[str, ...]
    user: int
    """The user id."""
    started_at: float
    """Seconds since 1970."""

    @property
    def names(self) -> frozenset[str]:
        """All names by which users know it; of a script's interpreter also the script's."""
        first = self.arguments[0] if self.arguments else ""
        names = {self.name, _last_part(self.program), _last_part(first).lstrip("-")}
        if re.fullmatch(_INTERPRETER, _last_part(self.program) or _last_part(first)):
            names |= set(_script_names(self.arguments[1:]))
        return frozenset(names - {""})

    def __str__(self) -> str:
        """Return the id, the command line, the user and the time of its start."""
        command = self._command
        if len(command) > _MAX_OF_COMMAND:
            command = f"{command[:_MAX_OF_COMMAND]}…"
        return f"{self.pid} ({command}; user {_user_name(self.user)}; since {self._started})"

    def row(self) -> str:
        """Return the id, the time of its start, the user and the whole command line, in columns."""
        return f"{self.pid:>7}  {self._started}  {_user_name(self.user):<8}  {self._command}"

    @property
    def _command(self) -> str:
        from machtrace.model.text import printable

        return printable(" ".join(" ".join(self.arguments).split()) or self.name)

    @property
    def _started(self) -> str:
        from datetime import datetime  # only here: most captures do without

        started = datetime.fromtimestamp(self.started_at).astimezone()
        return started.strftime("%Y-%m-%d %H:%M:%S")


_MAX_OF_COMMAND = 60
_INTERPRETER = (
    r"(python|pypy|perl|ruby|node|php|lua|bash|dash|ash|ksh|zsh|fish|sh|tclsh|Rscript)[0-9.t-]*"
)
_LISTED_PROCESSES = 8
_ROWS = 20
_NEAR = 5


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _script_names(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the names of the script, or of Python's module, in an interpreter's arguments."""
    for number, word in enumerate(arguments):
        if word == "-m" and number + 1 < len(arguments):
            module = arguments[number + 1]
            yield from (module, module.rpartition(".")[2])
            return
        if word in ("-c", "-e", "-"):
            return
        if not word.startswith("-"):
            script = _last_part(word)
            yield from (script, script.rpartition(".")[0])
            return


def _user_name(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return str(user)


def choose_process(processes: Iterable[RunningProcess], name: str, forms: str) -> int:
    """Return the id of the only process of a name.

    Args:
        processes: all that run.
        name: one of :attr:`RunningProcess.names`.
        forms: what else can be passed, for the hint.

    Raises:
        TargetSpecError: none has it, or several have.
    """
    listed = sorted(processes)
    matches = [process for process in listed if name in process.names]
    if len(matches) == 1:
        return matches[0].pid
    if matches:
        shown = "; ".join(map(str, matches[:_LISTED_PROCESSES]))
        more = len(matches) - _LISTED_PROCESSES
        ids = ", ".join(str(process.pid) for process in matches[:_LISTED_PROCESSES])
        summary = f"{len(matches)} processes are named {name!r}"
        error = TargetSpecError(
            f"{summary}: {shown}" + (f" and {more} more" if more > 0 else ""),
            remedy=f"pass the id of one: {ids}",
        )
        rows = [process.row() for process in matches[:_ROWS]]
        if len(matches) > _ROWS:
            rows.append(f"{'':>7}  and {len(matches) - _ROWS} more")
        error.summary, error.candidates = summary, tuple(rows)
        raise error
    from difflib import get_close_matches

    names = sorted({known for process in listed for known in process.names})
    near = [known for known in names if name.casefold() in known.casefold()]
    near += get_close_matches(name, names, n=_NEAR)
    similar = f"; similar names: {', '.join(dict.fromkeys(near[:_NEAR]))}" if near else ""
    raise TargetSpecError(
        f"no file and no running process is named {name!r}", remedy=f"pass {forms}{similar}"
    )
