"""Sampling in one call, and the targets that can be sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from machtrace.errors import ArgumentError, TargetSpecError
from machtrace.images.search_path import path_names
from machtrace.model.options import (
    DEFAULT_FRAME_LIMIT,
    DEFAULT_STACK_LIMIT,
    NameOptions,
    PythonView,
    WalkOptions,
)
from machtrace.model.profile import Profile
from machtrace.model.snapshot import ThreadId
from machtrace.sampling.sampler import FOREVER_NS, Sampler
from machtrace.targets.base import (
    ALL_THREADS,
    PythonTarget,
    Target,
    ThreadChoice,
    select_threads,
    threads_with_names,
)
from machtrace.targets.core.target import CoreTarget
from machtrace.targets.open import EMULATED, open_target

MAX_HZ = 10_000.0
"""Maximum samples per second."""

MIN_HZ = 0.001


def sample(  # noqa: PLR0913 - all but the first are by keyword
    target: Target | int | str | Path,
    *,
    hz: float = 99,
    duration: float = 10,
    threads: ThreadChoice = ALL_THREADS,
    symbolicate: bool = True,
    lines: bool = True,
    search: Sequence[str | Path] = (),
    limit: int = DEFAULT_FRAME_LIMIT,
    stack_limit: int = DEFAULT_STACK_LIMIT,
    python: PythonView = False,
    scan: bool = False,
    idle: bool = True,
    gil: bool = False,
) -> Profile:
    """Sample the stacks of a running process.

    Threads are suspended one at a time, each only while it is copied. If a copy takes so long that
    the next tick is missed, that tick is lost, and counted. If the process exits, the profile has
    the samples until then.

    Args:
        target: an open target, or any spec that :func:`machtrace.open_target` takes, of a running
            process.
        hz: ticks per second, from 0.001 to 10,000.
        duration: seconds; ``math.inf`` to run until the process exits.
        threads: ``all``, including threads that start meanwhile; ``main``, a thread's name or id,
            or ``#N`` as lldb counts; or several of these.
        symbolicate: whether to look up function names.
        lines: whether to look up source lines and inlined calls, where names are looked up.
        search: files and folders with the program's images.
        limit: maximum frames per stack: the innermost; the default keeps both ends of a deeper
            stack.
        stack_limit: maximum bytes copied of each stack.
        python: whether to read the Python functions that CPython's loop runs, which requires names;
            ``"only"`` leaves out native frames, and threads that run none. All threads are
            suspended together meanwhile.
        gil: whether to take only samples of threads that hold the interpreter lock; requires
            ``python``.
        scan: see :func:`machtrace.backtraces`.
        idle: whether the profile has samples of threads that wait; see also
            :meth:`Profile.without_idle`.

    Raises:
        ArgumentError: ``hz`` or ``duration`` is out of range.
        TargetSpecError: the target is a core or an emulated process, which do not run; or it has
            no states of threads, and idle samples are to be left out.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    walk = WalkOptions(limit=limit, stack_limit=stack_limit, scan=scan)
    names = NameOptions(
        search=path_names(search), symbolicate=symbolicate, lines=lines, python=python
    )
    interval, length = interval_ns(hz), duration_ns(duration)
    with running_target(target) as opened:
        sampler = Sampler(
            opened,
            interval_ns=interval,
            threads=chosen_threads(opened, threads, names),
            walk=walk,
            names=names,
            idle=idle,
            gil=gil,
        )
        return sampler.profile(sampler.run(length))


def chosen_threads(
    target: Target, threads: ThreadChoice, names: NameOptions
) -> tuple[ThreadId, ...] | None:
    """Return the ids of the chosen threads, also by the names that Python has; None means all."""
    python = None
    if threads != ALL_THREADS and names.python and isinstance(target, PythonTarget):
        python = target
    return select_threads(threads_with_names(target, python), threads)


@contextmanager
def running_target(target: Target | int | str | Path) -> Iterator[Target]:
    """Yield ``target`` itself, which its owner closes, or open and close the one it specifies.

    Raises:
        TargetSpecError: the target does not run.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    if not isinstance(target, int | str | Path):
        _check_runs(target)
        yield target
        return
    if isinstance(target, str) and target.startswith(EMULATED):
        raise _not_running("an emulated program")
    with open_target(target) as opened:
        _check_runs(opened)
        yield opened


def interval_ns(hz: float) -> int:
    """Return the nanoseconds between ticks.

    Raises:
        ArgumentError: the rate is out of range.
    """
    if not MIN_HZ <= hz <= MAX_HZ:
        raise ArgumentError(
            f"cannot sample at {hz:g} Hz",
            remedy=f"pass {MIN_HZ:g} to {MAX_HZ:,.0f} samples per second",
        )
    return round(1e9 / hz)


def duration_ns(seconds: float) -> int:
    """Return the nanoseconds of a duration.

    Raises:
        ArgumentError: the duration is not positive.
    """
    if not seconds > 0:
        raise ArgumentError(
            f"cannot sample for {seconds:g} seconds",
            remedy="pass more than 0, or inf to sample until the process exits",
        )
    return FOREVER_NS if seconds >= FOREVER_NS / 1e9 else max(1, round(seconds * 1e9))


def _check_runs(target: Target) -> None:
    if isinstance(target, CoreTarget):
        raise _not_running("a core")
    from machtrace.targets.emulator.target import EmulatedTarget

    if isinstance(target, EmulatedTarget):
        raise _not_running("an emulated program")


def _not_running(kind: str) -> TargetSpecError:
    return TargetSpecError(
        f"{kind} does not run: every sample would be the same",
        remedy="sample a running process, or use machtrace backtrace",
    )
