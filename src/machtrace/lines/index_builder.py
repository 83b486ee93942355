"""Build indices of debug files in worker processes, which may die of a file.

A debug file's headers are edited in memory first. The library that builds indices takes names from
the symbol table, too: a label in the middle of a function ends its lines there, a function's cold
part gives its name to all of it, and code that no debug information describes is named after the
preceding symbol. Names by symbol are :mod:`machtrace.symbols.table`'s; so the table is hidden from
it. And it counts offsets from the stated address of the first segment, which need not be the
header's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from signal import Signals
from typing import BinaryIO, NamedTuple, TypeAlias

from machtrace.errors import DebugInformationError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import PT_DYNAMIC, PT_LOAD, SHT_SYMTAB
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.load_commands import LC_SYMTAB
from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.images.debug_file import DebugFile
from machtrace.lines.worker import RECORD, IndexTask
from machtrace.model.image import ImageFormat

_STDERR_LIMIT = 400
"""Characters of a worker's last line on stderr that are reported."""


class WorkerAnswer(NamedTuple):
    """A worker's output, and how it ended."""

    output: bytes
    """Everything that arrived in time."""
    problem: str | None
    """Why the output may be incomplete; None if the worker succeeded."""
    was_started: bool = True


def run_worker(
    module: str, arguments: Sequence[str], stdin: bytes | memoryview | BinaryIO, *, seconds: float
) -> WorkerAnswer:
    """Run a module of this package in a process of its own, and wait for it. Raises nothing.

    Args:
        module: its full name.
        arguments: of its command line.
        stdin: its standard input; a file is read from its current position.
        seconds: wall-clock time after which it is killed.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # a program that embeds Python
        reason = "no process can be started to read debug information (no Python executable)"
        return WorkerAnswer(b"", reason, was_started=False)
    data, file = (stdin, None) if isinstance(stdin, bytes | memoryview) else (None, stdin)
    try:
        done = subprocess.run(  # noqa: S603 (our own interpreter and arguments)
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=file,
            input=data,
            capture_output=True,
            env=worker_environment(),
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"debug information was not read within {seconds:.0f} seconds"
        return WorkerAnswer(error.stdout or b"", reason)
    except OSError as error:
        reason = f"no process could be started to read debug information ({error})"
        return WorkerAnswer(b"", reason, was_started=False)
    problem = _death(done.returncode, done.stderr) if done.returncode else None
    return WorkerAnswer(done.stdout, problem)


def worker_environment() -> dict[str, str]:
    """Return this process's environment with its ``sys.path``, for the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def _death(status: int, stderr: bytes) -> str:
    """Describe a worker that ended with a status other than 0."""
    if status < 0:
        try:
            name = Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the reader of debug information died ({name})"
    line = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][-_STDERR_LIMIT:]
    return f"the reader of debug information ended with status {status} ({line})"


Edits: TypeAlias = tuple[tuple[int, bytes], ...]
"""Offsets in the file, or the slice, and the bytes to put there; all within it."""

_NSYMS_OFFSET = 12
"""The offset of ``nsyms`` in a ``symtab_command``."""
_SH_TYPE_OFFSET = 4
_NOTHING = bytes(4)
"""No symbols; ``SHT_NULL``, ``PT_NULL``."""


def header_edits(contents: ObjectFile) -> Edits:
    """Return the edits of a file's headers."""
    if contents.format is ImageFormat.MACHO:
        return _macho_edits(contents.image)
    return _elf_edits(contents.image)


def _macho_edits(image: MachOImage) -> Edits:
    return tuple(
        (command.offset + _NSYMS_OFFSET, _NOTHING) for command in image.commands_of(LC_SYMTAB)
    )


def _elf_edits(image: ElfImage) -> Edits:
    header, layout = image.header, image.layout
    edits = [
        (
            header.section_headers_offset + number * header.section_header_size + _SH_TYPE_OFFSET,
            _NOTHING,
        )
        for number, section in enumerate(image.sections)
        if section.type == SHT_SYMTAB
    ]
    first = True
    for number, segment in enumerate(image.segments):
        at = header.program_headers_offset + number * header.program_header_size
        if segment.type == PT_DYNAMIC:
            edits.append((at, _NOTHING))
        elif segment.type == PT_LOAD and first:
            first = False
            address = image.header_svma.to_bytes(
                layout.pointer_size, "little" if layout.little_endian else "big"
            )
            edits.append((at + (16 if layout.is_64 else 8), address))
    return tuple(edits)


_WORKER = "machtrace.lines.worker"
_MIB = 1 << 20
_COMPARED = 4096
"""Bytes that are compared to recognise the file that was mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """Limits of a worker: an allowance for any file, and more for each byte of a large one.

    A dSYM of 100 MB takes a second, 260 MB of memory and an index of 24 MB.
    """

    processor_seconds: float = 20
    """Processor time; of wall-clock time :attr:`patience` times as much is allowed."""
    processor_seconds_per_mib: float = 0.5
    patience: float = 10
    memory: int = 1024 * _MIB
    """Bytes of address space."""
    memory_per_byte: int = 12
    output: int = 64 * _MIB
    """Bytes of an index."""
    output_per_byte: int = 4

    def seconds_for(self, size: int) -> float:
        """Return the processor time for a file of ``size`` bytes."""
        return self.processor_seconds + self.processor_seconds_per_mib * size / _MIB

    def task(
        self, size: int, *, offset: int = 0, edits: tuple[tuple[int, str], ...] = ()
    ) -> IndexTask:
        """Return the task for a file of ``size`` bytes; see :class:`IndexTask` for the others."""
        return IndexTask(
            offset=offset,
            size=size,
            edits=edits,
            processor_seconds=max(1, round(self.seconds_for(size))),
            memory=self.memory + self.memory_per_byte * size,
            output=self.output + self.output_per_byte * size,
        )


DEFAULT_LIMITS = BuildLimits()


def build_index(file: DebugFile, limits: BuildLimits = DEFAULT_LIMITS) -> memoryview:
    """Return the SymCache of ``file``.

    Raises:
        DebugInformationError: the worker refused the file, died, or exceeded ``limits``.
    """
    seconds = limits.patience * limits.seconds_for(len(file.data))
    with ExitStack() as opened:
        source = _reopened(file, opened)
        task = index_task(file, limits, offset=0 if source is None else file.slice_offset)
        stdin = file.data if source is None else source
        answer = run_worker(_WORKER, [task.text()], stdin, seconds=seconds)
    index = next(_records(answer.output), None)
    if isinstance(index, str):
        raise DebugInformationError(file.path, f"debug information cannot be read ({index})")
    if index is None or answer.problem is not None:
        raise DebugInformationError(file.path, answer.problem or "no index was built")
    return index


def index_task(file: DebugFile, limits: BuildLimits, *, offset: int = 0) -> IndexTask:
    """Return the worker's task for ``file``, which begins at ``offset`` of its input."""
    edits = tuple((at, new.hex()) for at, new in header_edits(file.contents))
    return limits.task(len(file.data), offset=offset, edits=edits)


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """An object file to build an index of."""

    source: str
    """Its name in errors."""
    data: bytes | bytearray


def build_indices(
    objects: Sequence[ObjectBytes], limits: BuildLimits = DEFAULT_LIMITS
) -> list[memoryview | str]:
    """Return the SymCache of each object file, or why there is none. Raises nothing.

    One worker builds many. If it dies, the object file that it was at has none, and another worker
    continues with the next.
    """
    indices: list[memoryview | str] = []
    while len(indices) < len(objects):
        rest = objects[len(indices) :]
        size = sum(len(file.data) for file in rest)
        task = replace(limits.task(size), output=limits.output)  # of each object file
        answer = run_worker(
            _WORKER,
            [task.text(), *(str(len(file.data)) for file in rest)],
            b"".join(file.data for file in rest),
            seconds=limits.patience * limits.seconds_for(size),
        )
        reason = answer.problem or "no index was built"
        if not answer.was_started:
            return [*indices, *[reason] * len(rest)]
        indices += islice(_records(answer.output), len(rest))
        if len(indices) < len(objects):
            indices.append(reason)
    return indices


def _records(output: bytes) -> Iterator[memoryview | str]:
    """Yield the indices and reasons that a worker wrote."""
    view, at = memoryview(output), 0
    while at + RECORD.size <= len(view):
        status, size = RECORD.unpack_from(view, at)
        at += RECORD.size
        content = view[at : at + size]
        if len(content) < size:
            return
        yield str(content, "utf-8", "replace") if status else content
        at += size


def _reopened(file: DebugFile, opened: ExitStack) -> BinaryIO | None:
    """Open the file of ``file`` again; None if it is a member of an archive, or was replaced."""
    try:
        source = opened.enter_context(Path(file.path).open("rb"))  # noqa: SIM115 (it is closed)
        source.seek(file.slice_offset)
        is_same = source.read(_COMPARED) == file.data[:_COMPARED]
        is_whole = os.fstat(source.fileno()).st_size >= file.slice_offset + len(file.data)
    except (OSError, ValueError):
        return None
    return source if is_same and is_whole else None
