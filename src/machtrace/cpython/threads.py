"""The Python functions of each thread of a process, from its memory.

``_PyRuntime`` leads to the interpreters, each to its thread states, each to the frame of the
function that runs; frames lead to those of their callers. It is read as the interpreter's own
debugging support has it (``Modules/_remote_debugging`` of 3.14), for all versions from 3.11 on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, TypeAlias

from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.objects import (
    CopiedCode,
    PythonCode,
    PythonObjects,
    copied_code,
    function_at,
)
from machtrace.cpython.runs import FrameRow, LoopRun, PythonRuns, RunFinder, memory_error
from machtrace.errors import FormatError, MachtraceError, MemoryReadError, TargetError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.options import WITHOUT_PYTHON
from machtrace.model.snapshot import (
    GilState,
    Problem,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.model.symbol import PythonFrame

_POINTER = Struct("<Q")
_MAX_INTERPRETERS = 1 << 10
_MAX_THREADS = 1 << 16
_MAX_FRAMES = 1 << 17
"""Frames of all threads in one capture."""
_MAX_CACHED = 1 << 14
"""Stacks of frames whose runs are cached."""

_UINT_MAX = (1 << 32) - 1

_LINK = Struct("<2Q")
_ROW = Struct("<8Q")
"""``machtrace_python_link`` and ``machtrace_python_row`` of ``native/ptrace/python.h``."""

_READER_ERRORS = (
    "",
    "unreadable memory",
    "a thread state belongs to another interpreter",
    "a list does not end",
    "a chain of frames does not end",
    "expected an object of type code",
    "a str is not a valid name",
    "expected an object of type bytes",
    "names and lines exceed the limit",
    "out of memory",
)
"""Messages of ``enum machtrace_python_error``."""


class Gil(NamedTuple):
    """The state of one interpreter lock."""

    address: int
    """The address of its ``_gil_runtime_state`` (Avma)."""
    holder: int | None
    """The system's id of the thread that holds it, as the process itself knows it."""


_Runs = tuple[tuple[PythonFrame, ...], ...]


@dataclass(frozen=True, slots=True)
class PythonThreads:
    """The threads of a process as its memory has them, by the process's own thread ids."""

    functions: dict[int, _Runs]
    """The runs of each thread and the functions in each, both innermost first."""
    errors: tuple[tuple[int | None, MachtraceError], ...]
    """Errors, each with its thread or None."""
    gils: tuple[Gil, ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    """``threading.Thread.name``, where it was read."""


def read_threads(
    memory: MemoryReader, runtime: int, layout: PythonLayout, *, only: Collection[int] | None = None
) -> PythonThreads:
    """Read the threads that have a thread state; failures are recorded, not raised.

    Args:
        memory: the process's, which must not change meanwhile.
        runtime: address of its ``_PyRuntime`` (Avma).
        layout: the interpreter's.
        only: the system's ids of threads; others are not read. None for all.
    """
    return ThreadReader(memory, layout, runtime).threads(only)


def read_names(memory: MemoryReader, runtime: int, layout: PythonLayout) -> dict[int, str]:
    """Return the names of Python's threads by the system's id; see :func:`read_threads`."""
    return ThreadReader(memory, layout, runtime).names()


class _Threads:
    """The threads of a process, as far as they are read."""

    def __init__(self) -> None:
        self._chains: dict[int, list[list[LoopRun]]] = {}
        self._natives: dict[int, int] = {}
        """Thread ids by the addresses of thread states."""
        self.errors: dict[int | None, MachtraceError] = {}

    def add(self, native: int, state: int, runs: list[LoopRun] | MachtraceError) -> None:
        self._natives[state] = native
        if isinstance(runs, MachtraceError):
            self.errors[native] = runs
        else:
            self._chains.setdefault(native, []).extend([runs] if runs else [])

    def result(self, gils: Iterable[tuple[int, int, int]], names: dict[int, str]) -> PythonThreads:
        """Return the threads.

        Args:
            gils: address, holder and whether it is locked, for each interpreter.
            names: by the system's thread id.
        """
        return PythonThreads(
            {
                native: tuple(tuple(run.functions) for run in _merged(chains))
                for native, chains in self._chains.items()
                if chains and native not in self.errors
            },
            tuple(self.errors.items()),
            tuple(
                Gil(address, self._natives.get(holder) if is_locked else None)
                for address, holder, is_locked in dict.fromkeys(gils)
                if address
            ),
            names,
        )


class ThreadReader:
    """Reads memory that does not change."""

    def __init__(self, memory: MemoryReader, layout: PythonLayout, runtime: int) -> None:
        self._memory = memory
        self._layout = layout
        self._runtime = runtime
        self._objects = PythonObjects(memory, layout)
        self._runs = RunFinder(layout, self._frame_at, self._function)
        self._frames_left = _MAX_FRAMES
        self._threads_left = _MAX_THREADS
        size = max(
            layout.thread_next, layout.thread_native_id, layout.thread_ident, layout.thread_frame
        )
        self._thread_size = size + _POINTER.size
        entry = layout.frame_is_entry
        ends = (layout.frame_code, layout.frame_previous, layout.frame_instruction)
        self._frame_size = max(
            max(ends) + _POINTER.size, layout.frame_owner + 1, 0 if entry is None else entry + 1
        )

    def threads(self, only: Collection[int] | None) -> PythonThreads:
        """Read all threads, or those of ``only``."""
        threads = _Threads()
        gils: list[tuple[int, int, int]] = []
        try:
            for interpreter in self._interpreters():
                gils.append(self._gil(interpreter))
                for native, state, data in self._thread_states(interpreter):
                    if only is not None and native not in only:
                        continue
                    try:
                        first = _pointer(data, self._layout.thread_frame)
                        runs = self._runs.runs(self._links(first))
                    except MachtraceError as error:
                        threads.add(native, state, error)
                    else:
                        threads.add(native, state, runs)
        except MachtraceError as error:
            threads.errors[None] = error
        return threads.result(gils, self.names() if only is None else {})

    def names(self) -> dict[int, str]:
        """Return the names of Python's threads by the system's id; none where that fails."""
        names: dict[int, str] = {}
        with suppress(MachtraceError):
            for interpreter in self._interpreters():
                named = self._objects.thread_names(interpreter)
                for native, _, data in self._thread_states(interpreter):
                    name = named.get(_pointer(data, self._layout.thread_ident))
                    if name:
                        names[native] = name
        return names

    def _interpreters(self) -> Iterator[int]:
        layout = self._layout
        yield from self._linked(
            self._objects.pointer(self._runtime + layout.interpreters_head),
            layout.interpreter_next,
            _MAX_INTERPRETERS,
        )

    def _gil(self, interpreter: int) -> tuple[int, int, int]:
        """Return its lock's address, holder and whether it is locked; zeros if unreadable."""
        layout, pointer = self._layout, self._objects.pointer
        try:
            if layout.runtime_gil is not None:
                gil = self._runtime + layout.runtime_gil
            else:
                gil = pointer(interpreter + (layout.interpreter_gil or 0))
            locked = pointer(gil + layout.gil_locked) & _UINT_MAX
            return gil, pointer(gil + layout.gil_holder), int(locked == 1)
        except MachtraceError:
            return 0, 0, 0

    def _thread_states(self, interpreter: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield native id, address and bytes of each thread state that belongs to a thread."""
        layout = self._layout
        first = self._objects.pointer(interpreter + layout.threads_head)
        for state in self._linked(first, layout.thread_next, self._threads_left):
            self._threads_left -= 1
            data = bytes(self._memory.read(Avma(state), self._thread_size))
            if _pointer(data, layout.thread_interpreter) != interpreter:
                raise memory_error("a thread state belongs to another interpreter", state)
            native = _pointer(data, layout.thread_native_id)
            if native:
                yield native, state, data

    def _links(self, first: int) -> list[tuple[int, int]]:
        layout, pointer = self._layout, self._objects.pointer
        current_at = layout.c_frame_current
        if current_at is None:
            return [(0, first)]
        return [
            (here, pointer(here + current_at))
            for here in self._linked(first, layout.c_frame_previous, _MAX_FRAMES)
        ]

    def _linked(self, first: int, next_at: int, most: int) -> Iterator[int]:
        seen: set[int] = set()
        here = first
        while here:
            if here in seen or len(seen) >= most:
                raise memory_error("a list does not end", here)
            seen.add(here)
            yield here
            here = self._objects.pointer(here + next_at)

    def _frame_at(self, frame: int) -> FrameRow:
        layout = self._layout
        self._frames_left -= 1
        if self._frames_left < 0:
            raise memory_error("a chain of frames does not end", frame)
        data = bytes(self._memory.read(Avma(frame), self._frame_size))
        entry = layout.frame_is_entry
        return FrameRow(
            previous=_pointer(data, layout.frame_previous),
            instruction=_pointer(data, layout.frame_instruction),
            code=_pointer(data, layout.frame_code) & ~layout.code_tags,
            serial=0,
            owner=data[layout.frame_owner],
            is_entry=0 if entry is None else data[entry],
            error=0,
        )

    def _function(self, row: FrameRow) -> PythonFrame:
        code = self._objects.code(row.code)
        return function_at(code, row.code, row.instruction, self._layout)


_PythonThread: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes]
Copied: TypeAlias = tuple[
    list[tuple[int, int, int, int]], list[_PythonThread], list[CopiedCode], bool, int, int
]
"""The result of ``PythonReader.copied`` of :mod:`machtrace._native._ptrace`."""


class CopiedThreads:
    """Decodes copies by ``native/ptrace/python.c``, of one process.

    What a copy shares with an earlier one is not decoded again: equal serials are equal code.
    """

    def __init__(self, layout: PythonLayout) -> None:
        self._layout = layout
        self._codes: dict[int, PythonCode] = {}
        self._known: dict[tuple[bytes, bytes], list[LoopRun] | MachtraceError] = {}

    def decode(self, copied: Copied, names: dict[int, str]) -> PythonThreads:
        """Return the threads of a copy.

        Args:
            copied: what ``PythonReader.copied`` returned.
            names: the threads' names, by the system's id.
        """
        interpreters, states, codes, forgot, error, error_address = copied
        if forgot:
            self._codes, self._known = {}, {}
        elif len(self._known) > _MAX_CACHED:
            self._known = {}
        for code in codes:
            self._codes[code[0]] = copied_code(code)
        threads = _Threads()
        for _, state, native, _, failure, address, links, rows in states:
            if failure:
                threads.add(native, state, _reader_error(failure, address))
                continue
            known = self._known.get((links, rows))
            if known is None:
                known = self._known[links, rows] = self._runs(links, rows)
            threads.add(native, state, known)
        if error:
            threads.errors[None] = _reader_error(error, error_address)
        return threads.result((row[1:] for row in interpreters), names)

    def _runs(self, links: bytes, rows: bytes) -> list[LoopRun] | MachtraceError:
        frames = {row[0]: FrameRow(*row[1:]) for row in _ROW.iter_unpack(rows)}

        def frame_at(address: int) -> FrameRow:
            row = frames.get(address)
            if row is None:
                raise MemoryReadError(Avma(address), _ROW.size)
            return row

        try:
            return RunFinder(self._layout, frame_at, self._function).runs(
                list(_LINK.iter_unpack(links))
            )
        except MachtraceError as error:
            return error

    def _function(self, row: FrameRow) -> PythonFrame:
        if row.error:
            raise _reader_error(row.error, row.code)
        return function_at(self._codes[row.serial], row.code, row.instruction, self._layout)


def _reader_error(number: int, address: int) -> FormatError:
    return memory_error(_READER_ERRORS[number], address)


def _merged(chains: list[list[LoopRun]]) -> list[LoopRun]:
    """Order the runs of a thread in several interpreters by their place on the native stack."""
    if len(chains) == 1:
        return chains[0]
    return sorted((run for chain in chains for run in chain), key=_place)


def _place(run: LoopRun) -> int:
    return run.place


def _pointer(data: bytes, offset: int) -> int:
    value: int = _POINTER.unpack_from(data, offset)[0]
    return value


def with_functions(
    snapshot: Snapshot, python: PythonThreads, ids: dict[int, ThreadId]
) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
    """Return the snapshot with names, lock states and problems added, and the threads' functions.

    Args:
        snapshot: of the same moment.
        python: read from the process's memory.
        ids: the snapshot's thread ids by the process's own ones.
    """
    problems = [
        Problem(thread=None if thread is None else ids[thread], error=_unreadable(error))
        for thread, error in python.errors
        if thread is None or thread in ids
    ]
    runs: dict[ThreadId, PythonRuns] = {
        ids[thread]: functions for thread, functions in python.functions.items() if thread in ids
    }
    names = {ids[thread]: name for thread, name in python.names.items() if thread in ids}
    holders = {ids.get(gil.holder) for gil in python.gils if gil.holder is not None}
    threads = tuple(
        _with_python_facts(thread, names, _gil_state(thread, holders, python.gils))
        for thread in snapshot.threads
    )
    return replace(snapshot, threads=threads, problems=(*snapshot.problems, *problems)), runs


def _with_python_facts(
    thread: ThreadSnapshot, names: dict[ThreadId, str], gil: GilState | None
) -> ThreadSnapshot:
    info = thread.info
    name = names.get(info.id, info.name)
    if name == info.name and gil is info.gil:
        return thread
    return thread.with_info(_changed(info, name, gil))


@lru_cache(maxsize=1 << 12)
def _changed(info: ThreadInfo, name: str | None, gil: GilState | None) -> ThreadInfo:
    return replace(info, name=name, gil=gil)


def _gil_state(
    thread: ThreadSnapshot, holders: set[ThreadId | None], gils: Sequence[Gil]
) -> GilState | None:
    if thread.info.id in holders:
        return GilState.HOLDS
    registers = thread.native_registers
    if len(registers) != _X86_64_REGISTERS:
        return None
    # A thread that waits is in futex(2), for the condition variable of the lock.
    call, address = (_pointer(registers, _POINTER.size * at) for at in (_ORIG_RAX, _RDI))
    if call == _FUTEX and any(address - gil.address in _GIL_CONDITION for gil in gils):
        return GilState.WAITS
    return None


_X86_64_REGISTERS = 216
_RDI, _ORIG_RAX = 14, 15
"""Indexes in ``user_regs_struct`` of x86-64; elsewhere a stop overwrites the call's arguments."""
_FUTEX = 202
_GIL_CONDITION = range(32, 120)
"""Offsets in ``_gil_runtime_state`` of ``cond`` and ``mutex``, of CPython 3.11 to 3.14 with the C
libraries of 64-bit Linux."""


def with_problem(snapshot: Snapshot, error: MachtraceError) -> Snapshot:
    """Return the snapshot with one more problem."""
    problem = Problem(thread=None, error=error)
    return replace(snapshot, problems=(*snapshot.problems, problem))


def _unreadable(error: MachtraceError) -> TargetError:
    unreadable = TargetError(
        f"Python functions could not be read ({error})",
        remedy=f"capture again; if it happens each time, {WITHOUT_PYTHON}",
    )
    unreadable.__cause__ = error
    return unreadable
