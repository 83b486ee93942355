"""The walk from one frame to its caller until a frame has no caller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from machtrace.frozen import dataclass
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
from machtrace.unwinder.frame_limit import (
    DEFAULT_LIMIT,
    STORED_STATES,
    CycleDetector,
    FrameLimit,
    FrameLimiter,
)
from machtrace.unwinder.last_resort import (
    cannot_run,
    checked_chain,
    entry_rule,
    guesses,
    known_end,
    scanned_caller,
    unsaved_caller,
)
from machtrace.unwinder.rule_cache import RuleCache, TrustedRule
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.step import step
from machtrace.unwinder.swift_async import AsyncEntry, async_entry

FRAMES_PER_WALK = 1 << 22
"""Frames per walk: a stack of the smallest frames would take 64 MiB."""

IRREGULAR_STEPS = 4096
"""Steps of one walk that do not go up the stack, or recover a return address not saved on it.

A signal handler on its own stack goes down, a leaf function stays; neither is a thousandth of a
deep stack. Other steps are bounded by the size of memory, these by nothing else.
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The physical frames, split at the first async function."""

    inner: FrameLimiter
    """Up to the async function; all frames without one."""
    stop: Stop
    entry: AsyncEntry | None
    outer: FrameLimiter | None
    """From the caller of the async function."""


def walk(
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
    limit: FrameLimit = DEFAULT_LIMIT,
) -> Walk:
    """Walk one stack, innermost frame first, to its end.

    ``limit`` is the maximum number of addresses, of the async stack and of the physical remainder
    each. A deeper stack keeps its innermost and outermost addresses and counts the others, in
    constant memory. Raises nothing whatever memory contains, and always ends; the result has every
    frame before the stop.
    """
    machine = _walk_frames(registers, memory, rules, mask, limit)
    if machine.entry is None or machine.outer is None:
        return walk_of(_with_trampolines(machine.inner.chain(machine.stop), rules))
    stop = machine.entry.follow(memory, mask, machine.inner.add)
    return walk_of(machine.inner.chain(stop), machine.outer.chain(machine.stop))


def _with_trampolines(chain: AddressChain, rules: RuleCache) -> AddressChain:
    """Return ``chain`` with the kind of addresses that handlers return to, below signals' frames.

    Darwin's trampoline calls the handler, and so has a return address.
    """
    addresses = list(chain.addresses)
    for index, frame in enumerate(chain.addresses[1:]):
        here = addresses[index]
        if frame.kind is not AddressKind.PROGRAM_COUNTER:
            continue
        image = rules.image_at(here.address)
        is_elf = image is not None and image.format is ImageFormat.ELF
        if is_elf and here.kind is AddressKind.RETURN_ADDRESS:
            addresses[index] = replace(here, kind=AddressKind.SIGNAL_TRAMPOLINE)
    return replace(chain, addresses=tuple(addresses))


def walk_of(chain: AddressChain, physical_remainder: AddressChain | None = None) -> Walk:
    """Return ``chain``, and the physical frames below an async function, as a walk."""
    return Walk(
        addresses=chain.addresses,
        stop=chain.stop,
        gap=chain.gap,
        physical_remainder=physical_remainder,
    )


def _walk_frames(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask, limit: FrameLimit
) -> _Machine:
    limiter = inner = FrameLimiter(limit)
    stop = Stop(StopReason.ROOT)
    entry: AsyncEntry | None = None
    for frame in machine_frames(registers, memory, rules, mask):
        if isinstance(frame, Stop):
            stop = frame
            break
        if frame.entry is not None:
            entry, limiter = frame.entry, FrameLimiter(limit)
        limiter.add(frame.address)
    return _Machine(inner, stop, entry, None if entry is None else limiter)


class MachineFrame(NamedTuple):
    """A physical frame of a walk."""

    address: FrameAddress
    registers: RegisterSet
    entry: AsyncEntry | None = None
    """In the caller of the first async function: where that function's continuations begin."""


def machine_frames(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> Iterator[MachineFrame | Stop]:
    """Yield every physical frame, innermost first, then the stop. See :func:`walk`."""
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
    is_marked = is_guessed = False
    inner: list[tuple[FrameAddress, UnwindRule]] = []
    innermost = registers
    while True:
        step_up = find_caller(here, registers, memory, rules, mask)
        if 0 < len(inner) <= _MAX_INNER and needs_scratch(step_up, here, registers, rules):
            whole = _with_scratch(innermost, inner, memory, rules, mask)
            step_up = _by_scratch_register(here, whole, memory, rules, mask) or step_up
        if isinstance(step_up, Stop):
            yield known_end(step_up, here, rules) if is_guessed else step_up
            return
        rule, trust, caller = step_up
        is_guessed = is_guessed or guesses(trust, here, rules)
        ended = progress.ended_by(registers, rule, caller)
        if ended is not None:
            yield Stop(ended, caller.pc)
            return
        entry = None if is_marked else async_entry(here, rule, registers, caller)
        is_marked = is_marked or entry is not None
        disputed_by = disputes(here, registers, memory, rules, mask, caller)
        if len(inner) <= _MAX_INNER:
            inner.append((here, rule))
        here = FrameAddress(caller.pc, trust, rule.caller_kind, disputed_by)
        yield MachineFrame(here, caller, entry)
        registers = caller


_MAX_INNER = 4
"""Frames through which scratch registers are followed: assembly calls no deeper."""
_GUESSES = frozenset({FrameTrust.FRAME_POINTER, FrameTrust.SCAN})


def needs_scratch(
    step_up: tuple[UnwindRule, FrameTrust, RegisterSet] | Stop,
    here: FrameAddress,
    registers: RegisterSet,
    rules: RuleCache,
) -> bool:
    """Return whether only a lost scratch register leads from ``here``, by its rule, to its caller.

    Args:
        step_up: the result without that register.
        here: a frame.
        registers: its registers.
        rules: the process's.
    """
    if not isinstance(step_up, Stop) and step_up[1] not in _GUESSES:
        return False
    if isinstance(step_up, Stop) and step_up.is_complete:
        return False
    own = _rule_in_call(here, rules)
    return own is not None and any(
        registers.get(part.register) is None
        for part in (own[0].cfa, own[0].return_address)
        if isinstance(part, RegisterOffset | InRegister)
    )


def _with_scratch(
    registers: RegisterSet,
    inner: list[tuple[FrameAddress, UnwindRule]],
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
) -> RegisterSet:
    """Return a frame's registers with those caller-saved ones that all inner frames left alone.

    Args:
        registers: the innermost frame's.
        inner: the frames from there to the frame, each with its rule.
        memory: the snapshot's.
        rules: the process's.
        mask: removes signatures.
    """
    for frame, rule in inner:
        interrupted = frame.kind is AddressKind.PROGRAM_COUNTER
        stated = {number for number, _ in rule.registers}
        more = tuple(
            (number, InRegister(number))
            for number in rules.unchanged_at(frame.lookup, interrupted=interrupted)
            if number not in stated
        )
        caller = step(replace(rule, registers=rule.registers + more), registers, memory, mask)
        if isinstance(caller, Stop):
            return registers
        registers = caller
    return registers


def find_caller(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
) -> tuple[UnwindRule, FrameTrust, RegisterSet] | Stop:
    """Return the rule for the caller, the trust in it, and the caller's registers; or the stop.

    ``registers`` are those of the frame ``here``. If a table and the code contradict each other,
    the table is followed, unless it leads nowhere and the code does not. A rule that needs a
    register that was lost, or an expression that cannot be evaluated, is skipped. Cycles are not
    detected here. Raises nothing.
    """
    rule, trust, caller = _followed(here, registers, memory, rules, mask)
    if trust is FrameTrust.FRAME_POINTER:
        in_code = _by_scratch_register(here, registers, memory, rules, mask)
        if in_code is not None:
            return in_code
        caller = checked_chain(here, registers, caller, memory, rules)
    elif isinstance(caller, Stop) and rules.is_guess(
        here.lookup, interrupted=here.kind is AddressKind.PROGRAM_COUNTER
    ):
        caller = known_end(caller, here, rules)
    if not isinstance(caller, Stop):
        return rule, trust, caller
    scanned = (
        None if caller.is_complete else scanned_caller(here, registers, memory, rules, mask, trust)
    )
    return scanned or caller


def _by_scratch_register(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
) -> tuple[UnwindRule, FrameTrust, RegisterSet] | None:
    """Return the caller of a frame in a call by its code alone, with its rule and trust.

    Assembly keeps the return address, or its stack pointer, in a scratch register that the
    functions which it calls leave alone. None if such a register is unknown.
    """
    own = _rule_in_call(here, rules)
    if own is None:
        return None
    caller = step(own[0], registers, memory, mask, rules.budgets.expressions)
    return None if isinstance(caller, Stop) else (*own, caller)


def _rule_in_call(here: FrameAddress, rules: RuleCache) -> TrustedRule | None:
    """Return the rule of a frame in a call, by its code if only its frame pointer is known."""
    if here.kind is AddressKind.PROGRAM_COUNTER:
        return None
    own = rules.find(here.lookup, interrupted=False)
    return rules.rule_in_code(here.lookup) if own[1] is FrameTrust.FRAME_POINTER else own


def _followed(
    here: FrameAddress,
    registers: RegisterSet,
    memory: MemoryReader,
    rules: RuleCache,
    mask: PacMask,
) -> tuple[UnwindRule, FrameTrust, RegisterSet | Stop]:
    """Return the rule to follow from ``here``, its trust, and its result, plausible or not."""
    interrupted = here.kind is AddressKind.PROGRAM_COUNTER
    rule, trust = rules.find(here.lookup, interrupted=interrupted)
    if interrupted and (trust is FrameTrust.FRAME_POINTER or cannot_run(here.address, registers)):
        guess = unsaved_caller(registers, memory, rules, mask)
        if guess is not None:
            rule, trust = entry_rule(registers.arch), guess
    caller = step(rule, registers, memory, mask, rules.budgets.expressions)
    other = None if interrupted else rules.objection(here.lookup)
    if other is not None:
        alternative = step(other[0], registers, memory, mask, rules.budgets.expressions)
        if _is_nowhere(caller, rules) and not _is_nowhere(alternative, rules):
            return *other, alternative
    elif isinstance(caller, Stop) and caller.reason is StopReason.NO_RULE:
        # A register that the CFA depends on was lost, as in ``longjmp``; other rules may not.
        for other in _other_rules(here, rule, rules):
            alternative = step(other[0], registers, memory, mask, rules.budgets.expressions)
            if not isinstance(alternative, Stop):
                return *other, alternative
    return rule, trust, caller


def _other_rules(
    here: FrameAddress, unusable: UnwindRule, rules: RuleCache
) -> Iterator[TrustedRule]:
    """Yield the rules besides ``unusable``, best first: for calls, the code's comes first."""
    interrupted = here.kind is AddressKind.PROGRAM_COUNTER
    own = None if interrupted else rules.rule_in_code(here.lookup)
    if own is not None:
        yield own
    yield from rules.others(here.lookup, unusable, interrupted=interrupted)


def _is_nowhere(caller: RegisterSet | Stop, rules: RuleCache) -> bool:
    """Return whether a step led out of all images, or stopped before the end of the stack."""
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
    """Return the rules that lead from ``here`` to another caller than ``caller``, the chosen one.

    See :func:`find_caller`. Raises nothing.
    """
    if here.kind is AddressKind.PROGRAM_COUNTER:
        return ()
    objection = rules.objection(here.lookup)
    if objection is None:
        return ()
    contradictions: list[Dispute] = []
    for rule, trust in (rules.find(here.lookup, interrupted=False), objection):
        other = step(rule, registers, memory, mask, rules.budgets.expressions)
        if isinstance(other, Stop):
            contradictions.append(Dispute(trust, None))
        elif (other.pc, other.sp) != (caller.pc, caller.sp):
            contradictions.append(Dispute(trust, other.pc))
    return tuple(contradictions)


class _Progress:
    """Guarantees in constant memory that a walk ends.

    A cycle must leave the direction of the stack at least once per round. The innermost frame is
    not recorded: if a call that never returns is a function's last instruction, the next function
    begins at its return address.
    """

    __slots__ = ("_cycle", "_frames", "_irregular")

    def __init__(self) -> None:
        self._cycle = CycleDetector()
        self._frames = 1
        self._irregular = 0

    def ended_by(
        self, registers: RegisterSet, rule: UnwindRule, caller: RegisterSet
    ) -> StopReason | None:
        """Return the reason to stop before ``caller``, recovered by ``rule``; None to continue."""
        self._frames += 1
        rises = (caller.sp or 0) > (registers.sp or 0)
        is_watched = self._frames <= STORED_STATES or not rises
        if is_watched and self._cycle.has_passed((caller.pc, caller.sp)):
            return StopReason.NO_PROGRESS
        if not rises or not isinstance(rule.return_address, AtCfa):
            self._irregular += 1
            if self._irregular > IRREGULAR_STEPS:
                return StopReason.DEPTH_LIMIT
        return StopReason.DEPTH_LIMIT if self._frames > FRAMES_PER_WALK else None
