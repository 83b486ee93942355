"""Calls of one live process, made of raw addresses: from breakpoints, or from hooks of Frida.

A source stores return addresses as they are. Here they become offsets in images, all at once, and
equal stacks become one node when the calls are added to a recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.process_calls import (
    DeadWatch,
    Moments,
    ProcessCalls,
    role_of_path,
)
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import NO_TIME, CallFlag, Calls, Image, Process, calls_of
from machtrace.audit.trail.stacks import (
    NO_IMAGE,
    OUTER_MISSING,
    ROOT,
    UNKNOWN_JUMP,
    Nodes,
    StackTree,
    path_sums,
)
from machtrace.errors import ArgumentError

_COLUMNS = ("time", "thread", "rule", "stack", "flags", "consent", "calls")
ATTACHED_LATE = (
    "attached while the process ran: earlier calls, and consent that was given then, are unknown"
)
"""The reason why a process that was attached to cannot be judged."""
_CUT = np.uint16(CallFlag.OUTER_MISSING)
MISSING = OUTER_MISSING
"""An address that stands for missing outer frames: the outermost of its stack."""


class LoadedImage(NamedTuple):
    """An image of a process, where it was loaded."""

    path: str
    uuid: str
    """UUID or GNU build id, in hexadecimal; empty if it is unknown."""
    start: int
    """An AVMA, from which offsets are counted."""
    end: int
    is_program: bool = False


class AddressTree(NamedTuple):
    """Stacks as a tree of return addresses (AVMAs).

    Row 0 is the root, with any address; a parent has a lower number. Equal nodes may be there
    several times.
    """

    parent: Nodes
    address: npt.NDArray[np.uint64]


class StackCollector:
    """Collects stacks one by one; equal ones have one node. Equality is exact."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, addresses: Sequence[int]) -> int:
        """Return the number of a stack.

        Args:
            addresses: AVMAs of its return addresses, the innermost first.
        """
        return self.add_bytes(np.array(addresses, np.uint64).tobytes())

    def add_bytes(self, addresses: bytes) -> int:
        """Return the number of a stack of 64-bit addresses, in the machine's byte order."""
        return self._numbers.setdefault(addresses, len(self._numbers))

    def tree(self) -> tuple[AddressTree, Nodes]:
        """Return the stacks as a tree, and the node of each number."""
        sizes = np.array([len(number) // 8 for number in self._numbers], np.int64)
        addresses = np.frombuffer(b"".join(self._numbers), np.uint64)
        return tree_of_addresses(addresses, np.cumsum(sizes))


def tree_of_addresses(
    addresses: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]
) -> tuple[AddressTree, Nodes]:
    """Return stacks as a tree with a node for each of their frames, and the node of each stack.

    Args:
        addresses: return addresses of all stacks, the innermost of each first.
        ends: by stack: the index behind its last address.
    """
    size = len(addresses)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    # In the opposite order callers precede the functions that they call.
    parent = np.zeros(size + 1, np.int32)
    parent[1:] = np.arange(size)
    is_outermost = size - ends + 1
    parent[is_outermost[ends > starts]] = ROOT
    address = np.zeros(size + 1, np.uint64)
    address[1:] = addresses[::-1]
    return AddressTree(parent, address), np.where(ends > starts, size - starts, ROOT).astype(
        np.int32
    )


def located(tree: AddressTree, images: Sequence[LoadedImage]) -> StackTree:
    """Return a tree with offsets in images; addresses outside of them remain as they are."""
    starts = np.array([each.start for each in images], np.uint64)
    ends = np.array([each.end for each in images], np.uint64)
    order = np.argsort(starts, kind="stable").astype(np.int32)
    # A return address may be behind the last instruction of an image.
    place = np.searchsorted(starts[order], tree.address, side="left") - 1
    number = np.append(order, np.int32(NO_IMAGE))[place]
    is_inside = (place >= 0) & (tree.address <= np.append(ends, np.uint64(0))[number])
    image = np.where(is_inside, number, NO_IMAGE).astype(np.int32)
    offset = tree.address - np.where(is_inside, np.append(starts, np.uint64(0))[number], 0).astype(
        np.uint64
    )
    is_mark = ~is_inside & (offset > OUTER_MISSING) & (offset <= UNKNOWN_JUMP)
    offset[is_mark] = 0  # an address is no mark, whatever the process has in its stack
    image[ROOT], offset[ROOT] = NO_IMAGE, 0
    return StackTree(parent=tree.parent, image=image, offset=offset)


def live_calls(  # noqa: PLR0913 - each is a fact of its own
    source: str,
    process: Process,
    rules: RuleSet,
    *,
    watches: Sequence[str],
    images: Sequence[LoadedImage],
    tree: AddressTree,
    columns: Mapping[str, npt.NDArray[Any]],
    dead: Iterable[DeadWatch] = (),
    marks: Iterable[tuple[int, str]] = (),
    problems: Iterable[str] = (),
    costs: Iterable[str] = (),
) -> ProcessCalls:
    """Return the calls of a process.

    Args:
        source: the target.
        process: the one that was observed; that it was attached to late is a problem.
        rules: what is of interest.
        watches: by number in the column ``rule``: what was watched, as in a rule. Of what no rule
            names, such as the function that gives consent, the first call alone is stored.
        images: those that the process had.
        tree: stacks of return addresses, without the watched functions themselves.
        columns: of :class:`~machtrace.audit.trail.calls.Calls`; ``time``, ``thread``, ``rule`` and
            ``stack`` at least. Times are ns of the process's clock, stacks are nodes of ``tree``.
        dead: rules that could not be watched.
        marks: times and texts.
        problems: losses and damage, one line each.
        costs: the cost to the process, and what was counted, one line each.

    Raises:
        ArgumentError: a column refers to what does not exist, or has another length.
    """
    calls = calls_of(**columns)
    stacks = located(tree, images)
    stacks.check(len(images))
    for name, size in (("rule", len(watches)), ("stack", len(stacks))):
        values = getattr(calls, name)
        if ((values < 0) | (values >= size)).any():
            raise ArgumentError(f"calls: a {name} that is not listed")
    known = {rule.watch for rule in rules.rules}
    numbers: dict[str, int] = {}
    table = [numbers.setdefault(watch, len(numbers)) if watch in known else -1 for watch in watches]
    reasons = tuple(dict.fromkeys(dead))
    for reason in reasons:
        numbers.setdefault(reason.watch, len(numbers))
    ruled = calls.replace(
        rule=np.array(table or [-1], np.int32)[calls.rule],
        flags=np.where(_are_cut(stacks)[calls.stack], calls.flags | _CUT, calls.flags),
    )
    ruled = ruled.select(ruled.rule >= 0)
    late = (ATTACHED_LATE,) if process.attached_late else ()
    return ProcessCalls(
        source=source,
        process=process,
        moments=Moments(process.started, tuple(marks), _first_calls(calls, watches)),
        images=tuple(
            Image(
                path=image.path,
                uuid=image.uuid,
                role=role_of_path(image.path, is_program=image.is_program),
            )
            for image in images
        ),
        stacks=stacks,
        rules=tuple(numbers),
        columns={name: getattr(ruled, name) for name in _COLUMNS},
        dead=reasons,
        unruled=(),
        problems=tuple(f"{source}: {text}" for text in (*late, *problems)),
        costs=tuple(f"{source}: {text}" for text in costs),
    )


def _are_cut(stacks: StackTree) -> npt.NDArray[np.bool_]:
    is_mark = (stacks.image == NO_IMAGE) & (stacks.offset == OUTER_MISSING)
    return path_sums(stacks.parent, is_mark) > 0


def _first_calls(calls: Calls, watches: Sequence[str]) -> dict[str, int]:
    last = np.iinfo(np.int64).max
    first = np.full(len(watches), last, np.int64)
    timed = calls.time != NO_TIME
    np.minimum.at(first, calls.rule[timed], calls.time[timed])
    times: dict[str, int] = {}
    for watch, time in zip(watches, first.tolist(), strict=True):
        if time != last:
            times[watch] = min(time, times.get(watch, last))
    return times
