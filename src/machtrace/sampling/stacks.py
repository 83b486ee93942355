"""Sampled stacks, unwound and numbered.

Distinct stacks form a tree, in which each stack is one row (:class:`StackRows`). Distinct frames
are numbered while stacks are unwound, and symbolicated at the end (:class:`ProfileFrames`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from machtrace.cpython.runs import PythonRuns, python_frames, with_python_runs
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.options import WalkOptions
from machtrace.model.profile import OUTERMOST, MissingFrames, ProfileFrame, StackTable
from machtrace.model.snapshot import Problem, Snapshot, ThreadId, ThreadSnapshot
from machtrace.model.stack import FrameAddress, Gap, Walk, stretches
from machtrace.model.symbol import CallStack, Frame, FrameStatus
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.thread_walker import KIND_COUNT, KINDS, TRUSTS, code_of
from machtrace.unwinder.unwinder import Unwinder

_BITS = 32
"""Bits of a row's number; :data:`MAX_ROWS` fits."""

MAX_ROWS = 1 << 22
"""Maximum rows of a table: about half a GiB with its index."""


class StackRows:
    """Builds a :class:`~machtrace.model.profile.StackTable`, stack by stack."""

    def __init__(self) -> None:
        self._callers = array("i")
        self._frames = array("i")
        self._children: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def is_full(self) -> bool:
        """Whether the table has the maximum number of rows."""
        return len(self._callers) >= MAX_ROWS

    def row(self, frames: Iterable[int]) -> int:
        """Return the row of a stack, given its frames' numbers, outermost first; add it if new.

        An empty stack has :data:`~machtrace.model.profile.OUTERMOST`. If the table is full, the row
        is that of the outermost frames that it has.
        """
        children = self._children
        row = OUTERMOST
        for frame in frames:
            key = (row + 1) << _BITS | frame
            child = children.get(key)
            if child is None:
                if self.is_full:
                    break
                child = children[key] = len(self._callers)
                self._callers.append(row)
                self._frames.append(frame)
            row = child
        return row

    def table(self) -> StackTable:
        """Return all stacks so far."""
        return StackTable(self._callers, self._frames)


Namer = Callable[[FrameAddress, Snapshot], Frame]
"""Symbolicates an address of a snapshot's process."""

_MAX_CACHED = 1 << 18


class ProfileFrames:
    """Numbers frames; with another image at its address, a frame has another number.

    One snapshot is retained for each image, without its threads, for the names.
    """

    def __init__(self) -> None:
        self._images: ImageList | None = None
        self._cached: dict[tuple[int, int], int] = {}
        """Numbers by address and code, for the last snapshot's images."""
        self._numbers: dict[Hashable, int] = {}
        self._frames: list[tuple[FrameAddress, BinaryImage | None] | ProfileFrame] = []
        self._sources: dict[BinaryImage, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def number(self, address: int, code: int, snapshot: Snapshot) -> int:
        """Return the number of an address on a stack of ``snapshot``.

        Args:
            address: the frame's address (Avma), not adjusted for lookup.
            code: its trust and kind; see :mod:`machtrace.unwinder.thread_walker`.
            snapshot: its images.
        """
        images = snapshot.images
        if images is not self._images or len(self._cached) >= _MAX_CACHED:
            if self._images is None or tuple(images) != tuple(self._images):
                self._cached = {}
            self._images = images
        number = self._cached.get((address, code))
        if number is None:
            number = self._cached[address, code] = self._new(address, code, snapshot)
        return number

    def of_frame(self, frame: ProfileFrame) -> int:
        """Return the number of a symbolicated frame, or of one that stands for missing frames."""
        number = self._numbers.get(frame)
        if number is None:
            number = self._numbers[frame] = len(self._frames)
            self._frames.append(frame)
        return number

    def frames(self, name: Namer) -> tuple[ProfileFrame, ...]:
        """Symbolicate all frames, image by image, and return them by number."""
        named: list[ProfileFrame] = [MissingFrames.LEFT_OUT] * len(self._frames)
        waiting: dict[BinaryImage, list[tuple[int, FrameAddress]]] = {}
        for number, frame in enumerate(self._frames):
            if not isinstance(frame, tuple):
                named[number] = frame
                continue
            address, image = frame
            if image is None:
                named[number] = Frame(address=address, status=FrameStatus.UNKNOWN_IMAGE)
            else:
                waiting.setdefault(image, []).append((number, address))
        for image, addresses in waiting.items():
            source = self._sources[image]
            for number, address in addresses:
                named[number] = name(address, source)
        return tuple(named)

    def _new(self, address: int, code: int, snapshot: Snapshot) -> int:
        trust, kind = TRUSTS[code // KIND_COUNT], KINDS[code % KIND_COUNT]
        frame = FrameAddress(Avma(address), trust, kind)
        image = snapshot.images.find(frame.lookup)
        key: Hashable = (image, frame.address, kind)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._frames)
            self._frames.append((frame, image))
            if image is not None and image not in self._sources:
                self._sources[image] = replace(snapshot, threads=(), problems=())
        return number


_MAX_KEYS = 64 << 20
"""Maximum bytes of the keys by which known stacks are recognised; the cache is then cleared."""

_Key = tuple[bytes, bytes, Gap | None, bool, PythonRuns]
"""Addresses, codes, the gap, whether the walk reached a root, and Python functions."""


class SampledStacks:
    """Unwinds snapshots in sequence.

    Args:
        unwinder: unwinds the stacks.
        symbolicator: recognises CPython's loop by name, where Python functions are read.
        walk: the limits of each stack.
        python_only: whether stacks are of Python functions alone.
    """

    def __init__(
        self,
        unwinder: Unwinder,
        symbolicator: Symbolicator,
        walk: WalkOptions,
        *,
        python_only: bool = False,
    ) -> None:
        self.python_only = python_only
        self._python_rows: dict[PythonRuns, int] = {}
        self.frames = ProfileFrames()
        self.rows = StackRows()
        self._unwinder = unwinder
        self._symbolicator = symbolicator
        self._walk = walk
        self._images: ImageList | None = None
        self._named: dict[FrameAddress, Frame] = {}
        """Frames of stacks with Python functions, for the last snapshot's images."""
        self._known: dict[_Key, int] = {}
        self._known_bytes = 0

    def walk(
        self, snapshot: Snapshot, python: Mapping[ThreadId, PythonRuns]
    ) -> tuple[list[int], list[Problem]]:
        """Return the row of each thread's stack, and where Python functions do not match."""
        if snapshot.images is not self._images or self._known_bytes > _MAX_KEYS:
            self._images, self._known, self._known_bytes = snapshot.images, {}, 0
            self._named = {}
        columns = self._unwinder.columns([snapshot], limit=self._walk.limit)
        starts = columns.starts.tolist()
        addresses, codes = columns.addresses.tobytes(), columns.codes.tobytes()
        rows: list[int] = []
        problems: list[Problem] = []
        for number, thread in enumerate(snapshot.threads):
            begin, end = starts[number], starts[number + 1]
            gap, is_whole = columns.gaps.get(number), number not in columns.stops
            runs = python.get(thread.info.id)
            key = addresses[8 * begin : 8 * end], codes[begin:end], gap, is_whole, runs
            row = self._known.get(key)
            if row is None:
                if runs:
                    walked = columns.walk(number)
                    numbers = self._with_python(walked, thread, snapshot, runs, problems)
                else:
                    numbers = [
                        self.frames.number(address, code, snapshot)
                        for address, code in zip(memoryview(key[0]).cast("Q"), key[1], strict=True)
                    ]
                row = self._known[key] = self.rows.row(self._inwards(numbers, gap, is_whole))
                self._known_bytes += 9 * (end - begin)
            rows.append(row)
        return rows, problems

    def _frame(self, address: FrameAddress, snapshot: Snapshot) -> Frame:
        frame = self._named.get(address)
        if frame is None:
            frame = self._named[address] = self._symbolicator.frame(address, snapshot)
        return frame

    def python_row(self, runs: PythonRuns) -> int:
        """Return the row of a stack of Python functions alone."""
        row = self._python_rows.get(runs)
        if row is None:
            frames, gap = python_frames(runs or (), FrameLimit.of(self._walk.limit))
            numbers = [self.frames.of_frame(frame) for frame in frames]
            row = self._python_rows[runs] = self.rows.row(self._inwards(numbers, gap, True))  # noqa: FBT003
        return row

    def _inwards(self, numbers: Sequence[int], gap: Gap | None, is_whole: bool) -> Iterator[int]:  # noqa: FBT001 - a fact of the walk
        """Yield the numbers of frames and of marks for missing ones, outermost first."""
        if not is_whole:
            yield self.frames.of_frame(MissingFrames.UNKNOWN_CALLERS)
        for at, (_, piece) in enumerate(reversed(list(stretches(numbers, gap)))):
            if at:
                yield self.frames.of_frame(MissingFrames.LEFT_OUT)
            yield from reversed(piece)

    def _with_python(
        self,
        walked: Walk,
        thread: ThreadSnapshot,
        snapshot: Snapshot,
        runs: PythonRuns,
        problems: list[Problem],
    ) -> list[int]:
        named = CallStack(
            thread=thread.info,
            frames=tuple(self._frame(address, snapshot) for address in walked.addresses),
            stop=walked.stop,
            gap=walked.gap,
        )
        (stack,), unmatched = with_python_runs([named], {thread.info.id: runs})
        problems += unmatched
        return [
            self.frames.of_frame(frame)
            if frame.python
            else self.frames.number(
                frame.address.address, code_of(frame.address.trust, frame.address.kind), snapshot
            )
            for frame in stack.frames
        ]
