"""Explaining stacks: how each frame's caller was found, and what every other method says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from machtrace.images.resolver import ImageResolver, Search
from machtrace.model.capture import FrameExplanation, StackExplanation
from machtrace.model.memory import LayeredMemory
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    Backtrace,
    FrameAddress,
    Stop,
    stretches,
)
from machtrace.model.symbol import Frame
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.unwinder.explain import Explainer
from machtrace.unwinder.unwinder import Unwinder
from machtrace.unwinder.walker import machine_frames


def explain(
    backtrace: Backtrace, *, search: Search = (), symbolicate: bool = True
) -> StackExplanation:
    """How each frame of a backtrace was left for its caller, and what other methods say of it.

    The stack is walked again, so this takes longer than the walk did, and changes nothing.

    Args:
        backtrace: what :func:`machtrace.unwind` returned.
        search: as it was given then; frames that the walk does not come to again have no
            explanation.
        symbolicate: whether to look up the names of the callers that methods find.
    """
    (explained,) = explain_all([backtrace], search=search, symbolicate=symbolicate)
    return explained


def explain_all(
    backtraces: Iterable[Backtrace],
    *,
    search: Search = (),
    symbolicate: bool = True,
) -> tuple[StackExplanation, ...]:
    """:func:`explain` of many; what is learnt of one snapshot's images serves all of its stacks."""
    files = ImageResolver.of(search)
    unwinder, symbolicator = Unwinder(files), Symbolicator(files, lines=False)
    return tuple(
        _explained(backtrace, unwinder, symbolicator, symbolicate=symbolicate)
        for backtrace in backtraces
    )


def _explained(
    backtrace: Backtrace, unwinder: Unwinder, symbolicator: Symbolicator, *, symbolicate: bool
) -> StackExplanation:
    snapshot, thread = backtrace.snapshot, backtrace.thread
    rules, mask = unwinder.rules(snapshot), snapshot.process.pointer_mask
    memory = LayeredMemory((thread.stack, snapshot.memory))

    def name(address: FrameAddress) -> Frame:
        return symbolicator.frame(address, snapshot, named=symbolicate)

    explainer = Explainer(rules, mask, name)
    inner, outer = _wanted(backtrace), _wanted(backtrace.physical_remainder)
    found: dict[tuple[bool, int], FrameExplanation] = {}
    is_outer, number = False, -1
    for frame in machine_frames(thread.registers, memory, rules, mask):
        if isinstance(frame, Stop):
            break
        is_outer, number = (True, 0) if frame.entry is not None else (is_outer, number + 1)
        if number in (outer if is_outer else inner):
            found[is_outer, number] = explainer.explain(frame.address, frame.registers, memory)

    def of(kept: AddressChain | None, *, is_outer: bool) -> Iterator[FrameExplanation | None]:
        for number, one in () if kept is None else _numbered(kept):
            explained = found.get((is_outer, number))
            # With other files than it had then, the walk may come to other frames.
            is_it = explained is not None and explained.frame.address == one.address
            yield explained if is_it else None

    return StackExplanation(
        frames=tuple(of(backtrace, is_outer=False)),
        physical_remainder=tuple(of(backtrace.physical_remainder, is_outer=True)),
    )


def _numbered(kept: AddressChain) -> Iterator[tuple[int, FrameAddress]]:
    pieces = (enumerate(part, first) for first, part in stretches(kept.addresses, kept.gap))
    return chain.from_iterable(pieces)


def _wanted(kept: AddressChain | None) -> frozenset[int]:
    """The numbers of the machine's frames that were kept."""
    return frozenset(
        number
        for number, one in (() if kept is None else _numbered(kept))
        if one.kind is not AddressKind.ASYNC_RESUME
    )
