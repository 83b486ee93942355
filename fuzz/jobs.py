"""A run on several processes, and its progress."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fuzz.runner import Outcome, inputs, try_all
from fuzz.target import Target

_PATIENCE = 60
"""Seconds without a word from any process, after which they are taken to have died."""


@dataclass(frozen=True, slots=True)
class Run:
    """Which inputs, and how long one may take."""

    seed: int
    count: int
    slow: float
    """Seconds of processor time."""


def run_jobs(target: Target, run: Run, jobs: int, console: Console) -> tuple[Outcome, bool]:
    """Feed the inputs of ``run``, shared by ``jobs`` processes; and whether it was interrupted.

    What each input is does not depend on the number of processes.
    """
    target.seeds()  # built once, before there are several who would
    total = Outcome()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}, {task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        bar = shown.add_task(target.name, total=run.count, note="")

        def progress(part: Outcome) -> None:
            total.add(part)
            rate = total.inputs / total.seconds if total.seconds else 0
            note = f"{rate:,.0f}/s, slowest {total.slowest_milliseconds:.0f} ms"
            found = sum(total.counts.values())
            note += f", [red]{found} findings[/red]" if found else ""
            shown.update(bar, completed=total.inputs, note=note)

        try:
            if jobs == 1:
                fed = inputs(target, run.seed, range(run.count))
                try_all(target, fed, progress, slow=run.slow)
            else:
                _share(target, run, jobs, progress)
        except KeyboardInterrupt:
            return total, True
    return total, False


def _share(target: Target, run: Run, jobs: int, progress: Callable[[Outcome], None]) -> None:
    context = multiprocessing.get_context("fork")
    parts: Queue[Outcome | None] = context.Queue()
    workers = [
        context.Process(target=_work, args=(target, run, range(job, run.count, jobs), parts))
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    try:
        running = jobs
        while running:
            part = parts.get(timeout=_PATIENCE)
            if part is None:
                running -= 1
            else:
                progress(part)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(target: Target, run: Run, numbers: range, parts: Queue[Outcome | None]) -> None:
    try:
        try_all(target, inputs(target, run.seed, numbers), parts.put, slow=run.slow)
    except KeyboardInterrupt:
        return
    parts.put(None)
