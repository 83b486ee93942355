"""Which rule holds at an address of a process, remembered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.code_check import CodeCheck
from machtrace.unwinder.rules import (
    InRegister,
    RegisterOffset,
    RuleSource,
    UnwindRule,
    frame_pointer_rule,
)
from machtrace.unwinder.step_budget import DrawsOnBudget, StepBudget

CACHE_LIMIT = 1 << 16
"""Rules remembered of one process; at the limit all are forgotten. A rule is about 500 bytes."""

MISSING_LIMIT = 1 << 8
"""Pieces of memory that were not captured, of which it is remembered that they were looked for."""

_NO_HEADER = Svma(0)


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The rule sources of an image, best first; none where its bytes cannot be had."""

    sources: tuple[RuleSource, ...] = ()
    header_svma: Svma = _NO_HEADER
    """The stated address of its header, by the bytes that the sources are from: a target may know
    only where the image was loaded."""
    witness: CodeCheck | None = None
    """Checks what sources say of calls that do not look at the code."""


SourceFinder = Callable[[BinaryImage], ImageRules]
"""What is known of an image's frames."""


@dataclass(slots=True)
class SourceStatistics:
    """How often unwind information was passed over."""

    malformed: int = 0
    """Because it broke its format."""
    missing: int = 0
    """Because it was not captured."""


class RuleCache:
    """Asks the sources of the image that holds an address, in order; the frame pointer is last."""

    __slots__ = (
        "_cache",
        "_fallback",
        "_images",
        "_is_unheard",
        "_is_walking",
        "_link_register",
        "_missing",
        "_objections",
        "_preserved",
        "_rules",
        "_sources_of",
        "_unsettled",
        "statistics",
        "work",
    )

    def __init__(self, images: ImageList, arch: Arch, sources_of: SourceFinder) -> None:
        self._images = images
        self._sources_of = sources_of
        lr = arch.registers.lr
        self._link_register = None if lr is None else InRegister(lr)
        self._preserved = frozenset(arch.registers.callee_saved)
        self._fallback = (frame_pointer_rule(arch), FrameTrust.FRAME_POINTER)
        self._rules: dict[BinaryImage, ImageRules] = {}
        self._cache: dict[tuple[int, bool], tuple[UnwindRule, FrameTrust]] = {}
        self._objections: dict[Avma, tuple[UnwindRule, FrameTrust]] = {}
        self._missing: dict[tuple[int, int], None] = {}
        self.statistics = SourceStatistics()
        self.work = StepBudget()
        """What may still be spent on the present walk."""
        self._is_walking = False
        self._is_unheard = False
        """Whether a witness was not asked, since too little work is left."""
        self._unsettled: tuple[tuple[int, bool], tuple[UnwindRule, FrameTrust]] | None = None
        """The present walk's last answer, if another walk may come to know more."""

    def begin_walk(self) -> None:
        """Allow a walk's work from here on; who asks for rules without it has as much for each."""
        self._is_walking = True
        self._unsettled = None
        self.work.refill()

    def end_walk(self) -> None:
        """From here on whoever asks for a rule has a walk's work for it."""
        self._is_walking = False

    def lacked(self) -> Collection[tuple[int, int]] | None:
        """Address and size of what was looked for and not captured, None of too much.

        Addresses are the target's, but those that only an image's file would have.
        """
        return self._missing if len(self._missing) < MISSING_LIMIT else None

    def find(self, lookup: Avma, *, interrupted: bool) -> tuple[UnwindRule, FrameTrust]:
        """The rule at ``lookup``, and how far it can be trusted. Raises nothing.

        See :meth:`RuleSource.rule_for` for ``interrupted``.
        """
        key = (lookup, interrupted)
        found = self._cache.get(key)
        if found is not None:
            return found
        if self._is_walking and self._unsettled is not None and self._unsettled[0] == key:
            return self._unsettled[1]  # to ask again takes work, and there is less of it
        if len(self._cache) >= CACHE_LIMIT:
            self._cache.clear()
            self._objections.clear()
        if not self._is_walking:
            self.work.refill()
        is_whole, self._is_unheard = self.work.is_whole, False
        found = self._ask(lookup, interrupted=interrupted)
        if is_whole or not (self.work.is_used_up or self._is_unheard):
            self._cache[key] = found
        else:
            self._unsettled = key, found
        return found

    def is_settled(self, lookup: Avma, *, interrupted: bool) -> bool:
        """Whether :meth:`find` said all of the rule at ``lookup`` that any walk comes to know.

        False where it was not asked, or where too little work was left to find out or to check it.
        """
        return (lookup, interrupted) in self._cache

    def objection(self, lookup: Avma) -> tuple[UnwindRule, FrameTrust] | None:
        """What else claims to hold in a call, and finds another caller, or another frame for it.

        Known once the rule at ``lookup`` was asked for; nearly always None.
        """
        return self._objections.get(lookup)

    def rule_in_code(self, lookup: Avma) -> tuple[UnwindRule, FrameTrust] | None:
        """What the code itself says of the call that holds ``lookup``, whatever tables say.

        None where that is not known. Raises nothing.
        """
        found = self.image_rules_at(lookup)
        if found is None or found[0].witness is None:
            return None
        rule = found[0].witness.rule_at(found[1])
        return None if rule is None else (rule, found[0].witness.trust)

    def image_at(self, address: Avma) -> BinaryImage | None:
        """The image that holds ``address``."""
        return self._images.find(address)

    def image_rules_at(self, lookup: Avma) -> tuple[ImageRules, Svma] | None:
        """The rule sources of the image that holds ``lookup``, and what they call it."""
        image = self._images.find(lookup)
        if image is None:
            return None
        rules = self._rules.get(image)
        if rules is None:
            rules = self._rules[image] = self._sources_of(image)
            for source in rules.sources:
                if isinstance(source, DrawsOnBudget):
                    source.draw_on(self.work)
        return rules, Svma(image.offset_of(lookup) + rules.header_svma)

    def _ask(self, lookup: Avma, *, interrupted: bool) -> tuple[UnwindRule, FrameTrust]:
        found = self.image_rules_at(lookup)
        if found is None:
            return self._fallback
        rules, address = found
        held: tuple[UnwindRule, FrameTrust] | None = None
        for source in rules.sources:
            try:
                rule = source.rule_for(address, interrupted=interrupted)
            except FormatError:
                self.statistics.malformed += 1
                continue
            except MemoryReadError as error:
                self.statistics.missing += 1
                if len(self._missing) < MISSING_LIMIT:
                    self._missing[error.address, error.size] = None
                continue
            if rule is None:
                continue
            if interrupted:
                # What is right at calls only waits for what an image's file may say beside memory.
                is_sure = source.claims.hold(interrupted=True)
            else:
                # Behind a call such registers are the called function's: see who knows better.
                is_sure = not self._is_lost_in_calls(rule, source)
            if is_sure:
                if interrupted:
                    return rule, source.trust
                return self._checked(lookup, address, rule, source, rules.witness)
            held = held or (rule, source.trust)
        return held or self._fallback

    def _is_lost_in_calls(self, rule: UnwindRule, source: RuleSource) -> bool:
        """Whether a rule is based on a register that calls do not preserve.

        Compilers leave such rules behind where they probe a stack without a frame pointer.
        Analysis of instructions knows which calls are of code that was cut out, and change less.
        """
        if rule.return_address == self._link_register:
            return True
        if source.trust is FrameTrust.PROLOGUE or not isinstance(rule.cfa, RegisterOffset):
            return False
        return rule.cfa.register not in self._preserved

    def _checked(
        self,
        lookup: Avma,
        address: Svma,
        rule: UnwindRule,
        source: RuleSource,
        witness: CodeCheck | None,
    ) -> tuple[UnwindRule, FrameTrust]:
        """``rule``, or what the code says instead.

        The code is asked whether it bears out ``rule``, where it is not from the code itself. If
        it does so at its start and moves on before the call, it is the code that is believed.
        """
        told = rule, source.trust
        if witness is None or source.trust is witness.trust or rule.is_signal_frame:
            return told
        if 2 * self.work.left < self.work.limit:
            self._is_unheard = True  # what is left is for frames that have no table
            return told
        other = witness.objection(address, rule)
        if other is None:
            return told
        if other.is_later:
            return other.rule, witness.trust
        self._objections[lookup] = (other.rule, witness.trust)
        return told
