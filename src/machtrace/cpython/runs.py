"""Which Python functions share a run of the interpreter's loop."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from machtrace.model.symbol import PythonFrame, SourceLocation

PythonRuns = tuple[tuple[PythonFrame, ...], ...] | None
"""A thread's runs of the loop and the functions in each, both innermost first; None where it could
not be told which function began a run."""


def python_runs(rows: Sequence[tuple[CodeType, int, int]]) -> PythonRuns:
    """The runs of a thread.

    Args:
        rows: of each function, innermost first, its code, its line (0 where there is none) and
            whether it began a run: 1, 0, or -1 where that is not known.
    """
    if any(began < 0 for _, _, began in rows):
        return None
    runs: list[tuple[PythonFrame, ...]] = []
    run: list[PythonFrame] = []
    for code, line, began in rows:
        run.append(PythonFrame(code.co_qualname, SourceLocation(code.co_filename, line or None)))
        if began:
            runs.append(tuple(run))
            run = []
    if run:
        runs.append(tuple(run))
    return tuple(runs)
