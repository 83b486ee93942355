"""The functions that sampled frames are in, inlined ones and Python's too.

Stacks of functions, made from stacks of frames: what was inlined has a place of its own.

The samples of each thread, in the order of time.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from machtrace.model.image import BinaryImage
from machtrace.model.profile import OUTERMOST, MissingFrames, Profile, ProfileFrame, StackTable
from machtrace.model.symbol import Frame, FrameStatus, SourceLocation


class FunctionKind(Enum):
    """What a function is to the machine."""

    NATIVE = "native"
    PYTHON = "python"
    """Run by an interpreter; the function below it is the interpreter's."""
    MISSING = "missing"
    """None: it stands in the place of frames that are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function, or the code of which no more is known than its image or its address."""

    name: str
    """As people read it; else ``image+0x1234``, with the offset of its start; or ``image``, where
    not even that is known; or ``0x1234``, where no image holds the code. Where names were not asked
    for, the offset is that of the frame's address."""
    linkage_name: str
    """As the symbol table spells it; empty where that is not known."""
    is_named: bool
    """Whether :attr:`name` is from the program."""
    image: BinaryImage | None
    kind: FunctionKind
    path: str
    """Of a source file, that of the first place that was met in it; empty where unknown."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that was running, or waiting for what it called."""

    function: int
    """An index of :attr:`FunctionTable.functions`."""
    location: SourceLocation | None
    inline_depth: int
    """0 of a function that has a frame of its own; else how many hold it in the same frame."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionTable:
    """The functions of frames."""

    functions: tuple[Function, ...]
    """Each once; those of one name in one image are one."""
    calls: tuple[tuple[FunctionCall, ...], ...]
    """Of each frame, outermost first: the function that has the frame, Python's functions that it
    runs, and what was inlined into it."""

    @property
    def keys(self) -> list[tuple[int, ...]]:
        """Of each frame its functions; see :func:`~machtrace.render.call_tree.call_tree`."""
        return [tuple(call.function for call in calls) for calls in self.calls]


def functions_of(frames: Sequence[ProfileFrame]) -> FunctionTable:
    """The functions that ``frames`` are in."""
    numbers: dict[Hashable, int] = {}
    functions: list[Function] = []

    def number(key: Hashable, function: Function) -> int:
        found = numbers.get(key)
        if found is None:
            found = numbers[key] = len(functions)
            functions.append(function)
        return found

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
    function = _machine_function(frame)
    yield (function.linkage_name or function.name, function.image), function, frame.location, 0
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
        yield (call.linkage_name or inlined.name, image), inlined, call.location, depth


def _machine_function(frame: Frame) -> Function:
    symbol, image = frame.symbol, frame.image
    is_named = symbol is not None and symbol.is_named
    if symbol is not None and symbol.is_named:
        name = symbol.name
    elif image is None:
        name = f"{frame.address.address:#x}"
    else:
        name = image.name or "[image]"
        if symbol is not None:
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
    """One of the functions that are in a frame."""

    frame: int
    """An index of the profile's frames."""
    call: FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class CallStacks:
    """Distinct stacks of calls."""

    calls: tuple[FrameCall, ...]
    """By frame, and those of a frame outermost first."""
    stacks: StackTable
    """Its frames are indices of :attr:`calls`."""
    rows: array[int]
    """Of each stack of frames, by its row, the row of the same stack here."""


def call_stacks(stacks: StackTable, functions: FunctionTable) -> CallStacks:
    """The stacks of calls for all ``stacks`` of frames."""
    calls: list[FrameCall] = []
    of_frame: list[range] = []
    for frame, in_frame in enumerate(functions.calls):
        of_frame.append(range(len(calls), len(calls) + len(in_frame)))
        calls += [FrameCall(frame, call) for call in in_frame]
    callers, found, rows = array("i"), array("i"), array("i")
    for caller, frame in zip(stacks.callers, stacks.frames, strict=True):
        at = OUTERMOST if caller == OUTERMOST else rows[caller]
        for number in of_frame[frame]:
            callers.append(at)
            found.append(number)
            at = len(callers) - 1
        rows.append(at)
    return CallStacks(tuple(calls), StackTable(callers, found), rows)


@dataclass(frozen=True, slots=True, eq=False)
class ThreadSamples:
    """Columns of one thread's samples; see :class:`~machtrace.model.profile.SampleTable`."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    weights: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.stacks)


def thread_samples(profile: Profile) -> tuple[ThreadSamples, ...]:
    """Of each of the profile's threads."""
    found = tuple(ThreadSamples() for _ in profile.threads)
    samples = profile.samples
    for time, thread, stack, weight in zip(
        samples.times_ns, samples.threads, samples.stacks, samples.weights, strict=True
    ):
        of_thread = found[thread]
        of_thread.times_ns.append(time)
        of_thread.stacks.append(stack)
        of_thread.weights.append(weight)
    return found


def without_repeats(samples: ThreadSamples) -> ThreadSamples:
    """The same, with one row for samples of the same stack that follow one another."""
    merged = ThreadSamples()
    for time, stack, weight in zip(samples.times_ns, samples.stacks, samples.weights, strict=True):
        if merged.stacks and merged.stacks[-1] == stack:
            merged.weights[-1] += weight
        else:
            merged.times_ns.append(time)
            merged.stacks.append(stack)
            merged.weights.append(weight)
    return merged
