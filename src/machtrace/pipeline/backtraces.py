"""Call stacks of a target in one call: capture, unwind, symbolicate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from machtrace.cpython.runs import PythonRuns, python_stacks, with_python_runs
from machtrace.errors import TargetSpecError
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_path import path_names
from machtrace.model.capture import Capture, StackExplanation
from machtrace.model.options import (
    DEFAULT_FRAME_LIMIT,
    DEFAULT_STACK_LIMIT,
    WITHOUT_PYTHON,
    NameOptions,
    PythonView,
    WalkOptions,
)
from machtrace.model.snapshot import Problem, Snapshot, ThreadId
from machtrace.model.symbol import CallStack
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.targets.base import (
    ALL_THREADS,
    PythonTarget,
    Target,
    ThreadChoice,
    select_threads,
    threads_with_names,
)
from machtrace.targets.open import SELF, invalid_spec, open_target
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.unwinder import Unwinder

_DEFAULT_WALK = WalkOptions()
_DEFAULT_NAMES = NameOptions()


def backtraces(  # noqa: PLR0913 - an option each
    target: Target | int | str | Path = SELF,
    *,
    threads: ThreadChoice = ALL_THREADS,
    symbolicate: bool = True,
    lines: bool = True,
    search: Sequence[str | Path] = (),
    limit: int = DEFAULT_FRAME_LIMIT,
    stack_limit: int = DEFAULT_STACK_LIMIT,
    python: PythonView = False,
    scan: bool = False,
) -> list[CallStack]:
    """Return the call stacks of a target's threads, innermost frame first.

    Threads that cannot be copied are omitted; :func:`snapshot` returns them with the reasons.

    Args:
        target: an open target, or any spec that :func:`machtrace.open_target` takes; by default
            this process, whose stacks include the calling thread's.
        threads: ``all``, ``main``, ``crashed``, a thread's name or id, or ``#N`` as lldb counts;
            or several of these.
        symbolicate: whether to look up function names.
        lines: whether to look up source lines and inlined calls, where names are looked up. Debug
            information is read as a whole the first time, which can take seconds, and cached.
        search: files and folders with the program's images.
        limit: maximum frames per stack: the innermost; the default keeps both ends of a deeper
            stack, and the number of frames left out.
        stack_limit: maximum bytes copied of each stack.
        python: whether to attach the Python functions that each frame of CPython's loop runs
            (:attr:`~machtrace.model.symbol.Frame.python`), which requires names; ``"only"`` returns
            stacks of Python functions alone, of the threads that run any. All threads of the
            process are suspended together meanwhile; see :func:`snapshot_with_python`. Threads
            whose Python functions cannot be read have none.
        scan: whether to scan a stack for return addresses wherever it would be incomplete; frames
            found so have :attr:`FrameTrust.SCAN <machtrace.model.stack.FrameTrust.SCAN>`.

    Raises:
        TargetSpecError: the target does not provide Python functions.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    walk = WalkOptions(limit=limit, stack_limit=stack_limit, scan=scan)
    names = NameOptions(
        search=path_names(search), symbolicate=symbolicate, lines=lines, python=python
    )
    if target == SELF and not search and not scan:
        from machtrace.pipeline.inprocess.backtrace import own_stacks

        return own_stacks(threads, walk, names)
    copied, runs = capture_snapshot(target, threads, walk, names)
    return list(build_capture(copied, walk, names, python=runs).stacks)


def snapshot(
    target: Target | int | str | Path,
    *,
    threads: ThreadChoice = ALL_THREADS,
    stack_limit: int = DEFAULT_STACK_LIMIT,
) -> Snapshot:
    """Copy a target's threads, each suspended only while it is copied; see :func:`backtraces`."""
    with _opened(target) as opened:
        chosen = None if threads == ALL_THREADS else select_threads(opened.threads(), threads)
        return opened.snapshot(chosen, stack_limit=stack_limit)


def snapshot_with_python(
    target: Target | int | str | Path,
    *,
    threads: ThreadChoice = ALL_THREADS,
    stack_limit: int = DEFAULT_STACK_LIMIT,
    stacks: bool = True,
) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
    """Return a :func:`snapshot`, and each thread's Python functions at the same moment.

    In this process the interpreter's lock is held for both; all threads of another process are
    suspended until both are read. A core has the moment of the core. Without ``stacks`` the
    snapshot may lack native stacks.

    Raises:
        TargetSpecError: the target does not provide Python functions.
    """
    with _opened(target) as opened:
        if not isinstance(opened, PythonTarget):
            raise TargetSpecError(
                "Python functions cannot be read from this kind of target",
                remedy="pass a process of this machine, self, or a core of a Linux process, or "
                f"{WITHOUT_PYTHON}",
            )
        chosen = None
        if threads != ALL_THREADS:
            chosen = select_threads(threads_with_names(opened, opened), threads)
        return opened.snapshot_with_python(chosen, stack_limit=stack_limit, stacks=stacks)


def capture_snapshot(
    target: Target | int | str | Path, threads: ThreadChoice, walk: WalkOptions, names: NameOptions
) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
    """Return a snapshot, with the Python functions of its threads if ``names`` requests them."""
    if names.python:
        return snapshot_with_python(
            target,
            threads=threads,
            stack_limit=walk.stack_limit,
            stacks=not names.python_only,
        )
    return snapshot(target, threads=threads, stack_limit=walk.stack_limit), {}


def build_capture(
    snapshot: Snapshot,
    walk: WalkOptions = _DEFAULT_WALK,
    names: NameOptions = _DEFAULT_NAMES,
    *,
    explain: bool = False,
    python: Mapping[ThreadId, PythonRuns] | None = None,
) -> Capture:
    """Unwind every thread of a snapshot and symbolicate its frames.

    Args:
        snapshot: the copied threads.
        walk: the limits.
        names: what to look up.
        explain: whether to record how each frame was found; see :func:`machtrace.explain`.
        python: the threads' Python functions, attached to the frames of the loop that runs them;
            requires names.
    """
    if names.python_only:
        stacks, without = python_stacks(snapshot, python or {}, FrameLimit.of(walk.limit))
        return Capture(
            process=snapshot.process,
            images=snapshot.images,
            stacks=stacks,
            problems=snapshot.problems,
            linux=snapshot.linux,
            without_python=without,
        )
    files = ImageResolver.of(names.search)
    symbolicator = Symbolicator(files, lines=names.lines)
    name = symbolicator.symbolicate if names.symbolicate else symbolicator.locate
    walked = Unwinder(files, scan=walk.scan).unwind(snapshot, limit=walk.limit)
    explanations: tuple[StackExplanation, ...] = ()
    if explain:
        from machtrace.pipeline.explanation import explain_all

        explanations = explain_all(
            walked, search=files, symbolicate=names.symbolicate, scan=walk.scan
        )
    stacks = tuple(map(name, walked))
    problems = [Problem(thread=None, error=error) for error in symbolicator.problems]
    if python:
        stacks, unmatched = with_python_runs(stacks, python)
        problems += unmatched
    return Capture(
        process=snapshot.process,
        images=snapshot.images,
        stacks=stacks,
        explanations=explanations,
        problems=(*snapshot.problems, *problems),
        linux=snapshot.linux,
    )


@contextmanager
def _opened(target: object) -> Iterator[Target]:
    """Yield ``target`` itself, which its owner closes, or open and close the one it specifies."""
    if target is None or isinstance(target, int | str | Path):
        with open_target(target) as opened:
            yield opened
    elif hasattr(target, "snapshot"):
        yield cast("Target", target)
    else:
        raise invalid_spec(f"not a target: {type(target).__name__}")
