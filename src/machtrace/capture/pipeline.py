"""Snapshot, then walk, then name: the line that all data takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from machtrace.capture.unwinding import Unwinder
from machtrace.model.explanation import StackExplanation
from machtrace.model.report import Report
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace
from machtrace.symbolicate.symbolicator import Symbolicator
from machtrace.unwinder.walker import DEFAULT_DEPTH


def unwind(
    snapshot: Snapshot, *, limit: int = DEFAULT_DEPTH, search: Sequence[str | Path] = ()
) -> tuple[Backtrace, ...]:
    """Walk every thread of a snapshot.

    Of many snapshots, an :class:`Unwinder` reads each image and works out each rule once.

    Args:
        snapshot: what was copied; nothing else of the target is read.
        limit: how many addresses of a stack are kept at most: of a deeper one those at both ends,
            and the number of the others.
        search: files and folders with the images whose bytes the snapshot does not hold.
    """
    return Unwinder(search).unwind(snapshot, limit=limit)


def report(
    snapshot: Snapshot,
    *,
    limit: int = DEFAULT_DEPTH,
    symbolicate: bool = True,
    search: Sequence[str | Path] = (),
    explain: bool = False,
) -> Report:
    """Walk every thread of a snapshot and name its frames; see :func:`unwind`.

    ``explain``: say too how each frame was found; see :func:`machtrace.explain`.
    """
    symbolicator = Symbolicator(search=search)
    name = symbolicator.symbolicate if symbolicate else symbolicator.locate
    walked = unwind(snapshot, limit=limit, search=search)
    explanations: tuple[StackExplanation, ...] = ()
    if explain:
        from machtrace.capture.explanation import explain_all

        explanations = explain_all(walked, search=search, symbolicate=symbolicate)
    return Report(
        process=snapshot.process,
        images=snapshot.images,
        stacks=tuple(name(one) for one in walked),
        explanations=explanations,
        problems=snapshot.problems,
    )
