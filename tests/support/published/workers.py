"""Runs of many images in several processes, in chunks that are reported as they finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from machtrace.model.arch import Arch
from tests.support.published.harness import Harness, run_many
from tests.support.published.image import load
from tests.support.published.result import Result

CHUNK = 2000
"""Runs that a process executes before it reports."""


@dataclass(frozen=True, slots=True)
class Job:
    """Runs of one slice of a file."""

    path: Path
    arch: Arch | None
    name: str
    """Part of the seed of each run."""
    seed: int
    numbers: range
    samples: int = 0
    """Compared moments to return from each chunk."""
    entry: int | None = None
    """The stated address of the function to begin at; None: random ones."""

    def chunks(self) -> Iterator[Job]:
        """Yield the job in parts."""
        for first in range(self.numbers.start, self.numbers.stop, CHUNK):
            numbers = range(first, min(first + CHUNK, self.numbers.stop))
            yield Job(self.path, self.arch, self.name, self.seed, numbers, self.samples, self.entry)


def harness_of(job: Job) -> Harness:
    """Load a job's image.

    Raises:
        FormatError: it is malformed, or has no code for an emulated architecture.
    """
    return Harness(load(job.path, job.arch, job.name), job.seed, job.entry)


_LOADED: list[tuple[tuple[Path, Arch | None, str, int, int | None], Harness]] = []
"""The harness of this process's last chunk."""


def run_chunk(job: Job) -> Result:
    """Execute a chunk, in a process that may have loaded the image for an earlier one."""
    key = (job.path, job.arch, job.name, job.seed, job.entry)
    if not _LOADED or _LOADED[0][0] != key:
        _LOADED[:] = [(key, harness_of(job))]
    return run_many(_LOADED[0][1], job.numbers, samples=job.samples)


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Result]]:
    """Yield results of chunks, with the number of their job, as they finish.

    Raises:
        BrokenProcessPool: a process died, for example of lack of memory.
    """
    chunks = [(number, chunk) for number, job in enumerate(jobs) for chunk in job.chunks()]
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        futures: dict[Future[Result], int] = {
            pool.submit(run_chunk, chunk): number for number, chunk in chunks
        }
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
