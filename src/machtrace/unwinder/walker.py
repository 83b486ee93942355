"""The walk from one frame to its caller until a frame has no caller.

Two heuristics serve frames without unwind information or code. Both require evidence.

A link register that no call has overwritten: after a call has returned, the link register holds the
address after that call, in the very function whose register it is. So if it is in another image
than the function, the function has not called yet, or is about to return, and its caller is there.
If it is in the same image it proves nothing and is ignored; walkers that trust it report frames
that never called.

A call through a null or an overwritten function pointer: the processor has called, and no
instruction of the callee ran. So the callee has no frame: the return address is in the link
register or on top of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
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
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule, link_register_rule
from machtrace.unwinder.step import NULL_PAGE, THUMB_BIT, step
from machtrace.unwinder.swift_async import AsyncEntry, async_entry

_X86_LONGEST_CALL = 7
_X86_CALL = 0xE8
_X86_CALL_SIZE = 5
_X86_INDIRECT = 0xFF
_X86_INDIRECT_SIZES = (2, 3, 4, 6, 7)
_X86_INDIRECT_CALL = 2
"""The middle bits of the ModRM byte: ``FF /2`` is a call."""
_ARM64_BL = 0b100101
"""The top six bits."""
_ARM64_INDIRECT = {0xD63F0000: 0xFFFFFC1F, 0xD63F0800: 0xFFFFF800, 0xD73F0800: 0xFFFFF800}
"""BLR; BLRAAZ and BLRABZ; BLRAA and BLRAB: the opcode, and the mask of its bits."""

_ARM_BLX, _ARM_BLX_MASK = 0x012FFF30, 0x0FFFFFF0
_THUMB_BLX, _THUMB_BLX_MASK = 0x4780, 0xFF87
"""BLX (register): the opcode, and the mask of its bits."""


def entry_rule(arch: Arch) -> UnwindRule:
    """Return the rule before the first instruction of a function."""
    if arch.has_link_register:
        return link_register_rule(arch)
    word = arch.pointer_size
    return UnwindRule(RegisterOffset(arch.registers.sp, word), AtCfa(-word))


def _called_bad_pointer(
    registers: RegisterSet, memory: MemoryReader, mask: PacMask
) -> FrameTrust | None:
    """Return the trust that ``registers`` are at the target of a call, and nothing has run there.

    A null pointer is one. Other code may be generated at run time, or be a function without tables;
    so the presumed return address must follow a call that leads here, or may lead here: a call
    through a register, whose caller is in the link register, or on top of the stack. None
    otherwise. Raises nothing.
    """
    if registers.pc < NULL_PAGE:
        return FrameTrust.PROLOGUE
    try:
        return_address = _return_address(registers, memory, mask)
        if return_address is None:
            return None
        if registers.arch.is_arm64:
            return _behind_arm64_call(return_address, registers.pc, memory)
        if registers.arch.is_arm:
            return _behind_arm_call(return_address, memory)
        return _behind_x86_call(return_address, registers.pc, memory)
    except MemoryReadError:
        return None


def is_arm64_call(word: int) -> bool:
    """Return whether an instruction is BL or a variant of BLR."""
    return word >> 26 == _ARM64_BL or any(
        word & mask == bits for bits, mask in _ARM64_INDIRECT.items()
    )


def _return_address(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> int | None:
    if registers.arch.has_link_register:
        return None if registers.lr is None else mask.strip(registers.lr)
    if registers.sp is None:
        return None
    word = memory.read(Avma(registers.sp), registers.arch.pointer_size)
    return int.from_bytes(word, "little")


def _behind_arm64_call(address: int, target: int, memory: MemoryReader) -> FrameTrust | None:
    word = int.from_bytes(memory.read(Avma(address - 4), 4), "little")
    if word >> 26 == _ARM64_BL:
        distance = (word & 0x03FFFFFF) << 2
        distance -= (distance & 1 << 27) << 1
        return FrameTrust.PROLOGUE if address - 4 + distance == target else None
    return FrameTrust.LINK_REGISTER if is_arm64_call(word) else None


def _behind_arm_call(address: int, memory: MemoryReader) -> FrameTrust | None:
    """Check the instruction before a return address, which states the caller's instruction set."""
    at = address & ~THUMB_BIT
    if address & THUMB_BIT:
        halfword = int.from_bytes(memory.read(Avma(at - 2), 2), "little")
        is_indirect = halfword & _THUMB_BLX_MASK == _THUMB_BLX
    else:
        word = int.from_bytes(memory.read(Avma(at - 4), 4), "little")
        is_indirect = word & _ARM_BLX_MASK == _ARM_BLX
    return FrameTrust.LINK_REGISTER if is_indirect else None


def _behind_x86_call(address: int, target: int, memory: MemoryReader) -> FrameTrust | None:
    before = bytes(memory.read(Avma(address - _X86_LONGEST_CALL), _X86_LONGEST_CALL))
    if before[-_X86_CALL_SIZE] == _X86_CALL:
        distance = int.from_bytes(before[-4:], "little", signed=True)
        if address + distance == target:
            return FrameTrust.PROLOGUE
    is_indirect = any(
        before[-size] == _X86_INDIRECT and before[1 - size] >> 3 & 7 == _X86_INDIRECT_CALL
        for size in _X86_INDIRECT_SIZES
    )
    return FrameTrust.SCAN if is_indirect else None


def _lr_is_live(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> bool:
    """Return whether an interrupted function's caller is in the link register, not in its record.

    Only AArch64 is supported.
    """
    if registers.lr is None or not registers.arch.is_arm64:
        return False
    address = mask.strip(registers.lr)
    home = rules.image_at(Avma(address - 1))
    if home is None or home is rules.image_at(registers.pc):
        return False
    word = _word(memory, Avma(address - 4), 4)
    if word is not None and not is_arm64_call(word):
        return False
    size = registers.arch.pointer_size
    record = mask.strip(registers.fp or 0)
    saved = _word(memory, Avma(record + size), size)
    return saved is None or mask.strip(saved) != address


def _word(memory: MemoryReader, address: Avma, size: int) -> int | None:
    try:
        return int.from_bytes(memory.read(address, size), "little")
    except MemoryReadError:
        return None


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
        return walk_of(machine.inner.chain(machine.stop))
    stop = machine.entry.follow(memory, mask, machine.inner.add)
    return walk_of(machine.inner.chain(stop), machine.outer.chain(machine.stop))


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
    is_marked = False
    while True:
        step_up = find_caller(here, registers, memory, rules, mask)
        if isinstance(step_up, Stop):
            yield step_up
            return
        rule, trust, caller = step_up
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
    """Return the rule for the caller, the trust in it, and the caller's registers; or the stop.

    ``registers`` are those of the frame ``here``. If a table and the code contradict each other,
    the table is followed, unless it leads nowhere and the code does not. If a table needs a
    register that was lost, the code is followed. Cycles are not detected here. Raises nothing.
    """
    interrupted = here.kind is AddressKind.PROGRAM_COUNTER
    rule, trust = rules.find(here.lookup, interrupted=interrupted)
    is_guess = interrupted and trust is FrameTrust.FRAME_POINTER
    if is_guess:
        guess = _unsaved_caller(registers, memory, rules, mask)
        if guess is not None:
            rule, trust, is_guess = entry_rule(registers.arch), guess, False
    caller = step(rule, registers, memory, mask, rules.budget)
    other = None if interrupted else rules.objection(here.lookup)
    if other is not None:
        alternative = step(other[0], registers, memory, mask, rules.budget)
        if _is_nowhere(caller, rules) and not _is_nowhere(alternative, rules):
            (rule, trust), caller = other, alternative
    elif not interrupted and isinstance(caller, Stop) and caller.reason is StopReason.NO_RULE:
        # A register that the CFA depends on was lost, as in ``longjmp``; the code may use others.
        other = rules.rule_in_code(here.lookup)
        alternative = (
            caller if other is None else step(other[0], registers, memory, mask, rules.budget)
        )
        if other is not None and not isinstance(alternative, Stop):
            (rule, trust), caller = other, alternative
    if isinstance(caller, Stop):
        return _no_root(caller, here, rules) if is_guess else caller
    if trust is FrameTrust.FRAME_POINTER and (caller.sp or 0) <= (registers.sp or 0):
        # Only the frame-pointer chain locates the next frame: it must rise.
        return Stop(StopReason.NO_PROGRESS, registers.pc)
    return rule, trust, caller


def _unsaved_caller(
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask
) -> FrameTrust | None:
    """Return the trust that a frame without unwind information is as at its function's entry.

    None if its frame pointer is likelier to lead to the caller.
    """
    trust = _called_bad_pointer(registers, memory, mask)
    if trust is FrameTrust.PROLOGUE or (trust and rules.image_at(registers.pc) is None):
        return trust
    is_fresh = _lr_is_live(registers, memory, rules, mask)
    return FrameTrust.LINK_REGISTER if is_fresh else None


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
        other = step(rule, registers, memory, mask, rules.budget)
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


def _no_root(stop: Stop, here: FrameAddress, rules: RuleCache) -> Stop:
    """Qualify the end of a stack that a guess by an interrupted function's frame pointer found.

    Only Apple's ABIs promise that the register is a frame pointer, or zero in the root.
    """
    image = rules.image_at(here.lookup)
    if stop.is_complete and (image is None or image.format is not ImageFormat.MACHO):
        return Stop(StopReason.NO_RULE, here.address)
    return stop
