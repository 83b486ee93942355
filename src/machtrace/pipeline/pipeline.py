"""Snapshot, then walk, then name: the line that all data takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from machtrace.unwinder.unwinder import unwind
from machtrace.model.capture import Capture
from machtrace.model.explanation import StackExplanation
from machtrace.model.snapshot import Problem, Snapshot
from machtrace.model.thread import ThreadId
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.cpython.runs import PythonRuns
from machtrace.unwinder.walker import DEFAULT_DEPTH

__all__ = ["report", "unwind"]


def build_capture(
    snapshot: Snapshot,
    *,
    limit: int = DEFAULT_DEPTH,
    symbolicate: bool = True,
    lines: bool = True,
    search: Sequence[str | Path] = (),
    explain: bool = False,
    python: Mapping[ThreadId, PythonRuns] | None = None,
) -> Capture:
    """Walk every thread of a snapshot and name its frames; see :func:`unwind`.

    ``lines``: with source lines and inlined calls. ``explain``: say too how each frame was found;
    see :func:`machtrace.explain`. ``python``: the Python functions of threads, put beside the
    frames of the loop that runs them; it takes names.
    """
    symbolicator = Symbolicator(search=search, lines=lines)
    name = symbolicator.symbolicate if symbolicate else symbolicator.locate
    walked = unwind(snapshot, limit=limit, search=search)
    explanations: tuple[StackExplanation, ...] = ()
    if explain:
        from machtrace.pipeline.explanation import explain_all

        explanations = explain_all(walked, search=search, symbolicate=symbolicate)
    stacks = tuple(name(one) for one in walked)
    problems = [Problem(thread=None, error=error) for error in symbolicator.problems]
    if python:
        from machtrace.cpython.join import with_python_runs

        stacks, unmatched = with_python_runs(stacks, python)
        problems += unmatched
    return Capture(
        process=snapshot.process,
        images=snapshot.images,
        stacks=stacks,
        explanations=explanations,
        problems=(*snapshot.problems, *problems),
    )
