"""The walk: from one frame to its caller until nobody called."""

from __future__ import annotations

from dataclasses import dataclass

from machtrace.model.address import Avma, PacMask
from machtrace.model.image import ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import (
    AddressKind,
    FrameAddress,
    FrameTrust,
    Stop,
    StopReason,
    Walk,
)
from machtrace.unwinder.process_rules import ProcessRules
from machtrace.unwinder.rules import AtCfa, UnwindRule
from machtrace.unwinder.step import step
from machtrace.unwinder.stray_call import entry_rule, is_stray_call
from machtrace.unwinder.swift_async import continuations, is_async_frame_pointer

DEFAULT_DEPTH = 512
"""Frames of one stack that are kept, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class _Physical:
    """The machine's frames, and the first record among them that an async function wrote."""

    addresses: tuple[FrameAddress, ...]
    stop: Stop
    async_record: Avma | None
    async_depth: int
    """How many of :attr:`addresses` are inside the async function, or called by it."""


def walk(
    registers: RegisterSet,
    memory: MemoryReader,
    rules: ProcessRules,
    mask: PacMask,
    limit: int = DEFAULT_DEPTH,
) -> Walk:
    """Walk one stack, innermost frame first.

    ``limit`` is how many addresses are kept at most. Whatever ends the walk, what was found
    before it is in the result; nothing that memory holds can make this raise or go on for ever.
    """
    physical = _walk_frames(registers, memory, rules, mask, limit)
    if physical.async_record is None:
        return Walk(addresses=physical.addresses, stop=physical.stop)
    depth = physical.async_depth
    resumes, stop = continuations(physical.async_record, memory, mask, limit - depth)
    return Walk(
        addresses=physical.addresses[:depth] + resumes,
        stop=stop,
        physical_remainder=physical.addresses[depth:],
    )


def _walk_frames(
    registers: RegisterSet, memory: MemoryReader, rules: ProcessRules, mask: PacMask, limit: int
) -> _Physical:
    found = [FrameAddress(registers.pc, FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)]
    seen: set[tuple[int, int | None]] = {(registers.pc, registers.sp)}
    record: Avma | None = None
    depth = 0
    while True:
        here = found[-1]
        interrupted = here.kind is AddressKind.PROGRAM_COUNTER
        rule, trust = rules.find(here.lookup, interrupted=interrupted)
        is_guess = interrupted and trust is FrameTrust.FRAME_POINTER
        if is_guess and is_stray_call(registers, memory, mask):
            rule, trust, is_guess = entry_rule(registers.arch), FrameTrust.PROLOGUE, False
        caller = step(rule, registers, memory, mask)
        if isinstance(caller, Stop):
            stop = _no_root(caller, here, rules) if is_guess else caller
            break
        if trust is FrameTrust.FRAME_POINTER and (caller.sp or 0) <= (registers.sp or 0):
            # Only the chain itself says where the next frame is: it must rise.
            stop = Stop(StopReason.NO_PROGRESS, registers.pc)
            break
        if (caller.pc, caller.sp) in seen:
            stop = Stop(StopReason.NO_PROGRESS, caller.pc)
            break
        if len(found) >= limit:
            stop = Stop(StopReason.DEPTH_LIMIT, caller.pc)
            break
        if record is None:
            record, depth = _async_record(rule, caller), len(found)
        seen.add((caller.pc, caller.sp))
        found.append(FrameAddress(caller.pc, trust, rule.caller_kind))
        registers = caller
    return _Physical(tuple(found), stop, record, depth)


def _no_root(stop: Stop, here: FrameAddress, rules: ProcessRules) -> Stop:
    """What a guess by an interrupted function's frame pointer may say of its end.

    Only Apple's ABIs promise that the register is a frame pointer, or zero for the root.
    """
    image = rules.image_at(here.lookup)
    if stop.is_complete and (image is None or image.format is not ImageFormat.MACHO):
        return Stop(StopReason.NO_RULE, here.address)
    return stop


def _async_record(rule: UnwindRule, caller: RegisterSet) -> Avma | None:
    """Where the frame that ``rule`` left keeps its record, if it marked it as async."""
    saved = caller.fp
    if saved is None or not is_async_frame_pointer(saved) or caller.sp is None:
        return None
    numbers = caller.arch.registers
    for number, recovery in rule.registers:
        if number == numbers.fp and isinstance(recovery, AtCfa):
            return Avma(caller.sp + recovery.offset)
    return None
