"""Explanations of stacks: how each caller was found, and the results of every other method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain as joined

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
    """Explain how each frame's caller was found, and what other methods find.

    The stack is unwound again, which takes longer than the first time, and changes nothing.

    Args:
        backtrace: a result of :func:`machtrace.unwind`.
        search: the files and folders passed there; frames that this walk does not reach have no
            explanation.
        symbolicate: whether to look up the names of the callers that the methods find.
    """
    (explained,) = explain_all([backtrace], search=search, symbolicate=symbolicate)
    return explained


def explain_all(
    backtraces: Iterable[Backtrace],
    *,
    search: Search = (),
    symbolicate: bool = True,
    scan: bool = False,
) -> tuple[StackExplanation, ...]:
    """Explain many backtraces; rules and names are cached for all stacks of a snapshot."""
    files = ImageResolver.of(search)
    unwinder, symbolicator = Unwinder(files, scan=scan), Symbolicator(files, lines=False)
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
    explained: dict[tuple[bool, int], FrameExplanation] = {}
    is_outer, number = False, -1
    for frame in machine_frames(thread.registers, memory, rules, mask):
        if isinstance(frame, Stop):
            break
        is_outer, number = (True, 0) if frame.entry is not None else (is_outer, number + 1)
        if number in (outer if is_outer else inner):
            explained[is_outer, number] = explainer.explain(frame.address, frame.registers, memory)

    def of(chain: AddressChain | None, *, is_outer: bool) -> Iterator[FrameExplanation | None]:
        for number, address in () if chain is None else _numbered(chain):
            frame = explained.get((is_outer, number))
            # With other files, the walk may reach other frames.
            is_same = frame is not None and frame.frame.address == address.address
            yield frame if is_same else None

    return StackExplanation(
        frames=tuple(of(backtrace, is_outer=False)),
        physical_remainder=tuple(of(backtrace.physical_remainder, is_outer=True)),
    )


def _numbered(chain: AddressChain) -> Iterator[tuple[int, FrameAddress]]:
    pieces = (enumerate(part, first) for first, part in stretches(chain.addresses, chain.gap))
    return joined.from_iterable(pieces)


def _wanted(chain: AddressChain | None) -> frozenset[int]:
    """Return the numbers of the machine's frames in ``chain``."""
    return frozenset(
        number
        for number, address in (() if chain is None else _numbered(chain))
        if address.kind is not AddressKind.ASYNC_RESUME
    )
