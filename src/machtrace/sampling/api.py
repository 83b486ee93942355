"""Sampling in one call, and what may be sampled."""

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
    WalkOptions,
)
from machtrace.model.profile import Profile
from machtrace.sampling.sampler import FOREVER_NS, Sampler
from machtrace.targets.base import Target, select_threads
from machtrace.targets.core.target import CoreTarget
from machtrace.targets.open import EMULATED, open_target

MOST_HZ = 10_000.0
"""More often than that no snapshot is done."""

LEAST_HZ = 0.001


def sample(  # noqa: PLR0913 - all but the first are by keyword
    target: Target | int | str | Path,
    *,
    hz: float = 99,
    duration: float = 10,
    threads: str = "all",
    symbolicate: bool = True,
    lines: bool = True,
    search: Sequence[str | Path] = (),
    limit: int = DEFAULT_FRAME_LIMIT,
    stack_limit: int = DEFAULT_STACK_LIMIT,
    python: bool = False,
) -> Profile:
    """Sample the stacks of a process that runs.

    Threads are stopped one at a time, each for as long as copying it takes. Where a copy takes so
    long that the next tick is missed, that tick is lost, and counted. If the process ends, what was
    taken until then is the profile.

    Args:
        target: an open target, or what :func:`machtrace.open_target` takes, of a process that runs.
        hz: ticks a second, from 0.001 to 10,000.
        duration: seconds; ``math.inf`` is until the process ends.
        threads: ``all``, also those that are started meanwhile; ``main``, a thread's name or id, or
            ``#N`` as lldb counts.
        symbolicate: whether to look names up.
        lines: whether source lines and inlined calls are wanted, where names are looked up.
        search: files and folders with the program's images.
        limit: how many frames of a stack are kept at most: of a deeper one those at both ends.
        stack_limit: how many bytes of each stack are copied at most.
        python: with the Python functions that CPython's loop runs; all threads stand still together
            while they are read.

    Raises:
        ArgumentError: ``hz`` or ``duration`` makes no sense.
        TargetSpecError: the target is a core, or an emulated process: they stand still.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    walk = WalkOptions(limit=limit, stack_limit=stack_limit)
    names = NameOptions(
        search=path_names(search), symbolicate=symbolicate, lines=lines, python=python
    )
    interval, length = interval_ns(hz), duration_ns(duration)
    with running_target(target) as opened:
        sampler = Sampler(
            opened,
            interval_ns=interval,
            threads=select_threads(opened.threads(), threads),
            walk=walk,
            names=names,
        )
        return sampler.profile(sampler.run(length))


@contextmanager
def running_target(target: Target | int | str | Path) -> Iterator[Target]:
    """``target`` itself, which its owner closes, or one opened here and closed again.

    Raises:
        TargetSpecError: it does not run.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    if not isinstance(target, int | str | Path):
        _check_runs(target)
        yield target
        return
    if isinstance(target, str) and target.startswith(EMULATED):
        raise _stands_still("an emulated program")
    with open_target(target) as opened:
        _check_runs(opened)
        yield opened


def interval_ns(hz: float) -> int:
    """Nanoseconds between ticks.

    Raises:
        ArgumentError: it is no rate, or one that cannot be had.
    """
    if not LEAST_HZ <= hz <= MOST_HZ:
        raise ArgumentError(
            f"{hz:g} Hz is no rate to sample at",
            remedy=f"give {LEAST_HZ:g} to {MOST_HZ:,.0f} samples a second",
        )
    return round(1e9 / hz)


def duration_ns(seconds: float) -> int:
    """Nanoseconds to sample for.

    Raises:
        ArgumentError: it is no time, or none at all.
    """
    if not seconds > 0:
        raise ArgumentError(
            f"{seconds:g} seconds is no time to sample for",
            remedy="give more than 0, or inf for as long as the process runs",
        )
    return FOREVER_NS if seconds >= FOREVER_NS / 1e9 else max(1, round(seconds * 1e9))


def _check_runs(target: Target) -> None:
    if isinstance(target, CoreTarget):
        raise _stands_still("a core")
    from machtrace.targets.emulator.target import EmulatedTarget

    if isinstance(target, EmulatedTarget):
        raise _stands_still("an emulated program")


def _stands_still(what: str) -> TargetSpecError:
    return TargetSpecError(
        f"{what} stands still, and every sample would be the same",
        remedy="sample a process that runs, or use machtrace backtrace",
    )
