"""Many stacks as columns: what a hundred frames cost as objects, thousands cost here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import numpy as np
import numpy.typing as npt

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
from machtrace.unwinder.thread_walker import KIND_COUNT, KINDS, TRUSTS, Collected

STOPS = tuple(StopReason)
"""What the numbers in :attr:`StackColumns.stop_reasons` mean."""

_RETURN_ADDRESS = KINDS.index(AddressKind.RETURN_ADDRESS)


@dataclass(frozen=True, slots=True, eq=False)
class StackColumns:
    """Walks of any number of stacks; see :class:`~machtrace.model.stack.Walk` for what they say.

    Columns of frames hold those of the first stack, innermost first, then those of the second.
    """

    starts: npt.NDArray[np.int64]
    """Where each stack's frames begin; one more than there are stacks, so that each has an end."""
    addresses: npt.NDArray[np.uint64]
    """Of each frame, an :data:`Avma`; never adjusted."""
    codes: npt.NDArray[np.uint8]
    """Of each frame :attr:`trusts` and :attr:`kinds`, in one number."""
    stop_reasons: npt.NDArray[np.uint8]
    """Why each walk ended: an index of :data:`STOPS`."""
    stops: Mapping[int, Stop] = field(repr=False)
    """Of those stacks whose walk ended elsewhere than at a root, by number."""
    gaps: Mapping[int, Gap] = field(repr=False)
    """Of those stacks whose middle was left out, by number."""
    physical_remainders: Mapping[int, AddressChain] = field(repr=False)
    """Of those stacks that have a Swift async frame, by number."""
    disputes: Mapping[int, tuple[Dispute, ...]] = field(repr=False)
    """Of those frames that have any, by their place in the columns of frames."""

    def __len__(self) -> int:
        return len(self.stop_reasons)

    @property
    def trusts(self) -> npt.NDArray[np.uint8]:
        """The trust of each frame: indices of ``thread_walker.TRUSTS``."""
        return self.codes // np.uint8(KIND_COUNT)

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """What each address is: an index of :data:`~machtrace.unwinder.thread_walker.KINDS`."""
        return self.codes % np.uint8(KIND_COUNT)

    @property
    def lookups(self) -> npt.NDArray[np.uint64]:
        """Of each frame the address to look up: inside the call, not after it."""
        is_return: npt.NDArray[np.bool_] = self.kinds == _RETURN_ADDRESS
        return self.addresses - is_return.astype(np.uint64)

    def walk(self, number: int) -> Walk:
        """One stack as objects.

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
    """What was collected of one process; see :class:`~machtrace.unwinder.thread_walker`."""

    numbers: list[int] = field(default_factory=list)
    """Of each stack, its number among those of all processes; ascending."""
    stacks: list[Collected] = field(default_factory=list)
    frames: tuple[bytes, bytes] = (b"", b"")


def columns_of(processes: Sequence[CollectedStacks]) -> StackColumns:
    """The stacks of all ``processes`` in the order of their numbers, which are 0 and up."""
    numbers = np.concatenate(
        [np.empty(0, np.int64), *(np.array(one.numbers, np.int64) for one in processes)]
    )
    stacks = [stack for one in processes for stack in one.stacks]
    counts = np.fromiter((stack.kept for stack in stacks), np.int64, len(stacks))
    addresses = np.concatenate(
        [np.empty(0, np.uint64), *(np.frombuffer(one.frames[0], np.uint64) for one in processes)]
    )
    codes = np.concatenate(
        [np.empty(0, np.uint8), *(np.frombuffer(one.frames[1], np.uint8) for one in processes)]
    )
    order = np.argsort(numbers)
    starts = np.zeros(len(stacks) + 1, np.int64)
    np.cumsum(counts[order], out=starts[1:])
    if len(processes) > 1:
        first = (np.cumsum(counts) - counts)[order]
        rows = np.repeat(first - starts[:-1], counts[order]) + np.arange(len(addresses))
        addresses, codes = addresses[rows], codes[rows]
    # Nearly all walks end at a root and have no more to say than their frames.
    told = {
        number: stacks[at] for number, at in enumerate(order.tolist()) if not stacks[at].is_plain
    }
    reasons = np.full(len(stacks), STOPS.index(StopReason.ROOT), np.uint8)
    for number, stack in told.items():
        reasons[number] = STOPS.index(stack.stop.reason)
    return StackColumns(
        starts=starts,
        addresses=addresses,
        codes=codes,
        stop_reasons=reasons,
        stops={n: one.stop for n, one in told.items() if not one.stop.is_complete},
        gaps={n: one.gap for n, one in told.items() if one.gap is not None},
        physical_remainders={
            n: one.physical_remainder
            for n, one in told.items()
            if one.physical_remainder is not None
        },
        disputes={
            int(starts[n]) + frame: disputed_by
            for n, one in told.items()
            for frame, disputed_by in one.disputes.items()
        },
    )
