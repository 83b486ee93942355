"""The worker process that builds indices of debug files, and may die of one.

The library is native code that parses untrusted files. In a process of its own, with limits, its
death costs one index. ``python -m machtrace.lines.worker TASK [SIZE ...]`` reads files from its
standard input: one, at the offset that the task states, or consecutive ones of these sizes. For
each, as soon as it is done, it writes a :data:`RECORD` and a SymCache, or the reason why there is
none. ``TASK`` is an :class:`IndexTask` as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from io import BufferedReader
from shutil import copyfileobj
from struct import Struct
from typing import Any, NoReturn

from machtrace.frozen import dataclass

RECORD = Struct("<QQ")
"""A status (0, or :data:`REFUSED`), and the number of bytes that follow."""
REFUSED = 3
"""The status if the file was read and no index could be built."""
_MAX_REASON_LENGTH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTask:
    """The worker's input, and its limits."""

    offset: int = 0
    """The offset in the input of the only file: that of the slice, in a fat file."""
    size: int
    """The size of the input's files in bytes."""
    edits: tuple[tuple[int, str], ...] = ()
    """Offsets in the only file, and the bytes to put there, in hex."""
    processor_seconds: int
    """The processor time after which the system ends the worker."""
    memory: int
    """The limit of its address space in bytes."""
    output: int
    """The limit of one index in bytes."""

    def text(self) -> str:
        """Return the task as JSON."""
        return json.dumps(asdict(self))


def main() -> NoReturn:
    """Build the indices that the command line requests."""
    build(IndexTask(**json.loads(sys.argv[1])), [int(size) for size in sys.argv[2:]])


def build(task: IndexTask, sizes: Sequence[int] = ()) -> NoReturn:
    """Build the indices and end the process; see the module."""
    limit_process(task)
    last = max(0, len(sizes) - 1)
    for number, data in enumerate(_inputs(task, sizes)):
        _answer(data, task.output, is_last=number == last)
    os._exit(0)


def limit_process(task: IndexTask) -> None:
    """Let the system end this process if it takes too much, on systems that can."""
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


def _inputs(task: IndexTask, sizes: Sequence[int]) -> Iterator[bytes | memoryview]:
    if sizes:
        yield from map(sys.stdin.buffer.read, sizes)
        return
    data = memoryview(_whole_input())[task.offset : task.offset + task.size]
    for at, value in task.edits:
        new = bytes.fromhex(value)
        data[at : at + len(new)] = new
    yield data


def _whole_input() -> mmap.mmap | bytearray:
    """Map standard input if it is a file; what is written to it stays in this process."""
    try:
        return mmap.mmap(sys.stdin.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # a pipe
        return bytearray(sys.stdin.buffer.read())


def _answer(data: bytes | memoryview, limit: int, *, is_last: bool) -> None:
    output = sys.stdout.buffer

    def write(stream: BufferedReader) -> None:
        output.write(RECORD.pack(0, stream.raw.size))  # type: ignore[attr-defined]
        copyfileobj(stream, output)
        output.flush()
        if is_last:
            os._exit(0)  # the system frees faster than the library would

    try:
        with_index(data, limit, write)
    except Exception as error:  # noqa: BLE001 (whatever it is, the parent reports it)
        text = f"{type(error).__name__}: {error}".replace("\n", " ")[:_MAX_REASON_LENGTH].encode()
        output.write(RECORD.pack(REFUSED, len(text)) + text)
        output.flush()
        if is_last:
            # The error has the library's objects, which must not be freed in any order.
            os._exit(0)


def with_index(
    data: bytes | memoryview,
    limit: int,
    use: Callable[[BufferedReader], None],
) -> None:
    """Call ``use`` with the SymCache of an object file, as a stream.

    Args:
        data: the file.
        limit: the largest SymCache in bytes.
        use: consumes the stream while the library's objects live.

    Raises:
        Exception: whatever the library raises for a file that it cannot read.
        ValueError: ``data`` holds no object file, or the SymCache is larger than ``limit``.
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
    use(stream)


if __name__ == "__main__":
    main()
