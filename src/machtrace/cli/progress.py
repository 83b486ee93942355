"""Progress of long commands on standard error, if that is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from machtrace.cli.console import is_quiet

if TYPE_CHECKING:  # rich is imported only where a terminal shows progress
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn


class Progress:
    """Progress that is not shown; the base class of the bar."""

    def advance(self, amount: int) -> None:
        """Report that ``amount`` more is done."""

    def show(self, *, label: str | None = None, note: str | None = None) -> None:
        """Show a label behind the bar, a note before it, or both."""


class _Bar(Progress):
    def __init__(self, bar: RichProgress, total: int | None, note: str, every: float) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total, note=note)
        self._every = every
        self._shown_at = -every

    def advance(self, amount: int) -> None:
        self._bar.advance(self._task, amount)
        task = self._bar.tasks[0]
        if task.total is not None and task.completed > task.total:
            self._bar.update(self._task, total=task.completed)  # archives held more files
        self._refresh()

    def show(self, *, label: str | None = None, note: str | None = None) -> None:
        from machtrace.model.text import printable

        if label is not None:
            self._bar.update(self._task, description=printable(label))
        if note is not None:
            self._bar.update(self._task, note=note)

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._every and now - self._shown_at >= self._every:
            self._shown_at = now
            self._bar.refresh()


@contextmanager
def progress_bar(
    total: int | None, *, unit: Literal["files", "bytes", "ns"], note: str = "", every: float = 0
) -> Iterator[Progress]:
    """Show a bar while the context lasts.

    Args:
        total: of files, bytes or nanoseconds; None if unknown. It grows with what is done.
        unit: which of them is counted.
        note: the text before the bar.
        every: seconds between two pictures, drawn by :meth:`Progress.advance`; 0 draws them from
            another thread, which takes the interpreter's lock at any moment.
    """
    if not shows_progress(sys.stderr):
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    with RichProgress(
        TextColumn("{task.fields[note]}", markup=False),
        BarColumn(),
        *_columns(unit),
        TextColumn("{task.description}", markup=False),
        console=Console(file=sys.stderr),
        auto_refresh=not every,
        transient=True,
    ) as bar:
        yield _Bar(bar, total, note, every)


def _columns(unit: Literal["files", "bytes", "ns"]) -> tuple[ProgressColumn, ...]:
    from rich import progress

    match unit:
        case "files":
            return progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
        case "bytes":
            return (
                progress.DownloadColumn(binary_units=True),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
            )
        case "ns":
            return (progress.TimeElapsedColumn(),)


@contextmanager
def spinner(label: str) -> Iterator[Callable[[int], object] | None]:
    """Show a spinner; yield a function that shows a count, or None if nothing is shown."""
    if not shows_progress(sys.stderr):
        yield None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(label) as status:
        yield lambda count: status.update(f"{label}: {count:,}")


def shows_progress(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that can redraw a line."""
    return stream.isatty() and not is_quiet() and os.environ.get("TERM") != "dumb"
