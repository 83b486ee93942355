"""Making an index of a debug file, in a child process that may die of it.

Starting the child processes that make indices, and telling what became of them.

What is changed in a debug file's headers, in memory, before an index is made of it.

The library that makes indices takes names from the symbol table, too: a label in the middle of a
function ends its lines there, a function's cold part gives its name to all of it, and what no
debug information describes is named after whatever symbol came before. Names by symbol are
:mod:`machtrace.symbols.table`'s; so the table is hidden from it. And it counts offsets
from the address that the first segment states, which need not be where the header is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import BinaryIO, NamedTuple, TypeAlias

from machtrace.errors import DebugInformationError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import PT_DYNAMIC, PT_LOAD, SHT_SYMTAB
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.load_commands import LC_SYMTAB
from machtrace.formats.object_file import ObjectFile
from machtrace.images.debug_file import DebugFile
from machtrace.lines.worker import REFUSED, IndexTask
from machtrace.model.image import ImageFormat

_COMPLAINT = 400
"""Characters of what the child said last that are told."""


class WorkerAnswer(NamedTuple):
    """What a child process wrote, and how it ended."""

    output: bytes
    """All of it that came in time."""
    problem: str | None
    """Why there may be no more of it; None where the child ended well."""
    was_started: bool = True


def run_worker(
    module: str, arguments: Sequence[str], given: bytes | memoryview | BinaryIO, *, seconds: float
) -> WorkerAnswer:
    """Run a module of ours in a process of its own, and wait for it. Raises nothing.

    Args:
        module: its full name.
        arguments: of its command line.
        given: what is at its standard input; of a file, from where it is now.
        seconds: after so many, by the clock on the wall, the child is ended.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # a program that embeds Python
        reason = "no process can be started to read debug information (no Python executable)"
        return WorkerAnswer(b"", reason, was_started=False)
    data, file = (given, None) if isinstance(given, bytes | memoryview) else (None, given)
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
    problem = _why_it_ended(done.returncode, done.stderr) if done.returncode else None
    return WorkerAnswer(done.stdout, problem)


def worker_environment() -> dict[str, str]:
    """This process's, with its ``sys.path``: the child is to find the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def _why_it_ended(status: int, complaint: bytes) -> str:
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


Edits: TypeAlias = tuple[tuple[int, bytes], ...]
"""Offsets in the file, or the slice, and what to put there; all within it."""

_NSYMS_OFFSET = 12
"""Of ``nsyms`` in a ``symtab_command``."""
_SH_TYPE_OFFSET = 4
_NOTHING = bytes(4)
"""No symbols; ``SHT_NULL``, ``PT_NULL``."""


def header_edits(contents: ObjectFile) -> Edits:
    """What to change in a file of these contents."""
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
