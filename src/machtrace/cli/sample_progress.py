"""What is shown on a terminal while a process is sampled, and when that is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from machtrace.model.profile import Profile, SamplingEnd
from machtrace.sampling.sampler import FOREVER_NS, SamplingProgress

_EVERY_NS = 100_000_000
"""Between two pictures; drawing takes time that the next tick may need."""

_ENDS = {
    SamplingEnd.DURATION: "",
    SamplingEnd.INTERRUPTED: ", then interrupted",
    SamplingEnd.PROCESS_ENDED: ", until the process ended",
    SamplingEnd.THREADS_ENDED: ", until its threads ended",
    SamplingEnd.TARGET_LOST: ", until it could be looked at no more",
    SamplingEnd.FULL: ", until there was no room for more",
}


@contextmanager
def progress(duration_ns: int) -> Iterator[Callable[[SamplingProgress], None]]:
    """A bar on standard error, if that is a terminal; what it yields is told of each tick."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("sampling"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
        console=Console(stderr=True),
        auto_refresh=False,  # a thread of its own would take the interpreter's lock at any moment
        transient=True,
    )
    total = None if duration_ns >= FOREVER_NS else duration_ns
    with bar:
        task = bar.add_task("sampling", total=total, told="")
        shown_at = -_EVERY_NS

        def show(now: SamplingProgress) -> None:
            nonlocal shown_at
            if now.elapsed_ns - shown_at >= _EVERY_NS:
                shown_at = now.elapsed_ns
                bar.update(task, completed=now.elapsed_ns, told=_told(now), refresh=True)

        yield show


def _told(now: SamplingProgress) -> str:
    rate = now.ticks * 1e9 / now.elapsed_ns
    return f"{rate:.1f} Hz  {now.lost} lost  {stopped(now.stopped_share)}"


def stopped(share: float | None) -> str:
    """How much of the time threads were kept from running."""
    return "stopped for ? of the time" if share is None else f"stopped {share:.2%} of the time"


def summary(profile: Profile) -> str:
    """One line on what was taken."""
    run, samples, threads = profile.run, len(profile.samples), len(profile.threads)
    wanted = 1e9 / run.interval_ns
    return (
        f"{samples:,} sample{'s' * (samples != 1)} of {threads} thread{'s' * (threads != 1)} in "
        f"{run.duration_ns / 1e9:.2f} s{_ENDS[run.end]}; {run.rate:.1f} of {wanted:g} Hz, "
        f"{run.lost} lost; {stopped(profile.stopped_share)}"
    )
