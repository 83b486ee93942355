"""Many stacks as columns: thousands of frames at the cost of a hundred objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice, starmap

import numpy as np
import numpy.typing as npt

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    Dispute,
    FrameAddress,
    Gap,
    Stop,
    StopReason,
    Walk,
)
from machtrace.model.text import counted
from machtrace.unwinder.thread_walker import KIND_COUNT, KINDS, TRUSTS, Collected

STOPS = tuple(StopReason)
"""The reasons that :attr:`StackColumns.stop_reasons` index."""

_SHOWN = 10
"""Stacks in text."""
_RETURN_ADDRESS = KINDS.index(AddressKind.RETURN_ADDRESS)


@dataclass(frozen=True, slots=True, eq=False)
class StackColumns:
    """Walks of any number of stacks; see :class:`~machtrace.model.stack.Walk`.

    Columns of frames have those of the first stack, innermost first, then those of the second.
    """

    starts: npt.NDArray[np.int64]
    """The first frame of each stack, and the end of the last."""
    addresses: npt.NDArray[np.uint64]
    """The :data:`Avma` of each frame; never adjusted."""
    codes: npt.NDArray[np.uint8]
    """:attr:`trusts` and :attr:`kinds` of each frame, in one number."""
    stop_reasons: npt.NDArray[np.uint8]
    """The stop reason of each walk: indices of :data:`STOPS`."""
    stops: Mapping[int, Stop] = field(repr=False)
    """The stop of each walk that did not end at a root, by stack number."""
    gaps: Mapping[int, Gap] = field(repr=False)
    """The gap of each truncated stack, by number."""
    physical_remainders: Mapping[int, AddressChain] = field(repr=False)
    """The physical remainder of each stack with a Swift async frame, by number."""
    disputes: Mapping[int, tuple[Dispute, ...]] = field(repr=False)
    """The disputes of frames that have any, by index in the columns of frames."""

    def __len__(self) -> int:
        return len(self.stop_reasons)

    def __repr__(self) -> str:
        stacks, frames = counted(len(self), "stack"), counted(len(self.addresses), "frame")
        return f"<StackColumns: {stacks}, {frames}>"

    def __str__(self) -> str:
        """Return the first stacks, without names."""
        parts = [repr(self)]
        for number, walk in enumerate(islice(self, _SHOWN)):
            parts.append(f"Stack {number}\n{walk}")
        if len(self) > _SHOWN:
            parts.append(f"… {counted(len(self) - _SHOWN, 'more stack')}")
        return "\n\n".join(parts)

    @property
    def trusts(self) -> npt.NDArray[np.uint8]:
        """The trust of each frame: indices of ``thread_walker.TRUSTS``."""
        return self.codes // np.uint8(KIND_COUNT)

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """The kind of each address: indices of :data:`~machtrace.unwinder.thread_walker.KINDS`."""
        return self.codes % np.uint8(KIND_COUNT)

    @property
    def lookups(self) -> npt.NDArray[np.uint64]:
        """The address to look up for each frame: inside the call, not after it."""
        is_return: npt.NDArray[np.bool_] = self.kinds == _RETURN_ADDRESS
        return self.addresses - is_return.astype(np.uint64)

    def walk(self, number: int) -> Walk:
        """Return one stack as objects.

        Raises:
            IndexError: there is no stack of this number.
        """
        if not 0 <= number < len(self):
            raise IndexError(number)
        begin, end = int(self.starts[number]), int(self.starts[number + 1])
        addresses, codes = self.addresses[begin:end].tolist(), self.codes[begin:end].tolist()
        frames = zip(addresses, codes, range(begin, end), strict=True)
        return Walk(
            addresses=tuple(starmap(self._frame, frames)),
            stop=self.stops.get(number) or Stop(StopReason.ROOT),
            gap=self.gaps.get(number),
            physical_remainder=self.physical_remainders.get(number),
        )

    def __iter__(self) -> Iterator[Walk]:
        return map(self.walk, range(len(self)))

    def _frame(self, address: int, code: int, row: int) -> FrameAddress:
        trust, kind = divmod(code, KIND_COUNT)
        disputed_by = self.disputes.get(row, ())
        return FrameAddress(Avma(address), TRUSTS[trust], KINDS[kind], disputed_by)


@dataclass(slots=True)
class CollectedStacks:
    """The walks of one process; see :class:`~machtrace.unwinder.thread_walker`."""

    numbers: list[int] = field(default_factory=list)
    """The number of each stack among those of all processes; ascending."""
    stacks: list[Collected] = field(default_factory=list)
    frames: tuple[bytes, bytes] = (b"", b"")


def columns_of(processes: Sequence[CollectedStacks]) -> StackColumns:
    """Return the stacks of all ``processes`` in the order of their numbers, which start at 0."""
    numbers = np.concatenate(
        [np.empty(0, np.int64), *(np.array(process.numbers, np.int64) for process in processes)]
    )
    stacks = [stack for process in processes for stack in process.stacks]
    counts = np.fromiter((stack.frame_count for stack in stacks), np.int64, len(stacks))
    addresses = np.concatenate(
        [
            np.empty(0, np.uint64),
            *(np.frombuffer(process.frames[0], np.uint64) for process in processes),
        ]
    )
    codes = np.concatenate(
        [
            np.empty(0, np.uint8),
            *(np.frombuffer(process.frames[1], np.uint8) for process in processes),
        ]
    )
    order = np.argsort(numbers)
    starts = np.zeros(len(stacks) + 1, np.int64)
    np.cumsum(counts[order], out=starts[1:])
    if len(processes) > 1:
        # The stacks of several processes alternate: gather each stack's rows, which begin at
        # `first` before the reordering and at `starts` after it.
        first = (np.cumsum(counts) - counts)[order]
        rows = np.repeat(first - starts[:-1], counts[order]) + np.arange(len(addresses))
        addresses, codes = addresses[rows], codes[rows]
    ordered = [stacks[at] for at in order.tolist()]
    # Walks that end alike share their stop, and nearly all consist of frames and a stop alone.
    stops = {id(stack.stop): stack.stop for stack in stacks}
    reasons = {key: STOPS.index(stop.reason) for key, stop in stops.items()}
    incomplete = {key for key, stop in stops.items() if not stop.is_complete}
    special = {number: stack for number, stack in enumerate(ordered) if not stack.is_plain}
    return StackColumns(
        starts=starts,
        addresses=addresses,
        codes=codes,
        stop_reasons=np.fromiter(
            (reasons[id(stack.stop)] for stack in ordered), np.uint8, len(ordered)
        ),
        stops={n: walk.stop for n, walk in enumerate(ordered) if id(walk.stop) in incomplete},
        gaps={n: walk.gap for n, walk in special.items() if walk.gap is not None},
        physical_remainders={
            n: walk.physical_remainder
            for n, walk in special.items()
            if walk.physical_remainder is not None
        },
        disputes={
            int(starts[n]) + frame: disputed_by
            for n, walk in special.items()
            for frame, disputed_by in walk.disputes.items()
        },
    )
