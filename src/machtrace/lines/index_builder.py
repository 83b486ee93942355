"""Making an index of a debug file, in a child process that may die of it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from machtrace.errors import DebugInformationError
from machtrace.lines.child_process import run_worker
from machtrace.images.debug_file import DebugFile
from machtrace.lines.worker import IndexTask
from machtrace.lines.index_edits import header_edits

_WORKER = "machtrace.lines.worker"
_MIB = 1 << 20
_COMPARED = 4096
"""Bytes by which a file is taken to be the one that was mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """What a child may take: an allowance for any file, and more for each byte of a large one.

    A dSYM of 100 MB takes a second, 260 MB of memory and an index of 24 MB.
    """

    processor_seconds: float = 20
    """Of processor time; the clock on the wall may show :attr:`patience` times as many."""
    processor_seconds_per_mib: float = 0.5
    patience: float = 10
    memory: int = 1024 * _MIB
    """Of address space, in bytes."""
    memory_per_byte: int = 12
    output: int = 64 * _MIB
    """Of an index, in bytes."""
    output_per_byte: int = 4

    def seconds_for(self, size: int) -> float:
        """Of processor time, for a file of ``size`` bytes."""
        return self.processor_seconds + self.processor_seconds_per_mib * size / _MIB

    def task(
        self, size: int, *, offset: int = 0, edits: tuple[tuple[int, str], ...] = ()
    ) -> IndexTask:
        """What a child is told of a file of ``size`` bytes; see :class:`IndexTask` of the rest."""
        return IndexTask(
            offset=offset,
            size=size,
            edits=edits,
            processor_seconds=max(1, round(self.seconds_for(size))),
            memory=self.memory + self.memory_per_byte * size,
            output=self.output + self.output_per_byte * size,
        )


DEFAULT_LIMITS = BuildLimits()


def build_index(file: DebugFile, limits: BuildLimits = DEFAULT_LIMITS) -> bytes:
    """The SymCache of ``file``.

    Raises:
        DebugInformationError: the child refused the file, died, or took more than ``limits``.
    """
    seconds = limits.patience * limits.seconds_for(len(file.data))
    with ExitStack() as opened:
        source = _reopened(file, opened)
        task = index_task(file, limits, offset=0 if source is None else file.slice_offset)
        given = file.data if source is None else source
        answer = run_worker(_WORKER, [task.text()], given, seconds=seconds)
    if answer.problem is not None:
        raise DebugInformationError(file.path, answer.problem)
    return answer.output


def index_task(file: DebugFile, limits: BuildLimits, *, offset: int = 0) -> IndexTask:
    """What the child is told of ``file``, which begins at ``offset`` of what it is given."""
    edits = tuple((at, new.hex()) for at, new in header_edits(file.contents))
    return limits.task(len(file.data), offset=offset, edits=edits)


def _reopened(file: DebugFile, opened: ExitStack) -> BinaryIO | None:
    """The file that ``file`` is from; None where it is of an archive, or no longer there."""
    try:
        source = opened.enter_context(Path(file.path).open("rb"))  # noqa: SIM115 (it is closed)
        source.seek(file.slice_offset)
        is_same = source.read(_COMPARED) == file.data[:_COMPARED]
        is_whole = os.fstat(source.fileno()).st_size >= file.slice_offset + len(file.data)
    except (OSError, ValueError):
        return None
    return source if is_same and is_whole else None
