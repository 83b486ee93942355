"""The main job in one call.

Snapshot, then walk, then name: the line that all data takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import TargetSpecError
from machtrace.images.resolver import ImageResolver, Search
from machtrace.model.capture import Capture, StackExplanation
from machtrace.model.snapshot import Problem, Snapshot, ThreadId
from machtrace.model.symbol import CallStack
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.targets.base import DEFAULT_STACK_LIMIT, PythonTarget, Target, select_threads
from machtrace.targets.open import open_target
from machtrace.unwinder.unwinder import unwind
from machtrace.unwinder.walker import DEFAULT_DEPTH


def build_capture(
    snapshot: Snapshot,
    *,
    limit: int = DEFAULT_DEPTH,
    symbolicate: bool = True,
    lines: bool = True,
    search: Search = (),
    explain: bool = False,
    python: Mapping[ThreadId, PythonRuns] | None = None,
) -> Capture:
    """Walk every thread of a snapshot and name its frames; see :func:`unwind`.

    ``lines``: with source lines and inlined calls. ``explain``: say too how each frame was found;
    see :func:`machtrace.explain`. ``python``: the Python functions of threads, put beside the
    frames of the loop that runs them; it takes names.
    """
    files = ImageResolver.of(search)
    symbolicator = Symbolicator(files, lines=lines)
    name = symbolicator.symbolicate if symbolicate else symbolicator.locate
    walked = unwind(snapshot, limit=limit, search=files)
    explanations: tuple[StackExplanation, ...] = ()
    if explain:
        from machtrace.pipeline.explanation import explain_all

        explanations = explain_all(walked, search=files, symbolicate=symbolicate)
    stacks = tuple(name(one) for one in walked)
    problems = [Problem(thread=None, error=error) for error in symbolicator.problems]
    if python:
        from machtrace.cpython.runs import with_python_runs

        stacks, unmatched = with_python_runs(stacks, python)
        problems += unmatched
    return Capture(
        process=snapshot.process,
        images=snapshot.images,
        stacks=stacks,
        explanations=explanations,
        problems=(*snapshot.problems, *problems),
    )


def backtraces(
    target: Target | int | str | Path,
    *,
    threads: str = "all",
    symbolicate: bool = True,
    lines: bool = True,
    search: Sequence[str | Path] = (),
    limit: int = DEFAULT_DEPTH,
    stack_limit: int = DEFAULT_STACK_LIMIT,
    python: bool = False,
) -> list[CallStack]:
    """The call stacks of a target's threads, innermost frame first.

    Threads that could not be copied are left out; ask :func:`snapshot` for them and the reasons.

    Args:
        target: an open target, or what :func:`machtrace.open_target` takes.
        threads: ``all``, ``main``, a thread's name or id, or ``#N`` as lldb counts.
        symbolicate: whether to look names up.
        lines: whether source lines and inlined calls are wanted, where names are looked up. Debug
            information is read as a whole the first time, which can take seconds, and kept.
        search: files and folders with the program's images.
        limit: how many frames of a stack are kept at most: of a deeper one those at both ends, and
            the number of the others.
        stack_limit: how many bytes of each stack are copied at most.
        python: whether each frame of CPython's loop is to have the Python functions that it runs
            (:attr:`~machtrace.model.symbol.Frame.python`), with names looked up. All threads of
            the process stand still together then; see :func:`snapshot_with_python`. Threads of
            which they cannot be told have none.

    Raises:
        TargetSpecError: Python functions are wanted, of what cannot be asked for them.
        TargetError, FileAccessError, FormatError: see :func:`machtrace.open_target`.
    """
    if python and not symbolicate:
        raise TargetSpecError(
            "Python functions are put beside the frames of CPython's loop, which names tell",
            remedy="have names looked up, too",
        )
    runs: Mapping[ThreadId, PythonRuns] = {}
    if python:
        copied, runs = snapshot_with_python(target, threads=threads, stack_limit=stack_limit)
    else:
        copied = snapshot(target, threads=threads, stack_limit=stack_limit)
    made = build_capture(
        copied, limit=limit, symbolicate=symbolicate, lines=lines, search=search, python=runs
    )
    return list(made.stacks)


def snapshot(
    target: Target | int | str | Path,
    *,
    threads: str = "all",
    stack_limit: int = DEFAULT_STACK_LIMIT,
) -> Snapshot:
    """Copy a target's threads, each stopped only while it is copied; see :func:`backtraces`."""
    with _opened(target) as opened:
        chosen = None if threads == "all" else select_threads(opened.threads(), threads)
        return opened.snapshot(chosen, stack_limit=stack_limit)


def snapshot_with_python(
    target: Target | int | str | Path,
    *,
    threads: str = "all",
    stack_limit: int = DEFAULT_STACK_LIMIT,
) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
    """:func:`snapshot`, and of each thread the Python functions that it was in at that moment.

    Of this process the interpreter's lock is kept from one to the other; all threads of another
    process are stopped until both are had. In a core it is the moment of the core.

    Raises:
        TargetSpecError: the target cannot be asked for Python functions.
    """
    with _opened(target) as opened:
        if not isinstance(opened, PythonTarget):
            raise TargetSpecError(
                "Python functions cannot be read of such a target",
                remedy="give a process of this machine, self, or a core of a Linux process, or "
                "leave Python functions out",
            )
        chosen = None if threads == "all" else select_threads(opened.threads(), threads)
        return opened.snapshot_with_python(chosen, stack_limit=stack_limit)


@contextmanager
def _opened(target: object) -> Iterator[Target]:
    """``target`` itself, which its owner closes, or one opened here and closed again."""
    if target is None or isinstance(target, int | str | Path):
        with open_target(target) as opened:
            yield opened
    elif hasattr(target, "snapshot"):
        yield cast("Target", target)
    else:
        raise TargetSpecError(f"a {type(target).__name__} is no target")
