"""Making an index of a debug file, in a child process that may die of it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import BinaryIO

from machtrace.errors import DebugInformationError
from machtrace.symbolicate.debug_file import DebugFile
from machtrace.symbolicate.index_builder import REFUSED, IndexTask
from machtrace.symbolicate.index_edits import index_edits

_BUILDER = "machtrace.symbolicate.index_builder"
_MIB = 1 << 20
_COMPARED = 4096
"""Bytes by which a file is taken to be the one that was mapped."""
_COMPLAINT = 400
"""Characters of what the child said last that are told."""


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

    def task(self, file: DebugFile, offset: int) -> IndexTask:
        """What the child is told of ``file``, which begins at ``offset`` of what it is given."""
        size = len(file.data)
        return IndexTask(
            offset=offset,
            size=size,
            edits=tuple((at, new.hex()) for at, new in index_edits(file.contents)),
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
    if not sys.executable or getattr(sys, "frozen", False):  # a program that embeds Python
        reason = "no process can be started to read debug information (no Python executable)"
        raise DebugInformationError(file.path, reason)
    seconds = limits.patience * limits.seconds_for(len(file.data))
    with ExitStack() as opened:
        source = _reopened(file, opened)
        task = limits.task(file, 0 if source is None else file.slice_offset)
        try:
            done = subprocess.run(  # noqa: S603 (our own interpreter and arguments)
                [sys.executable, "-P", "-m", _BUILDER, task.text()],
                stdin=source,
                input=file.data if source is None else None,
                capture_output=True,
                env=child_environment(),
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"debug information was not read within {seconds:.0f} seconds"
            raise DebugInformationError(file.path, reason) from None
        except OSError as error:
            reason = f"no process could be started to read debug information ({error})"
            raise DebugInformationError(file.path, reason) from error
    if done.returncode:
        raise DebugInformationError(file.path, why_it_ended(done.returncode, done.stderr))
    return done.stdout


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


def child_environment() -> dict[str, str]:
    """This process's, with its ``sys.path``: the child is to find the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def why_it_ended(status: int, complaint: bytes) -> str:
    """What became of a child with an exit status that is not 0, and with what it said last."""
    said = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2][-_COMPLAINT:]
    if status == REFUSED:
        return f"debug information cannot be read ({said})"
    if status < 0:
        try:
            name = Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the reader of debug information died ({name})"
    return f"the reader of debug information ended with status {status} ({said})"
