"""The walk by ``_native``'s loop; what that declines is done by the exact walker, step by step.

Results are those of :func:`machtrace.unwinder.walker.walk`. Importing this raises ImportError
where the package was installed without its extensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from machtrace._native import _walk
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader, MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    FrameAddress,
    FrameTrust,
    Gap,
    Stop,
    StopReason,
    Walk,
)
from machtrace.unwinder.frame_codes import KIND_COUNT, KINDS, TRUSTS, code_of
from machtrace.unwinder.kept_frames import KeptFrames, outer_frames
from machtrace.unwinder.process_rules import ProcessRules
from machtrace.unwinder.rule_table import ADDRESS_BITS, NativeRules
from machtrace.unwinder.rules import AtCfa
from machtrace.unwinder.swift_async import AsyncEntry, async_entry
from machtrace.unwinder.walker import find_caller, walk

_INNERMOST = code_of(FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)
_ROOT = Stop(StopReason.ROOT)
_NO_PROGRESS = {
    _walk.PASSED: StopReason.NO_PROGRESS,
    _walk.TOO_DEEP: StopReason.DEPTH_LIMIT,
}
_REMEMBERED = 1 << 16
"""Frames that are made once for all stacks; at the limit all are forgotten."""


class _Frames(dict[tuple[int, int], FrameAddress]):
    """Frames by address and code, each made when it is first asked for."""

    def __missing__(self, key: tuple[int, int]) -> FrameAddress:
        if len(self) >= _REMEMBERED:
            self.clear()
        trust, kind = divmod(key[1], KIND_COUNT)
        found = self[key] = FrameAddress(Avma(key[0]), TRUSTS[trust], KINDS[kind])
        return found


@dataclass(frozen=True, slots=True)
class _Trace:
    """One stack whose frames are the walker's last."""

    stop: Stop
    depth: int
    """Of the first part: all, or what comes before an async function's caller. Of a deep one not
    all are kept."""
    end: int
    """Of the first part, among the walker's frames."""
    entry: AsyncEntry | None
    """Where that function's continuations begin."""
    outer_depth: int = 0
    """Of the second part."""


class NativeWalker:
    """Walks stacks of one process, one after the other; not for use by several threads at once."""

    __slots__ = ("_arch", "_frames", "_mask", "_native", "_rules", "_walker")

    def __init__(self, rules: ProcessRules, arch: Arch, mask: PacMask) -> None:
        """What is learnt of ``rules`` is remembered as long as ``self`` is."""
        self._rules = rules
        self._arch = arch
        self._mask = mask
        self._native = NativeRules(arch)
        self._walker = _walk.StackWalker(self._native.table, mask.bits & ADDRESS_BITS)
        self._frames = _Frames()

    def walk(
        self, registers: RegisterSet, stack: MemoryRegion, memory: MemoryReader, limit: int
    ) -> Walk:
        """What :func:`~machtrace.unwinder.walker.walk` returns.

        Args:
            registers: of the innermost frame.
            stack: the thread's.
            memory: all that there is, and ``stack`` before the rest.
            limit: how many addresses are kept at most.
        """
        walker = self._walker
        try:
            trace = self._trace(registers, stack, memory, limit)
            if trace is None:
                return walk(registers, memory, self._rules, self._mask, limit)
            inner = self._frames_of(0, trace.end)
            if trace.entry is None:
                return _walk_of(_chain(inner, trace.depth, trace.stop, limit))
            outer = self._frames_of(trace.end, len(walker))
            kept = KeptFrames.of(limit, inner, trace.depth)
            stop = trace.entry.follow(memory, self._mask, kept.add)
            rest = _chain(outer, trace.outer_depth, trace.stop, limit)
            return _walk_of(kept.chain(stop), rest)
        finally:
            walker.drop(0)

    def _frames_of(self, first: int, end: int) -> tuple[FrameAddress, ...]:
        addresses, codes = self._walker.frames(first, end)
        keys = zip(memoryview(addresses).cast("Q"), codes, strict=True)
        return tuple(map(self._frames.__getitem__, keys))

    def _trace(
        self, registers: RegisterSet, stack: MemoryRegion, memory: MemoryReader, limit: int
    ) -> _Trace | None:
        """Walk the machine's stack; None where registers are such as no machine has."""
        walker, outer = self._walker, outer_frames(limit)
        pause = walker.start(
            registers.pc,
            registers.values,
            _INNERMOST,
            stack.start,
            stack.data,
            limit - outer,
            outer,
        )
        stop, entry, depth, end = _ROOT, None, 0, 0
        while pause != _walk.ROOT:
            if pause == _walk.DOES_NOT_FIT:
                return None
            pc, values, interrupted = walker.state()
            kind = AddressKind.PROGRAM_COUNTER if interrupted else AddressKind.RETURN_ADDRESS
            here = FrameAddress(Avma(pc), FrameTrust.CONTEXT, kind)
            if pause == _walk.NO_RULE and self._learn(here.lookup, interrupted=interrupted):
                pause = walker.resume()
                continue
            last = RegisterSet(self._arch, here.address, values)
            found = find_caller(here, last, memory, self._rules, self._mask)
            if isinstance(found, Stop):
                stop = found
                break
            rule, trust, caller = found
            marked = None if entry is not None else async_entry(here, rule, last, caller)
            if marked is not None:
                depth = walker.part()
                end = len(walker)
            put = walker.push(
                caller.pc,
                caller.values,
                code_of(trust, rule.caller_kind),
                rule.is_signal_frame,
                isinstance(rule.return_address, AtCfa),
            )
            if put == _walk.DOES_NOT_FIT:
                return None
            if put != _walk.PUSHED:
                stop = Stop(_NO_PROGRESS[put], caller.pc)
                if marked is not None:
                    return _Trace(stop, depth, end, None)
                break
            entry = entry or marked
            pause = walker.resume()
        last_depth = walker.finish()
        if entry is None:
            return _Trace(stop, last_depth, len(walker), None)
        return _Trace(stop, depth, end, entry, last_depth)

    def _learn(self, lookup: Avma, *, interrupted: bool) -> bool:
        rule, trust = self._rules.find(lookup, interrupted=interrupted)
        return self._native.learn(lookup, interrupted=interrupted, rule=rule, trust=trust)


def _chain(frames: tuple[FrameAddress, ...], depth: int, stop: Stop, limit: int) -> AddressChain:
    left_out = depth - len(frames)
    gap = Gap(limit - outer_frames(limit), left_out) if left_out else None
    return AddressChain(addresses=frames, stop=stop, gap=gap)


def _walk_of(chain: AddressChain, physical_remainder: AddressChain | None = None) -> Walk:
    return Walk(
        addresses=chain.addresses,
        stop=chain.stop,
        gap=chain.gap,
        physical_remainder=physical_remainder,
    )
