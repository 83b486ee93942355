"""Python functions by run of the interpreter's loop, and the frames of the loop that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from machtrace.errors import FormatError, MachtraceError, TargetError
from machtrace.frozen import dataclass
from machtrace.model.snapshot import Problem, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import NO_ADDRESS, Gap, Stop, StopReason
from machtrace.model.symbol import CallStack, Frame, FrameStatus, PythonFrame, SourceLocation

LOOP = "_PyEval_EvalFrameDefault"
"""The symbol of the loop in every CPython since 3.6."""

TAIL_CALLS = "_TAIL_CALL_"
"""Prefix of the loop's parts where each instruction is a function that ends with a jump to the next
(3.14, ``Python/ceval_macros.h``): one of them at a time has the run's frame."""

if TYPE_CHECKING:  # used where CPython's memory is read
    from machtrace.cpython.layout import PythonLayout

FrameLimit = tuple[int, int]
"""The number of innermost and of outermost frames of a deep stack."""

PythonRun = tuple[PythonFrame, ...]
"""The functions of one run of the loop, innermost first."""

PythonRuns = tuple[PythonRun, ...] | None
"""A thread's runs, innermost first; None where it is unknown which function began a run."""


def python_runs(rows: Sequence[tuple[CodeType, int, int]]) -> PythonRuns:
    """Return the runs of a thread.

    Args:
        rows: each function's code, its line (0 if unknown) and whether it began a run (1, 0, or -1
            if unknown), innermost first.
    """
    if any(began < 0 for _, _, began in rows):
        return None
    runs: list[PythonRun] = []
    run: list[PythonFrame] = []
    for code, line, began in rows:
        run.append(PythonFrame(code.co_qualname, SourceLocation(code.co_filename, line or None)))
        if began:
            runs.append(tuple(run))
            run = []
    if run:
        runs.append(tuple(run))
    return tuple(runs)


def with_python(stack: CallStack, runs: Sequence[PythonRun] | None) -> CallStack | None:
    """Set :attr:`Frame.python` of each run of the loop; None if the runs do not match the frames.

    Runs are counted from the outer end, and none may be left over. One frame more is allowed only
    if the loop itself is the innermost frame: its run has no function yet, or no longer. In a stack
    without its middle, inner frames are counted from the inner end. A stack that ends too early has
    lost its outer end, so its runs cannot be assigned.

    Args:
        stack: with names.
        runs: innermost first; None if unknown, then nothing is set.
    """
    if not runs:
        return stack
    indexes = [index for index, frame in enumerate(stack.frames) if _is_loop(frame)]
    may_lack_run = bool(indexes) and indexes[0] == 0
    if stack.gap is None:
        inner, outer = [], indexes
        matches = len(indexes) - len(runs) in ((0, 1) if may_lack_run else (0,))
    else:
        inner = [] if may_lack_run else [index for index in indexes if index < stack.gap.after]
        outer = [index for index in indexes if index >= stack.gap.after]
        matches = len(inner) + len(outer) <= len(runs)
    if not stack.stop.is_complete or not matches:
        return None
    run_at = dict(zip(reversed(outer), reversed(runs), strict=False))
    run_at |= dict(zip(inner, runs, strict=False))
    frames = tuple(
        replace(frame, python=run_at[index]) if index in run_at else frame
        for index, frame in enumerate(stack.frames)
    )
    return replace(stack, frames=frames)


def with_python_runs(
    stacks: Iterable[CallStack], runs: Mapping[ThreadId, PythonRuns], *, appends: bool = False
) -> tuple[tuple[CallStack, ...], list[Problem]]:
    """Apply :func:`with_python` to each stack; also return a problem for each mismatch.

    Args:
        stacks: with names.
        runs: by thread.
        appends: whether a stack that ends before the interpreter's loop gets all functions at its
            end: the copy of a waiting thread lacks the registers of its callers.
    """
    joined: list[CallStack] = []
    problems: list[Problem] = []
    for stack in stacks:
        own = runs.get(stack.thread.id)
        matched = with_python(stack, own)
        if matched is None and appends and own and not any(map(_is_loop, stack.frames)):
            functions = tuple(python_frame(function) for run in own for function in run)
            matched = replace(stack, frames=(*stack.frames, *functions))
        if matched is None:
            error = TargetError(
                f"the Python functions of thread {stack.thread.id} do not match its frames",
                remedy="capture again; if it happens each time, pass the interpreter's files with "
                "--search: matching needs complete stacks and the symbol of CPython's loop",
            )
            problems.append(Problem(thread=stack.thread.id, error=error))
        joined.append(stack if matched is None else matched)
    return tuple(joined), problems


def python_stacks(
    snapshot: Snapshot, runs: Mapping[ThreadId, PythonRuns], limit: FrameLimit
) -> tuple[tuple[CallStack, ...], tuple[ThreadInfo, ...]]:
    """Return stacks of Python functions alone, and the threads that run none."""
    stacks = tuple(
        _python_stack(thread, functions, limit)
        for thread in snapshot.threads
        if (functions := runs.get(thread.info.id))
    )
    have = {stack.thread.id for stack in stacks}
    return stacks, tuple(thread.info for thread in snapshot.threads if thread.info.id not in have)


def _python_stack(
    thread: ThreadSnapshot, runs: Sequence[PythonRun], limit: FrameLimit
) -> CallStack:
    frames, gap = python_frames(runs, limit)
    return CallStack(
        thread=thread.info,
        frames=frames,
        stop=Stop(StopReason.ROOT),
        gap=gap,
        stopped_for_ns=thread.stopped_for_ns,
    )


def python_frames(
    runs: Sequence[PythonRun], limit: FrameLimit
) -> tuple[tuple[Frame, ...], Gap | None]:
    """Return a frame for each function, innermost first, and what ``limit`` drops."""
    inner, outer = limit
    functions = [function for run in runs for function in run]
    dropped = len(functions) - inner - outer
    gap = None
    if dropped > 0:
        gap = Gap(inner, dropped)
        functions[inner : inner + dropped] = []
    return tuple(map(python_frame, functions)), gap


def python_frame(function: PythonFrame) -> Frame:
    """Return the frame of a function without its interpreter's."""
    return Frame(address=NO_ADDRESS, status=FrameStatus.PYTHON, python=(function,))


def _is_loop(frame: Frame) -> bool:
    # A compiler may have moved a part of it elsewhere, named with a suffix.
    if frame.symbol is None:
        return False
    name = frame.symbol.name.partition(".")[0]
    return name == LOOP or name.startswith(TAIL_CALLS)


# --- runs in CPython's frames ---

_OWNED_BY_LOOP = 3
"""``enum _frameowner`` from 3.12 on: this and what is above is a shim that begins a run."""


@dataclass(slots=True)
class LoopRun:
    """A run of the interpreter's loop."""

    functions: list[PythonFrame] = field(default_factory=list)
    """Innermost first."""
    place: int = 0
    """Address of its data on the native stack: inner runs are lower."""


class FrameRow(NamedTuple):
    """A frame of the interpreter."""

    previous: int
    instruction: int
    code: int
    serial: int
    """The code's number in a copy by the C reader."""
    owner: int
    is_entry: int
    error: int
    """Why the C reader did not read the code; 0 if it did."""


class RunFinder:
    """Finds the runs of threads in their frames.

    Args:
        layout: the interpreter's.
        frame_at: reads the frame at an address.
        function: returns a frame's function.
    """

    def __init__(
        self,
        layout: PythonLayout,
        frame_at: Callable[[int], FrameRow],
        function: Callable[[FrameRow], PythonFrame],
    ) -> None:
        self._layout = layout
        self._frame_at = frame_at
        self._function = function

    def runs(self, links: Sequence[tuple[int, int]]) -> list[LoopRun]:
        """Return the runs of a thread, innermost first.

        Args:
            links: its C frames and the frames that they lead to, innermost first; from 3.13 on, one
                link to its current frame.
        """
        if self._layout.c_frame_current is None:
            return list(self._shimmed(links[0][1]))
        return list(self._c_framed(links))

    def _c_framed(self, links: Sequence[tuple[int, int]]) -> Iterator[LoopRun]:
        """3.11 and 3.12: each run has a C frame, and so has the thread, at the outer end.

        A run that just begins has linked its C frame but not yet stored its own frame;
        the stale pointer does not lead to the caller's. It is left
        out; the native frames, then one more than the runs, confirm that case.
        """
        for index, ((here, frame), (_, outer)) in enumerate(pairwise(links)):
            run = LoopRun(place=here)
            try:
                if self._run(frame, run) != outer:
                    raise memory_error("a run of the loop does not lead to the previous one", here)
            except MachtraceError:
                if index:
                    raise
            else:
                yield run

    def _run(self, frame: int, run: LoopRun) -> int:
        """Fill ``run``; the frame that was the innermost when it began, or 0."""
        has_shims = self._layout.frame_is_entry is None
        for _, row in self._frames(frame):
            if has_shims and row.owner >= _OWNED_BY_LOOP:
                return row.previous
            run.functions.append(self._function(row))
            if row.is_entry:
                return row.previous
        raise memory_error("frames belong to no run", frame)

    def _shimmed(self, frame: int) -> Iterator[LoopRun]:
        """Yield the runs since 3.13: each has a shim, and from 3.14 on the thread has one, too."""
        run = LoopRun()
        for here, row in self._frames(frame):
            if row.owner < _OWNED_BY_LOOP:
                run.functions.append(self._function(row))
                continue
            if self._layout.has_base_frame and not row.previous:
                break
            run.place = here
            yield run
            run = LoopRun()
        if run.functions:
            raise memory_error("frames belong to no run", frame)

    def _frames(self, frame: int) -> Iterator[tuple[int, FrameRow]]:
        seen: set[int] = set()
        while frame:
            if frame in seen:
                raise memory_error("a chain of frames does not end", frame)
            seen.add(frame)
            row = self._frame_at(frame)
            yield frame, row
            frame = row.previous


def memory_error(what: str, address: int) -> FormatError:
    """Return the error for memory that CPython does not use so."""
    return FormatError(what, source="CPython's memory", offset=address, remedy="capture again")
