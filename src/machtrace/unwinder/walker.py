"""The walk: from one frame to its caller until nobody called.

A link register that no call has overwritten, told from one that is stale.

After a call has returned, the link register holds the place behind that call: an address in the
very function that it is the register of. So where it leads out of the function's image, the
function has not called anybody yet, or is about to return, and its caller is there. Where it leads
into the same image nothing is known, and it is not believed: that is where walkers that believe it
always find frames that nobody called.

Calls to where no code is: through a null or an overwritten function pointer.

The processor has called, and nothing of what was called ran. So there is no frame to look for: the
return address is where the call left it, in the link register or on top of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from machtrace.errors import MemoryReadError
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
    REMEMBERED,
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
"""Of the ModRM byte's middle bits: ``FF /2`` is a call."""
_ARM64_BL = 0b100101
"""The top six bits."""
_ARM64_INDIRECT = {0xD63F0000: 0xFFFFFC1F, 0xD63F0800: 0xFFFFF800, 0xD73F0800: 0xFFFFF800}
"""BLR; BLRAAZ and BLRABZ; BLRAA and BLRAB: bits, and which of them count."""

_ARM_BLX, _ARM_BLX_COUNTS = 0x012FFF30, 0x0FFFFFF0
_THUMB_BLX, _THUMB_BLX_COUNTS = 0x4780, 0xFF87
"""BLX (register): bits, and which of them count."""


def entry_rule(arch: Arch) -> UnwindRule:
    """What holds before the first instruction of a function."""
    if arch.has_link_register:
        return link_register_rule(arch)
    word = arch.pointer_size
    return UnwindRule(RegisterOffset(arch.registers.sp, word), AtCfa(-word))


def _called_bad_pointer(
    registers: RegisterSet, memory: MemoryReader, mask: PacMask
) -> FrameTrust | None:
    """How sure it is that ``registers``, of code that nothing is known of, are at a call's target.

    At a null pointer they are. Elsewhere the code may be what a program generated while it ran, or
    a function without tables; so what should be the return address must follow a call that leads
    here, or may: a call through a register, which makes the caller the link register's word, or
    the stack's. None where it does not. Raises nothing.
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
    """Whether an instruction is BL or one of BLR's kinds."""
    return word >> 26 == _ARM64_BL or any(
        word & counts == bits for bits, counts in _ARM64_INDIRECT.items()
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
    """By the return address, which says of which instruction set the call is."""
    at = address & ~THUMB_BIT
    if address & THUMB_BIT:
        halfword = int.from_bytes(memory.read(Avma(at - 2), 2), "little")
        is_indirect = halfword & _THUMB_BLX_COUNTS == _THUMB_BLX
    else:
        word = int.from_bytes(memory.read(Avma(at - 4), 4), "little")
        is_indirect = word & _ARM_BLX_COUNTS == _ARM_BLX
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
    """Whether an interrupted function's caller is in its link register, and not yet in its record.

    Only AArch64's is looked at.
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
    limit: FrameLimit = DEFAULT_LIMIT,
) -> Walk:
    """Walk one stack, innermost frame first, to its end.

    ``limit`` is the maximum number of addresses, of the program's stack and of the machine's; those
    of a deeper stack that it leaves out are counted, in memory that its depth does not change.
    Whatever ends the walk, the addresses before it are in the result; nothing in memory can make
    this raise or run forever.
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
    registers: RegisterSet, memory: MemoryReader, rules: RuleCache, mask: PacMask, limit: FrameLimit
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
    caller = step(rule, registers, memory, mask, rules.budget)
    other = None if interrupted else rules.objection(here.lookup)
    if other is not None:
        found = step(other[0], registers, memory, mask, rules.budget)
        if _is_nowhere(caller, rules) and not _is_nowhere(found, rules):
            (rule, trust), caller = other, found
    elif not interrupted and isinstance(caller, Stop) and caller.reason is StopReason.NO_RULE:
        # A register that the table counts from was lost, as in ``longjmp``. Code knows others.
        other = rules.rule_in_code(here.lookup)
        found = caller if other is None else step(other[0], registers, memory, mask, rules.budget)
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
        other = step(rule, registers, memory, mask, rules.budget)
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
