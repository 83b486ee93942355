"""Sampled stacks, walked and numbered: the same stack is one row, however often it is met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from machtrace.sampling.profile_frames import ProfileFrames
from machtrace.cpython.join import with_python_runs
from machtrace.sampling.stack_rows import StackRows
from machtrace.unwinder.unwinder import Unwinder
from machtrace.model.image import ImageList
from machtrace.model.profile import MissingFrames
from machtrace.model.snapshot import Problem, Snapshot
from machtrace.model.stack import Backtrace, Gap, Walk, stretches
from machtrace.model.thread import ThreadId, ThreadSnapshot
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.cpython.runs import PythonRuns
from machtrace.unwinder.frame_codes import code_of

_MOST_KEYS = 64 << 20
"""Bytes by which stacks are recognised that were met before; they are forgotten then."""

_Key = tuple[bytes, bytes, Gap | None, bool, PythonRuns]
"""Addresses, codes, what is left out, whether the walk came to a root, and Python's functions."""


class SampledStacks:
    """Walks snapshots one after the other.

    Args:
        unwinder: walks the stacks.
        names: tells CPython's loop from other functions, where Python's are known.
        limit: how many frames of a stack are kept at most.
    """

    __slots__ = (
        "_images",
        "_known",
        "_known_bytes",
        "_limit",
        "_names",
        "_unwinder",
        "frames",
        "rows",
    )

    def __init__(self, unwinder: Unwinder, names: Symbolicator, *, limit: int) -> None:
        self.frames = ProfileFrames()
        self.rows = StackRows()
        self._unwinder = unwinder
        self._names = names
        self._limit = limit
        self._images: ImageList | None = None
        self._known: dict[_Key, int] = {}
        self._known_bytes = 0

    def walk(
        self, snapshot: Snapshot, python: Mapping[ThreadId, PythonRuns]
    ) -> tuple[list[int], list[Problem]]:
        """The row of each thread's stack, and where Python's functions do not fit."""
        if snapshot.images is not self._images or self._known_bytes > _MOST_KEYS:
            self._images, self._known, self._known_bytes = snapshot.images, {}, 0
        columns = self._unwinder.columns([snapshot], limit=self._limit)
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

    def _inwards(self, numbers: Sequence[int], gap: Gap | None, is_whole: bool) -> Iterator[int]:  # noqa: FBT001 - one of three facts of a walk
        """Numbers of a stack's frames, outermost first, and of what stands for those that lack."""
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
        backtrace = Backtrace(
            addresses=walked.addresses,
            stop=walked.stop,
            gap=walked.gap,
            thread=thread,
            snapshot=snapshot,
        )
        named = self._names.symbolicate(backtrace)
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
