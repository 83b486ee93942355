"""Bars that show, on a terminal, how far a device's reports are listed and copied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from machtrace.pipeline.device_reports import PullProgress
from machtrace.targets.ios.access import DeviceFile

if TYPE_CHECKING:  # it is imported where there is a terminal
    from rich.progress import Progress, TaskID


@contextmanager
def listing_progress() -> Iterator[Callable[[int], object] | None]:
    """What is told how many files were seen; None where standard error is no terminal."""
    from machtrace.cli.console import wants_colour

    if not wants_colour(sys.stderr):
        yield None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status("looking at the device's reports") as status:
        yield lambda count: status.update(f"looking at the device's reports: {count:,}")


@contextmanager
def pull_progress(count: int, size: int) -> Iterator[PullProgress]:
    """A bar of ``count`` files and ``size`` bytes on standard error where that is a terminal."""
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
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("{task.fields[files]}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=sys.stderr),
        transient=True,
    ) as bar:
        yield _Bar(bar, bar.add_task("", total=size, files=f"0 of {count:,}"), count)


class _Silent:
    def look_at(self, file: DeviceFile) -> None:
        """Nothing."""

    def advance(self, size: int) -> None:
        """Nothing."""


class _Bar:
    def __init__(self, bar: Progress, task: TaskID, count: int) -> None:
        self._bar = bar
        self._task = task
        self._count = count
        self._at = 0

    def look_at(self, file: DeviceFile) -> None:
        from machtrace.model.text import printable

        self._at += 1
        self._bar.update(
            self._task,
            description=printable(file.path.rpartition("/")[2]),
            files=f"{self._at:,} of {self._count:,}",
        )

    def advance(self, size: int) -> None:
        self._bar.advance(self._task, size)
