"""The walk: from one frame to its caller until nobody called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from machtrace.model.address import Avma, PacMask
from machtrace.model.image import ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    Dispute,
    FrameAddress,
    FrameTrust,
    Stop,
    StopReason,
    Walk,
)
from machtrace.unwinder.cycle import REMEMBERED, CycleDetector
from machtrace.unwinder.fresh_link_register import _lr_is_live
from machtrace.unwinder.frame_limit import FrameLimiter
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.rules import AtCfa, UnwindRule
from machtrace.unwinder.step import step
from machtrace.unwinder.stray_call import entry_rule, _called_bad_pointer
from machtrace.unwinder.swift_async import AsyncEntry, async_entry

DEFAULT_DEPTH = 512
"""Frames of one stack that are kept, unless the caller says otherwise."""

MOST_FRAMES = 1 << 22
"""Frames of one stack that are walked: a stack of the smallest ones would take 64 MiB."""

MOST_IRREGULAR = 4096
"""How often a walk may not go up the stack, or find a return address elsewhere than on it.

A signal handler on a stack of its own goes down, a leaf function stays; neither is a thousandth of
a deep stack. What memory holds bounds the other steps, and nothing else these.
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The machine's frames, parted at the first that is of an async function."""

    inner: FrameLimiter
    """Up to the async function; all where there is none."""
    stop: Stop
    entry: AsyncEntry | None
    outer: FrameLimiter | None
    """From the caller of the async function."""


def walk(
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
    limit: int = DEFAULT_DEPTH,
) -> Walk:
    """Walk one stack, innermost frame first, to its end.

    ``limit`` is how many addresses are kept at most, of the program's stack and of the machine's;
    of a deeper stack the innermost and the outermost are kept and the others counted, in memory
    that its depth does not change. Whatever ends the walk, what was found before it is in the
    result; nothing that memory holds can make this raise or go on for ever.
    """
    machine = _walk_frames(registers, memory, rules, mask, limit)
    if machine.entry is None or machine.outer is None:
        return walk_of(machine.inner.chain(machine.stop))
    stop = machine.entry.follow(memory, mask, machine.inner.add)
    return walk_of(machine.inner.chain(stop), machine.outer.chain(machine.stop))


def walk_of(chain: AddressChain, physical_remainder: AddressChain | None = None) -> Walk:
    """``chain``, and the machine's frames below an async function, as a walk."""
    return Walk(
        addresses=chain.addresses,
        stop=chain.stop,
        gap=chain.gap,
        physical_remainder=physical_remainder,
    )


def _walk_frames(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask, limit: int
) -> _Machine:
    kept = inner = FrameLimiter(limit)
    stop = Stop(StopReason.ROOT)
    entry: AsyncEntry | None = None
    for frame in machine_frames(registers, memory, rules, mask):
        if isinstance(frame, Stop):
            stop = frame
            break
        if frame.entry is not None:
            entry, kept = frame.entry, FrameLimiter(limit)
        kept.add(frame.address)
    return _Machine(inner, stop, entry, None if entry is None else kept)


class MachineFrame(NamedTuple):
    """A frame of the machine's stack, as a walk comes to it."""

    address: FrameAddress
    registers: RegisterSet
    entry: AsyncEntry | None = None
    """In the caller of the first async function: where that function's continuations begin."""


def machine_frames(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> Iterator[MachineFrame | Stop]:
    """Every frame of a stack, innermost first; last, why it ends. See :func:`walk`."""
    rules.begin_walk()
    try:
        yield from _frames_from(registers, memory, rules, mask)
    finally:
        rules.end_walk()


def _frames_from(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> Iterator[MachineFrame | Stop]:
    here = FrameAddress(registers.pc, FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)
    yield MachineFrame(here, registers)
    progress = _Progress()
    is_marked = False
    while True:
        found = find_caller(here, registers, memory, rules, mask)
        if isinstance(found, Stop):
            yield found
            return
        rule, trust, caller = found
        ended = progress.ended_by(registers, rule, caller)
        if ended is not None:
            yield Stop(ended, caller.pc)
            return
        entry = None if is_marked else async_entry(here, rule, registers, caller)
        is_marked = is_marked or entry is not None
        disputed_by = disputes(here, registers, memory, rules, mask, caller)
        here = FrameAddress(caller.pc, trust, rule.caller_kind, disputed_by)
        yield MachineFrame(here, caller, entry)
        registers = caller


def find_caller(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
) -> tuple[UnwindRule, FrameTrust, RegisterSet] | Stop:
    """One step of a walk: the caller's registers, and the rule that recovered them; or the end.

    ``registers`` are those of the frame ``here``. Where a table and the code contradict each other
    the table is followed, unless it leads nowhere and the code does not. Where a table needs a
    register that was lost, the code is followed too. Whether the walk has been at the caller
    before is not looked at. Raises nothing.
    """
    interrupted = here.kind is AddressKind.PROGRAM_COUNTER
    rule, trust = rules.find(here.lookup, interrupted=interrupted)
    is_guess = interrupted and trust is FrameTrust.FRAME_POINTER
    if is_guess:
        guess = _unsaved_caller(registers, memory, rules, mask)
        if guess is not None:
            rule, trust, is_guess = entry_rule(registers.arch), guess, False
    caller = step(rule, registers, memory, mask, rules.work)
    other = None if interrupted else rules.objection(here.lookup)
    if other is not None:
        found = step(other[0], registers, memory, mask, rules.work)
        if _is_nowhere(caller, rules) and not _is_nowhere(found, rules):
            (rule, trust), caller = other, found
    elif not interrupted and isinstance(caller, Stop) and caller.reason is StopReason.NO_RULE:
        # A register that the table counts from was lost, as in ``longjmp``. Code knows others.
        other = rules.rule_in_code(here.lookup)
        found = caller if other is None else step(other[0], registers, memory, mask, rules.work)
        if other is not None and not isinstance(found, Stop):
            (rule, trust), caller = other, found
    if isinstance(caller, Stop):
        return _no_root(caller, here, rules) if is_guess else caller
    if trust is FrameTrust.FRAME_POINTER and (caller.sp or 0) <= (registers.sp or 0):
        # Only the chain itself says where the next frame is: it must rise.
        return Stop(StopReason.NO_PROGRESS, registers.pc)
    return rule, trust, caller


def _unsaved_caller(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> FrameTrust | None:
    """How far it can be trusted that a frame of which nothing is known is as at its entry.

    None where its frame pointer is more likely to know the caller.
    """
    found = _called_bad_pointer(registers, memory, mask)
    if found is FrameTrust.PROLOGUE or (found and rules.image_at(registers.pc) is None):
        return found
    is_fresh = _lr_is_live(registers, memory, rules, mask)
    return FrameTrust.LINK_REGISTER if is_fresh else None


def _is_nowhere(caller: RegisterSet | Stop, rules: RuleCache) -> bool:
    """Whether a step led to no caller, not even to the end, or out of all images."""
    if isinstance(caller, Stop):
        return not caller.is_complete
    return rules.image_at(Avma(caller.pc - 1)) is None


def disputes(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
    caller: RegisterSet,
) -> tuple[Dispute, ...]:
    """What else claims to know ``here``'s caller and does not find ``caller``, which was chosen.

    See :func:`find_caller` for the others. Raises nothing.
    """
    if here.kind is AddressKind.PROGRAM_COUNTER:
        return ()
    objection = rules.objection(here.lookup)
    if objection is None:
        return ()
    found: list[Dispute] = []
    for rule, trust in (rules.find(here.lookup, interrupted=False), objection):
        other = step(rule, registers, memory, mask, rules.work)
        if isinstance(other, Stop):
            found.append(Dispute(trust, None))
        elif (other.pc, other.sp) != (caller.pc, caller.sp):
            found.append(Dispute(trust, other.pc))
    return tuple(found)


class _Progress:
    """Sees to it that a walk ends, in constant memory.

    To go round, it must leave the direction of the stack at least once each time. The innermost
    frame is no state to come back to: where a call that never returns is a function's last
    instruction, the function behind it begins with its own address as the return address.
    """

    __slots__ = ("_cycle", "_frames", "_irregular")

    def __init__(self) -> None:
        self._cycle = CycleDetector()
        self._frames = 1
        self._irregular = 0

    def ended_by(
        self, registers: RegisterSet, rule: UnwindRule, caller: RegisterSet
    ) -> StopReason | None:
        """Why ``caller``, found by ``rule``, is not to be gone on with; None if it is."""
        self._frames += 1
        rises = (caller.sp or 0) > (registers.sp or 0)
        is_watched = self._frames <= REMEMBERED or not rises
        if is_watched and self._cycle.has_passed((caller.pc, caller.sp)):
            return StopReason.NO_PROGRESS
        if not rises or not isinstance(rule.return_address, AtCfa):
            self._irregular += 1
            if self._irregular > MOST_IRREGULAR:
                return StopReason.DEPTH_LIMIT
        return StopReason.DEPTH_LIMIT if self._frames > MOST_FRAMES else None


def _no_root(stop: Stop, here: FrameAddress, rules: RuleCache) -> Stop:
    """What a guess by an interrupted function's frame pointer may say of its end.

    Only Apple's ABIs promise that the register is a frame pointer, or zero for the root.
    """
    image = rules.image_at(here.lookup)
    if stop.is_complete and (image is None or image.format is not ImageFormat.MACHO):
        return Stop(StopReason.NO_RULE, here.address)
    return stop
