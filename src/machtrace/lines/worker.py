"""The child process that makes an index of a debug file, and may die of it.

It is native code that reads what anyone may have written: run apart, with limits, its death costs
one index. ``python -m machtrace.lines.worker TASK`` reads the file from its standard
input and writes a SymCache to its standard output; ``TASK`` is an :class:`IndexTask` as JSON.
What the library refuses, it says on standard error, and exits with :data:`REFUSED`.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import BufferedReader
from shutil import copyfileobj
from typing import Any, NoReturn, TypeVar

_Result = TypeVar("_Result")

REFUSED = 3
"""The exit status where the file was read and nothing could be made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTask:
    """What the child is to do."""

    offset: int
    """Where in its input the file begins: that of the slice, in a fat file."""
    size: int
    """Of the file, in bytes."""
    edits: tuple[tuple[int, str], ...]
    """Offsets in the file, and the bytes to put there, in hex."""
    processor_seconds: int
    """After so many it is ended."""
    memory: int
    """Bytes of address space that it may have."""
    output: int
    """Bytes that it may write."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def main() -> NoReturn:
    """Make the index that the command line asks for."""
    build(IndexTask(**json.loads(sys.argv[1])))


def build(task: IndexTask) -> NoReturn:
    """Make the index and end the process."""
    limit_process(task)
    try:
        whole = _input()
        data = memoryview(whole)[task.offset : task.offset + task.size]
        for at, value in task.edits:
            new = bytes.fromhex(value)
            data[at : at + len(new)] = new
        with_index(data, task.output, _write_and_end)
    except Exception as error:  # noqa: BLE001 (whatever it is, the parent reports it)
        sys.stderr.write(f"\n{type(error).__name__}: {error}".replace("\n", " ") + "\n")
        sys.stderr.flush()
        # The error has the library's objects, which must not be freed in any order.
        os._exit(REFUSED)


def limit_process(task: IndexTask) -> None:
    """Let the system end this process where it takes too much; where it can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, task.processor_seconds),
        (resource.RLIMIT_AS, task.memory),
    )
    for which, wanted in limits:
        _, most = resource.getrlimit(which)
        value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):  # macOS has no limit of address space
            continue


def _input() -> mmap.mmap | bytearray:
    """Standard input, mapped where it is a file; what is written to it stays in this process."""
    try:
        return mmap.mmap(sys.stdin.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # a pipe
        return bytearray(sys.stdin.buffer.read())


def with_index(
    data: bytes | memoryview,
    limit: int,
    use: Callable[[BufferedReader], _Result],
) -> _Result:
    """What ``use`` makes of the SymCache of an object file, while it is there.

    Args:
        data: the file.
        limit: bytes that the SymCache may take.
        use: is given it as a stream.

    Raises:
        Exception: whatever the library raises, of what it cannot read.
        ValueError: there is no object file, or the SymCache is larger than ``limit``.
    """
    from symbolic._lowlevel import ffi
    from symbolic.debuginfo import Archive

    # Each object borrows from the one before, and none keeps it alive: the names here do.
    borrowed = ffi.from_buffer(data)
    archive = Archive.from_bytes(borrowed)
    objects = list(archive.iter_objects())
    if not objects:
        raise ValueError("it holds no object file")
    index: Any = objects[0].make_symcache()
    stream = index.open_stream()
    if stream.raw.size > limit:
        raise ValueError(f"the index takes {stream.raw.size} bytes, {limit} are allowed")
    return use(stream)


def _write_and_end(stream: BufferedReader) -> NoReturn:
    copyfileobj(stream, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    os._exit(0)  # what the library would free now, the system frees quicker


if __name__ == "__main__":
    main()
