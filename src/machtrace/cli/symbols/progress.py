"""A bar that shows, on a terminal, how much of what is to be added to a store was dealt with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from machtrace.symbolstore.adding import InputFile
from machtrace.symbolstore.contained_images import Skipped

if TYPE_CHECKING:  # it is imported where there is a terminal
    from rich.progress import Progress, TaskID


class AddProgress(Protocol):
    """Is told what happens."""

    def look_at(self, what: InputFile | Skipped, /) -> None:
        """It is the turn of ``what``."""
        ...

    def advance(self, size: int, /) -> None:
        """``size`` more bytes of the input were dealt with."""
        ...

    def count(self, added: int, present: int, /) -> None:
        """So many images were added so far, and so many were there."""
        ...


@contextmanager
def add_progress(size: int) -> Iterator[AddProgress]:
    """A bar of ``size`` bytes on standard error where that is a terminal; else nothing."""
    from machtrace.cli.console import wants_colour

    if not wants_colour(sys.stderr):
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.fields[counts]}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=sys.stderr),
        transient=True,
    ) as bar:
        yield _Bar(bar, bar.add_task("", total=size, counts=_counts(0, 0)))


class _Silent:
    def look_at(self, what: InputFile | Skipped) -> None:
        """Nothing."""

    def advance(self, size: int) -> None:
        """Nothing."""

    def count(self, added: int, present: int) -> None:
        """Nothing."""


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def look_at(self, what: InputFile | Skipped) -> None:
        from machtrace.model.text import printable

        if isinstance(what, InputFile):
            self._bar.update(self._task, description=printable(what.path.name))

    def advance(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def count(self, added: int, present: int) -> None:
        self._bar.update(self._task, counts=_counts(added, present))


def _counts(added: int, present: int) -> str:
    return f"{added:,} added, {present:,} already there"
