"""Mutated files with DWARF, of which an index is made in a child that may die of them.

The child is forked, and runs :mod:`machtrace.lines.worker`. A crash of it is not a finding: it
exists to isolate crashes. An index that it built is opened and queried.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from tempfile import TemporaryFile

from fuzz.programs import debug_programs
from fuzz.target import Target
from fuzz.targets.symcache import ask
from machtrace.formats.object_file import sniff
from machtrace.images.debug_file import DebugFile, FoundBy
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import BuildLimits, index_task
from machtrace.lines.symcache import SymCache
from machtrace.lines.worker import RECORD, IndexTask, build

_MAX_INPUTS = 20_000
"""Inputs of a run: each takes a process."""
_LIMITS = BuildLimits(processor_seconds=5, memory=4 << 30, output=16 << 20)


def run(data: bytes) -> None:
    """Parse the headers, make an index in a child, and open what it made."""
    contents = sniff(data, "fuzz")[0].open()
    view = memoryview(data)
    file = DebugFile(contents=contents, data=view, path="fuzz", found_by=FoundBy.GIVEN)
    made = _made(index_task(file, _LIMITS), data)
    if made:
        tables = SymCache(made)
        ask(DebugIndex(tables), tables.columns.range_starts)


def _made(task: IndexTask, data: bytes) -> bytes:
    """Return the child's output; empty if it refused or died."""
    with TemporaryFile() as source, TemporaryFile() as written:
        source.write(data)
        source.seek(0)
        child = os.fork()
        if not child:
            _be_the_child(task, source.fileno(), written.fileno())
        _, status = os.waitpid(child, 0)
        written.seek(0)
        answer = written.read()
        is_index = status == 0 and len(answer) > RECORD.size and not RECORD.unpack_from(answer)[0]
        return answer[RECORD.size :] if is_index else b""


def _be_the_child(task: IndexTask, source: int, written: int) -> None:
    """Build the index and exit."""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # the run's, whose handler is in this copy
        os.dup2(source, 0)
        os.dup2(written, 1)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the new ones)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        build(task)
    finally:
        os._exit(1)


@cache
def _seeds() -> Sequence[bytes]:
    import symbolic.debuginfo  # noqa: F401 (once, and not in each child)

    return [path.read_bytes() for path in debug_programs()]


TARGET = Target("debug_files", run, _seeds, most=_MAX_INPUTS)
