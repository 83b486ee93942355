"""How far a run over many reports has come, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_FEW = 8
"""Files that are read before anybody could look."""


class ReportProgress(Protocol):
    """Is told how many files are done."""

    def advance(self, count: int) -> None:
        """So many more."""


class _Silent:
    def advance(self, count: int) -> None:
        """Say nothing."""


@contextmanager
def report_progress(total: int, *, hidden: bool = False) -> Iterator[ReportProgress]:
    """A bar on standard error, where that is a terminal and there is enough to do.

    Args:
        total: files; where archives turn out to hold more, the bar grows.
        hidden: whether the terminal shows something else.
    """
    if hidden or total <= _FEW or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("reports"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        class _Bar:
            def advance(self, count: int) -> None:
                bar.advance(task, count)
                done = bar.tasks[0].completed
                bar.update(task, total=max(total, done))

        yield _Bar()
