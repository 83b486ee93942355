"""Explanations of frames: the answers of every method, besides the one that a walk followed.

No walk uses this: the answers are computed again, for one stack, when a user requests them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import PacMask, Svma
from machtrace.model.capture import (
    BrokenInformation,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
)
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop
from machtrace.model.symbol import Frame
from machtrace.unwinder.code.code_check import origin_in_code
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.rules import (
    HasFunctions,
    RuleSource,
    TableCheck,
    UnwindRule,
    describe,
    frame_pointer_rule,
    link_register_rule,
)
from machtrace.unwinder.sources.async_entry import AsyncEntryRules
from machtrace.unwinder.step import locations, step
from machtrace.unwinder.walker import find_caller

Namer = Callable[[FrameAddress], Frame]
"""Returns an address with its image and its name."""


@runtime_checkable
class HasOrigin(Protocol):
    """A rule source that can describe the part of the image its rules are from."""

    def origin(self, lookup: Svma, /) -> str:
        """Describe the source of the rule at ``lookup``; empty without a rule.

        Raises:
            FormatError, MemoryReadError: as ``rule_for`` does.
        """
        ...


class Explainer:
    """Explains frames of one process's stacks."""

    __slots__ = ("_mask", "_name", "_rules")

    def __init__(self, rules: RuleCache, mask: PacMask, name: Namer) -> None:
        self._rules = rules
        self._mask = mask
        self._name = name

    def explain(
        self, here: FrameAddress, registers: RegisterSet, memory: MemoryReader
    ) -> FrameExplanation:
        """Explain how the walk leaves ``here``, a frame with these ``registers``.

        Raises nothing.
        """
        self._rules.begin_walk()
        try:
            return self._explained(_Frame(here, registers, memory))
        finally:
            self._rules.end_walk()

    def _explained(self, frame: _Frame) -> FrameExplanation:
        here, registers, memory = frame.here, frame.registers, frame.memory
        step_up = find_caller(here, registers, memory, self._rules, self._mask)
        interrupted = frame.is_interrupted
        rule, trust = self._rules.find(here.lookup, interrupted=interrupted)
        if not isinstance(step_up, Stop):
            rule, trust = step_up[0], step_up[1]
        text = describe(rule, _names(registers))
        chosen: MethodAnswer | None = None
        others: list[MethodAnswer] = []
        for answer in self._answers(frame):
            is_it = isinstance(answer.outcome, FollowedRule) and answer.outcome.rule == text
            if chosen is None and is_it and answer.method is trust:
                chosen = answer
            elif answer not in others and answer != chosen:
                others.append(answer)
        if chosen is None:
            outcome = self._followed(rule, trust, frame)
            chosen = MethodAnswer(method=trust, claims=True, origin="", outcome=outcome)
        if isinstance(step_up, Stop) and isinstance(chosen.outcome, FollowedRule):
            chosen = replace(chosen, outcome=replace(chosen.outcome, caller=step_up))
        known = [
            answer
            for at, answer in enumerate(others)
            if not _is_redundant(answer, others[:at], (chosen, *others))
        ]
        return FrameExplanation(
            frame=here,
            chosen=chosen,
            reason=_reason(frame, chosen, known),
            others=tuple(known),
        )

    def _answers(self, frame: _Frame) -> Iterator[MethodAnswer]:
        image = self._rules.image_rules_at(frame.here.lookup)
        if image is not None:
            rules, lookup = image
            for source in rules.sources:
                yield self._answer_of(source, lookup, frame)
            if rules.code_check is not None and not frame.is_interrupted:
                yield self._answer_of_code(rules.code_check, lookup, frame)
        arch = frame.registers.arch
        yield self._convention(FrameTrust.FRAME_POINTER, frame_pointer_rule(arch), frame)
        if arch.has_link_register and frame.is_interrupted:
            yield self._convention(FrameTrust.LINK_REGISTER, link_register_rule(arch), frame)

    def _answer_of(self, source: RuleSource, lookup: Svma, frame: _Frame) -> MethodAnswer:
        outcome: FollowedRule | BrokenInformation | None
        origin = ""
        try:
            origin = _origin(source, lookup)
            rule = source.rule_for(lookup, interrupted=frame.is_interrupted)
        except (FormatError, MemoryReadError) as error:
            outcome = BrokenInformation(str(error))
        else:
            outcome = None if rule is None else self._followed(rule, source.trust, frame)
        return MethodAnswer(
            method=source.trust,
            claims=source.claims.hold(interrupted=frame.is_interrupted),
            origin="" if outcome is None else origin,
            outcome=outcome,
        )

    def _answer_of_code(self, code_check: TableCheck, lookup: Svma, frame: _Frame) -> MethodAnswer:
        rule = code_check.rule_at(lookup)
        return MethodAnswer(
            method=code_check.trust,
            claims=True,
            origin="" if rule is None else code_check.origin(lookup),
            outcome=None if rule is None else self._followed(rule, code_check.trust, frame),
        )

    def _convention(self, method: FrameTrust, rule: UnwindRule, frame: _Frame) -> MethodAnswer:
        outcome = self._followed(rule, method, frame)
        return MethodAnswer(method=method, claims=False, origin="", outcome=outcome)

    def _followed(self, rule: UnwindRule, trust: FrameTrust, frame: _Frame) -> FollowedRule:
        registers, memory = frame.registers, frame.memory
        cfa, at = locations(rule, registers, memory, self._mask)
        caller = step(rule, registers, memory, self._mask)
        return FollowedRule(
            rule=describe(rule, _names(registers)),
            cfa=cfa,
            return_address_at=at,
            caller=caller
            if isinstance(caller, Stop)
            else self._name(FrameAddress(caller.pc, trust, rule.caller_kind)),
        )


def _origin(source: RuleSource, lookup: Svma) -> str:
    analysis = source.inner if isinstance(source, AsyncEntryRules) else source
    if isinstance(analysis, HasOrigin):
        return analysis.origin(lookup)
    return origin_in_code(analysis, lookup) if isinstance(analysis, HasFunctions) else ""


class _Frame:
    """A frame of a stack, as a walk reached it."""

    __slots__ = ("here", "memory", "registers")

    def __init__(self, here: FrameAddress, registers: RegisterSet, memory: MemoryReader) -> None:
        self.here = here
        self.registers = registers
        self.memory = memory

    @property
    def is_interrupted(self) -> bool:
        return self.here.kind is AddressKind.PROGRAM_COUNTER


def _names(registers: RegisterSet) -> dict[int, str]:
    return dict(enumerate(registers.arch.registers.names))


def _is_redundant(
    answer: MethodAnswer, earlier: Sequence[MethodAnswer], all_answers: Sequence[MethodAnswer]
) -> bool:
    """Return whether an answer is expectedly empty, or repeats an earlier one.

    Few frames are of signal handlers; stubs, or two files of one image, share a method. If a table
    is broken, so is every source that reads it.
    """
    if isinstance(answer.outcome, BrokenInformation):
        return any(
            (other.method, other.outcome) == (answer.method, answer.outcome) for other in earlier
        )
    if answer.outcome is not None:
        return False
    return (
        answer.method is FrameTrust.SIGNAL_FRAME
        or any(other.method is answer.method for other in earlier)
        or any(other.method is answer.method and other.outcome for other in all_answers)
    )


def _reason(frame: _Frame, chosen: MethodAnswer, others: list[MethodAnswer]) -> str:
    """Return why ``chosen`` was followed."""
    known_elsewhere = any(answer.outcome is not None and answer.claims for answer in others)
    if chosen.method is FrameTrust.FRAME_POINTER:
        reason = "no unwind information here"
        if frame.is_interrupted:
            reason += ", and interrupted code may not have made its frame record"
    elif chosen.method is FrameTrust.LINK_REGISTER:
        reason = "no unwind information here, and no call has set the link register"
    elif chosen.method is FrameTrust.SCAN:
        reason = "nothing describes the code here; the word follows a call that may lead here"
    elif frame.is_interrupted and chosen.method is FrameTrust.PROLOGUE:
        reason = "interrupted: the instructions run so far determine the frame"
        if not chosen.origin:
            reason = "called, and nothing has run: the return address is where the call stored it"
    elif not chosen.claims:
        reason = "no method is exact here; this one is exact at calls"
    elif known_elsewhere:
        reason = "the first in the order of sources that is exact here"
    else:
        reason = "the only method that is exact here"
    return reason
