"""The Python functions of each thread of a process, from its memory.

``_PyRuntime`` leads to the interpreters, each to its thread states, each to the frame of the
function that runs; frames lead to those of their callers. It is read as the interpreter's own
debugging support has it (``Modules/_remote_debugging`` of 3.14), for all versions from 3.11 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from struct import Struct

from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.objects import PythonObjects, Standing
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import FormatError, MachtraceError, TargetError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Problem, Snapshot, ThreadId
from machtrace.model.symbol import PythonFrame

_POINTER = Struct("<Q")
_TAGS = 3
"""Lowest bits of a reference to code that are none of its address (``_PyStackRef`` of 3.14)."""
_OWNED_BY_LOOP = 3
"""``enum _frameowner`` from 3.12 on: this and what is above is a shim that begins a run."""

_MOST_INTERPRETERS = 1 << 10
_MOST_THREADS = 1 << 16
_MOST_FRAMES = 1 << 17
"""Frames of all threads in one capture, during which the process is frozen."""


@dataclass(slots=True)
class PythonRun:
    """A run of the interpreter's loop."""

    functions: list[Standing] = field(default_factory=list)
    """Innermost first."""
    place: int = 0
    """Address of its data on the native stack: inner runs are lower."""


@dataclass(frozen=True, slots=True)
class PythonThreads:
    """The threads of a process as its memory has them."""

    standing: dict[int, tuple[tuple[Standing, ...], ...]]
    """The runs of each thread and the functions in each, both innermost first; by the system's
    thread id, as the process itself knows it."""
    errors: tuple[tuple[int | None, MachtraceError], ...]
    """Errors, each with its thread or None."""

    def runs(self, thread: int) -> tuple[tuple[PythonFrame, ...], ...]:
        """Return the functions of a thread with their names and lines."""
        return tuple(tuple(one.function() for one in run) for run in self.standing.get(thread, ()))


def read_threads(memory: MemoryReader, runtime: int, layout: PythonLayout) -> PythonThreads:
    """Read all threads that have a thread state; failures are recorded, not raised.

    Args:
        memory: the process's, which must not change meanwhile.
        runtime: address of its ``_PyRuntime`` (Avma).
        layout: the interpreter's.
    """
    return _Reader(memory, layout).threads(runtime)


class _Reader:
    def __init__(self, memory: MemoryReader, layout: PythonLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._objects = PythonObjects(memory, layout)
        self._frames_left = _MOST_FRAMES
        self._threads_left = _MOST_THREADS
        size = max(layout.thread_next, layout.thread_native_id, layout.thread_frame)
        self._thread_size = size + _POINTER.size
        entry = layout.frame_is_entry
        ends = (layout.frame_code, layout.frame_previous, layout.frame_instruction)
        self._frame_size = max(
            max(ends) + _POINTER.size, layout.frame_owner + 1, 0 if entry is None else entry + 1
        )

    def threads(self, runtime: int) -> PythonThreads:
        chains_of: dict[int, list[list[PythonRun]]] = {}
        errors: dict[int | None, MachtraceError] = {}
        try:
            for native, state in self._thread_states(runtime):
                try:
                    runs = list(self._runs(state))
                except MachtraceError as error:
                    errors[native] = error
                else:
                    chains_of.setdefault(native, []).extend([runs] if runs else [])
        except MachtraceError as error:
            errors[None] = error
        return PythonThreads(
            {
                native: tuple(tuple(run.functions) for run in _merged(chains))
                for native, chains in chains_of.items()
                if chains and native not in errors
            },
            tuple(errors.items()),
        )

    def _thread_states(self, runtime: int) -> Iterator[tuple[int, bytes]]:
        """Yield the native id and the bytes of each thread state that belongs to a thread."""
        layout = self._layout
        heads = self._linked(
            self._objects.pointer(runtime + layout.interpreters_head),
            layout.interpreter_next,
            _MOST_INTERPRETERS,
        )
        for interpreter in heads:
            first = self._objects.pointer(interpreter + layout.threads_head)
            for state in self._linked(first, layout.thread_next, self._threads_left):
                self._threads_left -= 1
                data = bytes(self._memory.read(Avma(state), self._thread_size))
                if _pointer(data, layout.thread_interpreter) != interpreter:
                    raise self._error("a thread state belongs to another interpreter", state)
                native = _pointer(data, layout.thread_native_id)
                if native:
                    yield native, data

    def _linked(self, first: int, next_at: int, most: int) -> Iterator[int]:
        seen: set[int] = set()
        here = first
        while here:
            if here in seen or len(seen) >= most:
                raise self._error("a list does not end", here)
            seen.add(here)
            yield here
            here = self._objects.pointer(here + next_at)

    def _runs(self, state: bytes) -> Iterator[PythonRun]:
        """Yield the runs of a thread, innermost first."""
        layout = self._layout
        if layout.c_frame_current is None:
            yield from self._shimmed(_pointer(state, layout.thread_frame))
        else:
            yield from self._c_framed(_pointer(state, layout.thread_frame), layout.c_frame_current)

    def _c_framed(self, c_frame: int, current_at: int) -> Iterator[PythonRun]:
        """3.11 and 3.12: each run has a C frame, and so has the thread, at the outer end.

        A run that just begins has linked its C frame but not yet stored its own frame;
        the stale pointer does not lead to the caller's. It is left
        out; the native frames, then one more than the runs, confirm that case.
        """
        layout, pointer = self._layout, self._objects.pointer
        is_innermost = True
        for here in self._linked(c_frame, layout.c_frame_previous, _MOST_FRAMES):
            previous = pointer(here + layout.c_frame_previous)
            if not previous:
                return  # the thread's own
            run = PythonRun(place=here)
            try:
                outer = self._run(pointer(here + current_at), run)
                if outer != pointer(previous + current_at):
                    raise self._error("a run of the loop does not lead to the previous one", here)
            except MachtraceError:
                if not is_innermost:
                    raise
            else:
                yield run
            is_innermost = False

    def _run(self, frame: int, run: PythonRun) -> int:
        """Fill ``run``; the frame that was the innermost when it began, or 0."""
        layout = self._layout
        for _, data in self._frames(frame):
            entry = layout.frame_is_entry
            if entry is None:
                if data[layout.frame_owner] >= _OWNED_BY_LOOP:
                    return _pointer(data, layout.frame_previous)
                run.functions.append(self._function(data))
            else:
                run.functions.append(self._function(data))
                if data[entry]:
                    return _pointer(data, layout.frame_previous)
        raise self._error("frames belong to no run", frame)

    def _shimmed(self, frame: int) -> Iterator[PythonRun]:
        """Yield the runs since 3.13: each has a shim, and from 3.14 on the thread has one, too."""
        layout = self._layout
        run = PythonRun()
        for here, data in self._frames(frame):
            if data[layout.frame_owner] < _OWNED_BY_LOOP:
                run.functions.append(self._function(data))
                continue
            if layout.has_base_frame and not _pointer(data, layout.frame_previous):
                break
            run.place = here
            yield run
            run = PythonRun()
        if run.functions:
            raise self._error("frames belong to no run", frame)

    def _frames(self, frame: int) -> Iterator[tuple[int, bytes]]:
        seen: set[int] = set()
        while frame:
            self._frames_left -= 1
            if frame in seen or self._frames_left < 0:
                raise self._error("a chain of frames does not end", frame)
            seen.add(frame)
            data = bytes(self._memory.read(Avma(frame), self._frame_size))
            yield frame, data
            frame = _pointer(data, self._layout.frame_previous)

    def _function(self, frame: bytes) -> Standing:
        code = _pointer(frame, self._layout.frame_code)
        if self._layout.has_base_frame:
            code &= ~_TAGS
        return self._objects.standing(code, _pointer(frame, self._layout.frame_instruction))

    def _error(self, what: str, address: int) -> FormatError:
        return FormatError(what, source="CPython's memory", offset=address, remedy="capture again")


def _merged(chains: list[list[PythonRun]]) -> list[PythonRun]:
    """Order the runs of a thread in several interpreters by their place on the native stack."""
    if len(chains) == 1:
        return chains[0]
    return sorted((run for chain in chains for run in chain), key=_place)


def _place(run: PythonRun) -> int:
    return run.place


def _pointer(data: bytes, offset: int) -> int:
    value: int = _POINTER.unpack_from(data, offset)[0]
    return value


def with_functions(
    snapshot: Snapshot, python: PythonThreads, ids: dict[int, ThreadId]
) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
    """Return the snapshot with the problems added, and the functions of its threads.

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
        ids[thread]: python.runs(thread) for thread in python.standing if thread in ids
    }
    return replace(snapshot, problems=(*snapshot.problems, *problems)), runs


def with_problem(snapshot: Snapshot, error: MachtraceError) -> Snapshot:
    """Return the snapshot with one more problem."""
    problem = Problem(thread=None, error=error)
    return replace(snapshot, problems=(*snapshot.problems, problem))


def _unreadable(error: MachtraceError) -> TargetError:
    unreadable = TargetError(
        f"Python functions could not be read ({error})",
        remedy="capture again; if it happens each time, leave Python functions out",
    )
    unreadable.__cause__ = error
    return unreadable
