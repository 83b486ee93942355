"""The functions of sampled frames, inlined ones and Python's too; stacks of functions; samples."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.image import BinaryImage
from machtrace.model.profile import (
    OUTERMOST,
    UNKNOWN,
    MissingFrames,
    Profile,
    ProfileFrame,
    StackTable,
)
from machtrace.model.symbol import Frame, FrameStatus, SourceLocation


class FunctionKind(Enum):
    """A function's kind."""

    NATIVE = "native"
    PYTHON = "python"
    """Run by an interpreter; the function below it is the interpreter's."""
    MISSING = "missing"
    """Stands for missing frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function, or code of which only the image or the address is known."""

    name: str
    """As people read it; else ``image+0x1234``, with the offset of its start (of the frame's
    address, if names were not requested); ``image``, if the offset is unknown; ``image 0x1234``, if
    the image's load address is; or ``0x1234`` outside of all images.
    """
    linkage_name: str
    """As the symbol table spells it; empty if unknown."""
    is_named: bool
    """Whether :attr:`name` is from the program."""
    image: BinaryImage | None
    kind: FunctionKind
    path: str
    """The path of the first source file seen in it; empty if unknown."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A running function, or one that waits for its callee."""

    function: int
    """An index into :attr:`FunctionTable.functions`."""
    location: SourceLocation | None
    inline_depth: int
    """0 if it has a frame of its own; else the number of functions that hold it in that frame."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionTable:
    """The functions of frames."""

    functions: tuple[Function, ...]
    """Each once; those of one name in one image are one."""
    calls: tuple[tuple[FunctionCall, ...], ...]
    """Each frame's functions, outermost first: the one that has the frame, Python's functions that
    it runs, and inlined ones.
    """

    @property
    def keys(self) -> list[tuple[int, ...]]:
        """Each frame's functions; see :func:`~machtrace.render.call_tree.call_tree`."""
        return [tuple(call.function for call in calls) for calls in self.calls]


def functions_of(frames: Sequence[ProfileFrame]) -> FunctionTable:
    """Return the functions of ``frames``."""
    numbers: dict[Hashable, int] = {}
    functions: list[Function] = []

    def number(key: Hashable, function: Function) -> int:
        index = numbers.get(key)
        if index is None:
            index = numbers[key] = len(functions)
            functions.append(function)
        return index

    calls = tuple(
        tuple(
            FunctionCall(number(key, function), location, depth)
            for key, function, location, depth in _calls(frame)
        )
        for frame in frames
    )
    return FunctionTable(tuple(functions), calls)


_Described = tuple[Hashable, Function, SourceLocation | None, int]


def _calls(frame: ProfileFrame) -> Iterator[_Described]:
    if isinstance(frame, MissingFrames):
        missing = Function(
            name=f"[{frame.value}]",
            linkage_name="",
            is_named=False,
            image=None,
            kind=FunctionKind.MISSING,
            path="",
        )
        yield frame, missing, None, 0
        return
    if not frame.is_python:
        function = _machine_function(frame)
        # Profiles that name functions by their files alone have no images.
        where = function.path if function.image is None else function.image
        yield (function.linkage_name or function.name, where), function, frame.location, 0
    for run in reversed(frame.python):
        python = Function(
            name=run.name,
            linkage_name="",
            is_named=True,
            image=None,
            kind=FunctionKind.PYTHON,
            path=run.location.path,
        )
        yield (FunctionKind.PYTHON, run.name, python.path), python, run.location, 0
    image = frame.image
    for depth, call in enumerate(reversed(frame.inlined), 1):
        inlined = Function(
            name=call.name or "[inlined]",
            linkage_name=call.linkage_name,
            is_named=bool(call.name),
            image=image,
            kind=FunctionKind.NATIVE,
            path=_path(call.location),
        )
        where = inlined.path if image is None else image
        yield (call.linkage_name or inlined.name, where), inlined, call.location, depth


def _machine_function(frame: Frame) -> Function:
    symbol, image = frame.symbol, frame.image
    is_named = symbol is not None and symbol.is_named
    if symbol is not None and symbol.is_named:
        name = symbol.name
    elif image is None:
        name = f"{frame.address.address:#x}"
    else:
        name = image.name or "[image]"
        if not frame.is_placed:
            name += f" {frame.address.address:#x}"
        elif symbol is not None:
            name += f"+{symbol.offset:#x}"
        elif frame.status is FrameStatus.NOT_ASKED:
            name += f"+{image.offset_of(frame.address.address):#x}"
    return Function(
        name=name,
        linkage_name="" if symbol is None else symbol.linkage_name,
        is_named=is_named,
        image=image,
        kind=FunctionKind.NATIVE,
        path=_path(frame.location),
    )


def _path(location: SourceLocation | None) -> str:
    return "" if location is None else location.path


@dataclass(frozen=True, slots=True)
class FrameCall:
    """One of a frame's functions."""

    frame: int
    """An index into the profile's frames."""
    call: FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class CallStacks:
    """Distinct stacks of calls."""

    calls: tuple[FrameCall, ...]
    """By frame, those of a frame outermost first."""
    stacks: StackTable
    """Its frames are indices into :attr:`calls`."""
    rows: array[int]
    """The row here for each row of the stacks of frames."""


def call_stacks(stacks: StackTable, functions: FunctionTable) -> CallStacks:
    """Return the stacks of calls for all ``stacks`` of frames."""
    calls: list[FrameCall] = []
    of_frame: list[range] = []
    for frame, in_frame in enumerate(functions.calls):
        of_frame.append(range(len(calls), len(calls) + len(in_frame)))
        calls += [FrameCall(frame, call) for call in in_frame]
    callers, frames, rows = array("i"), array("i"), array("i")
    for caller, frame in zip(stacks.callers, stacks.frames, strict=True):
        at = OUTERMOST if caller == OUTERMOST else rows[caller]
        for number in of_frame[frame]:
            callers.append(at)
            frames.append(number)
            at = len(callers) - 1
        rows.append(at)
    return CallStacks(tuple(calls), StackTable(callers, frames), rows)


@dataclass(frozen=True, slots=True, eq=False)
class ThreadSamples:
    """Columns of one thread's samples; see :class:`~machtrace.model.profile.SampleTable`."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    weights: array[int] = field(default_factory=lambda: array("q"))
    states: array[int] = field(default_factory=lambda: array("b"))
    cpu_ns: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.stacks)

    def append(self, time_ns: int, stack: int, weight: int, state: int, cpu_ns: int) -> None:
        """Add a row while the columns are built."""
        self.times_ns.append(time_ns)
        self.stacks.append(stack)
        self.weights.append(weight)
        self.states.append(state)
        self.cpu_ns.append(cpu_ns)


def thread_samples(profile: Profile) -> tuple[ThreadSamples, ...]:
    """Return the samples of each of the profile's threads, in order of time."""
    by_thread = tuple(ThreadSamples() for _ in profile.threads)
    samples = profile.samples
    columns = samples.times_ns, samples.stacks, samples.weights, samples.states, samples.cpu_ns
    for thread, *row in zip(samples.threads, *columns, strict=True):
        by_thread[thread].append(*row)
    return by_thread


_MAX_NS = 1 << 62


def without_repeats(samples: ThreadSamples) -> ThreadSamples:
    """Return the samples with one row for consecutive samples of the same stack.

    Its state is that of the first.
    """
    merged = ThreadSamples()
    columns = samples.times_ns, samples.stacks, samples.weights, samples.states, samples.cpu_ns
    for time, stack, weight, state, cpu_ns in zip(*columns, strict=True):
        if not merged.stacks or merged.stacks[-1] != stack:
            merged.append(time, stack, weight, state, cpu_ns)
            continue
        merged.weights[-1] += weight
        if cpu_ns != UNKNOWN:
            merged.cpu_ns[-1] = min(max(0, merged.cpu_ns[-1]) + cpu_ns, _MAX_NS)
    return merged
