"""A cache of the unwind rules of one process, by address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from machtrace.errors import FormatError, MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    HasFunctions,
    InRegister,
    KnowsScratchRegisters,
    RegisterOffset,
    RuleSource,
    TableCheck,
    UnwindRule,
    frame_pointer_rule,
)
from machtrace.unwinder.step_budget import DrawsOnBudgets, WalkBudgets

CACHE_LIMIT = 1 << 16
"""Rules cached per process; a full cache is cleared. A rule is about 500 bytes."""

MISSING_LIMIT = 1 << 8
"""Unreadable memory ranges recorded per process."""

_NO_HEADER = Svma(0)

TrustedRule: TypeAlias = tuple[UnwindRule, FrameTrust]
"""A rule, and the trust in addresses that it recovers."""


class ImageCode:
    """The code of an image."""

    __slots__ = ("_contents", "_ends", "_starts")

    def __init__(self, contents: ImageContents, ranges: Sequence[tuple[int, int]]) -> None:
        """``ranges``: the (start, end) of each section with code, in Svmas; ascending, disjoint."""
        self._contents = [contents]
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]

    def __contains__(self, address: Svma) -> bool:
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ends[index]

    def read_padded(self, address: Svma, size: int) -> bytes:
        """Return the code there, with zeros where it is not code or unavailable."""
        code, end = bytearray(size), address + size
        for low, high in zip(self._starts, self._ends, strict=True):
            start, upto = max(low, address), min(high, end)
            if start < upto:
                piece = self.read(Svma(start), upto - start)
                if piece is not None:
                    code[start - address : upto - address] = piece
        return bytes(code)

    def read(self, address: Svma, size: int) -> bytes | None:
        """Return the bytes there; None if they are unavailable."""
        for contents in self._contents:
            try:
                return bytes(contents.read_svma(address, size))
            except MemoryReadError:
                continue
        return None

    def add(self, other: ImageCode) -> None:
        """Read from another copy what this one lacks."""
        self._contents += other._contents


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The rule sources of an image, best first; none if its bytes are unavailable."""

    sources: tuple[RuleSource, ...] = ()
    header_svma: Svma = _NO_HEADER
    """The stated address of its header, from the bytes that the sources read: a target may know
    only the load address."""
    code_check: TableCheck | None = None
    """The check of rules for calls that are not from the code itself."""
    code: ImageCode | None = None
    """The image's code, which shows what calls where; None if unavailable."""


SourceFinder = Callable[[BinaryImage], ImageRules]
"""Returns the rule sources of an image."""


@dataclass(slots=True)
class SourceStatistics:
    """How often unwind information was skipped."""

    malformed: int = 0
    """Because it violates its format."""
    missing: int = 0
    """Because it was not captured."""


class RuleCache:
    """Queries an image's rule sources in order, and caches the answers.

    The frame-pointer convention is the last resort.
    """

    __slots__ = (
        "_cache",
        "_fallback",
        "_guesses",
        "_images",
        "_is_walking",
        "_link_register",
        "_missing",
        "_objections",
        "_preserved",
        "_rules",
        "_skipped_code_check",
        "_sources_of",
        "_uncacheable",
        "budgets",
        "called_from",
        "has_frame_pointers",
        "leaves_to",
        "scans",
        "statistics",
    )

    def __init__(
        self, images: ImageList, arch: Arch, sources_of: SourceFinder, *, scans: bool = False
    ) -> None:
        """Start with an empty cache; for ``scans`` see the attribute."""
        self._images = images
        self._sources_of = sources_of
        lr = arch.registers.lr
        self._link_register = None if lr is None else InRegister(lr)
        self._preserved = frozenset(arch.registers.callee_saved)
        self._fallback = (frame_pointer_rule(arch), FrameTrust.FRAME_POINTER)
        self._rules: dict[BinaryImage, ImageRules] = {}
        self._cache: dict[tuple[int, bool], TrustedRule] = {}
        self._objections: dict[Avma, TrustedRule] = {}
        self._missing: dict[tuple[int, int], None] = {}
        self._guesses: set[tuple[int, bool]] = set()
        is_darwin = any(image.format is ImageFormat.MACHO for image in images)
        self.has_frame_pointers = is_darwin and arch.has_link_register
        """Whether the ABI reserves the frame pointer: Apple's, for arm and arm64, requires that it
        addresses a frame record at all times, or is zero in the outermost frame."""
        self.called_from: dict[int, tuple[int, ...]] = {}
        """See :mod:`machtrace.unwinder.last_resort`, as for the next."""
        self.leaves_to: dict[int, tuple[int | None, ...]] = {}
        self.scans = scans
        """Whether stacks are scanned wherever else they would end before their root."""
        self.statistics = SourceStatistics()
        self.budgets = WalkBudgets()
        """The step budgets of the present walk."""
        self._is_walking = False
        self._skipped_code_check = False
        """Whether the code check was skipped because too few steps were left."""
        self._uncacheable: tuple[tuple[int, bool], TrustedRule] | None = None
        """The present walk's last answer, if a walk with more steps left may find a better one."""

    def begin_walk(self) -> None:
        """Start a walk with full step budgets; outside of walks every query has its own."""
        self._is_walking = True
        self._uncacheable = None
        self.budgets.refill()

    def end_walk(self) -> None:
        """End the walk; queries have full step budgets each from now on."""
        self._is_walking = False

    def missing_ranges(self) -> Collection[tuple[int, int]] | None:
        """Return address and size of memory that was needed and not captured; None if too many.

        Addresses are the target's, except those that only an image's file would have.
        """
        return self._missing if len(self._missing) < MISSING_LIMIT else None

    def find(self, lookup: Avma, *, interrupted: bool) -> TrustedRule:
        """Return the rule at ``lookup``, and the trust in it. Raises nothing.

        See :meth:`RuleSource.rule_for` for ``interrupted``.
        """
        key = (lookup, interrupted)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        if self._is_walking and self._uncacheable is not None and self._uncacheable[0] == key:
            return self._uncacheable[1]  # a second query would have even fewer steps
        if max(len(self._cache), len(self._guesses)) >= CACHE_LIMIT:
            self._cache.clear()
            self._objections.clear()
            self._guesses.clear()
        if not self._is_walking:
            self.budgets.refill()
        is_whole, self._skipped_code_check = self.budgets.is_whole, False
        answer = self._query(lookup, interrupted=interrupted)
        # An answer that a full budget would not improve is final, whatever it left undone.
        if is_whole or not (self.budgets.is_used_up or self._skipped_code_check):
            self._cache[key] = answer
        else:
            self._uncacheable = key, answer
        return answer

    def is_cached(self, lookup: Avma, *, interrupted: bool) -> bool:
        """Return whether :meth:`find` has the final rule at ``lookup``.

        False before the first query, and where too few steps were left to find or check the rule.
        """
        return (lookup, interrupted) in self._cache

    def objection(self, lookup: Avma) -> TrustedRule | None:
        """Return the code's rule for a call if it contradicts the one that :meth:`find` returned.

        Known once :meth:`find` was called; nearly always None.
        """
        return self._objections.get(lookup)

    def rule_in_code(self, lookup: Avma) -> TrustedRule | None:
        """Return the code's own rule for the call that holds ``lookup``, whatever tables state.

        None if unknown. Raises nothing.
        """
        located = self.image_rules_at(lookup)
        if located is None or located[0].code_check is None:
            return None
        code_check = located[0].code_check
        rule = code_check.rule_at(located[1])
        return None if rule is None else (rule, code_check.trust)

    def is_guess(self, lookup: Avma, *, interrupted: bool) -> bool:
        """Return whether the rule that :meth:`find` returned is from no source that claims it.

        Known once :meth:`find` was called.
        """
        return (lookup, interrupted) in self._guesses

    def keeps_frame_pointers(self, lookup: Avma) -> bool:
        """Return whether the ABI reserves the frame pointer, and no code there may contradict it.

        Code that is available, and has neither tables nor an analysis, may have made no record.
        """
        if not self.has_frame_pointers:
            return False
        located = self.image_rules_at(lookup)
        return located is None or located[0].code is None

    def is_code(self, address: Avma) -> bool:
        """Return whether ``address`` is in an image's code, or in an image with unknown code."""
        located = self.image_rules_at(address)
        return located is not None and (located[0].code is None or located[1] in located[0].code)

    def read_code(self, address: Avma, size: int) -> bytes | None:
        """Return an image's bytes, from its file if memory lacks them; None if unavailable."""
        located = self.image_rules_at(address)
        if located is None or located[0].code is None:
            return None
        return located[0].code.read(located[1], size)

    def read_padded_code(self, address: Avma, size: int, image: Avma) -> bytes:
        """Return the code of the image at ``image``, with zeros where it is unavailable."""
        located = self.image_rules_at(image)
        if located is None or located[0].code is None:
            return b""
        return located[0].code.read_padded(Svma(located[1] + address - image), size)

    def function_at(self, address: Avma) -> tuple[Avma, Avma] | None:
        """Return the (start, end) of the function that holds ``address``; None if unknown."""
        located = self.image_rules_at(address)
        if located is None:
            return None
        for source in located[0].sources:
            if isinstance(source, HasFunctions):
                bounds = source.function_at(located[1])
                if bounds is not None:
                    slide = address - located[1]
                    return Avma(bounds[0] + slide), Avma(bounds[1] + slide)
        return None

    def others(self, lookup: Avma, than: UnwindRule, *, interrupted: bool) -> Iterator[TrustedRule]:
        """Yield the rules at ``lookup`` besides ``than``, best first, for when that cannot be used.

        The frame-pointer convention is not among them. Raises nothing.
        """
        located = self.image_rules_at(lookup)
        if located is None:
            return
        rules, address = located
        for source in rules.sources:
            rule = self._rule_of(source, address, interrupted=interrupted)
            if rule is not None and rule != than:
                yield rule, source.trust

    def unchanged_at(self, lookup: Avma, *, interrupted: bool) -> tuple[int, ...]:
        """Return the caller-saved registers that a frame's function has not changed.

        See :meth:`KnowsScratchRegisters.unchanged_at`. Raises nothing.
        """
        located = self.image_rules_at(lookup)
        for source in () if located is None else located[0].sources:
            if isinstance(source, KnowsScratchRegisters):
                try:
                    registers = source.unchanged_at(located[1], interrupted=interrupted)  # type: ignore[index]
                except MemoryReadError:
                    continue
                if registers:
                    return registers
        return ()

    def image_at(self, address: Avma) -> BinaryImage | None:
        """Return the image that holds ``address``."""
        return self._images.find(address)

    def image_rules_at(self, lookup: Avma) -> tuple[ImageRules, Svma] | None:
        """Return the rule sources of the image that holds ``lookup``, and its address in it."""
        image = self._images.find(lookup)
        if image is None:
            return None
        rules = self._rules.get(image)
        if rules is None:
            rules = self._rules[image] = self._sources_of(image)
            for source in rules.sources:
                if isinstance(source, DrawsOnBudgets):
                    source.draw_on(self.budgets)
        return rules, Svma(image.offset_of(lookup) + rules.header_svma)

    def _query(self, lookup: Avma, *, interrupted: bool) -> TrustedRule:
        located = self.image_rules_at(lookup)
        if located is None:
            self._guesses.add((lookup, interrupted))
            return self._fallback
        rules, address = located
        second_best: TrustedRule | None = None
        for source in rules.sources:
            if interrupted and second_best and not source.claims.hold(interrupted=True):
                continue
            rule = self._rule_of(source, address, interrupted=interrupted)
            if rule is None:
                continue
            if interrupted:
                # A rule that is exact at calls only must wait: an image's file may have a better
                # one than its memory.
                is_exact = source.claims.hold(interrupted=True)
            else:
                is_exact = not self._is_lost_in_calls(rule, source)
            if is_exact:
                if interrupted:
                    return rule, source.trust
                return self._checked(lookup, address, rule, source, rules.code_check)
            second_best = second_best or (rule, source.trust)
        self._guesses.add((lookup, interrupted))
        return second_best or self._fallback

    def _rule_of(
        self, source: RuleSource, address: Svma, *, interrupted: bool
    ) -> UnwindRule | None:
        """Return a source's rule; None also where it is malformed or was not captured."""
        try:
            return source.rule_for(address, interrupted=interrupted)
        except FormatError:
            self.statistics.malformed += 1
        except MemoryReadError as error:
            self.statistics.missing += 1
            if len(self._missing) < MISSING_LIMIT:
                self._missing[error.address, error.size] = None
        return None

    def _is_lost_in_calls(self, rule: UnwindRule, source: RuleSource) -> bool:
        """Return whether a rule depends on a register that calls do not preserve.

        Compilers emit such rules where they probe a stack without a frame pointer. Instruction
        analysis is exempt: it recognises calls of outlined code, which preserve more.
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
        code_check: TableCheck | None,
    ) -> TrustedRule:
        """Return a table's ``rule``, or the code's where the code moved the frame later.

        Other contradictions are recorded as objections.
        """
        stated = rule, source.trust
        if code_check is None or source.trust is code_check.trust or rule.is_signal_frame:
            return stated
        if 2 * self.budgets.code.left < self.budgets.code.limit:
            self._skipped_code_check = True  # the rest is for frames without a table
            return stated
        objection = code_check.objection(address, rule)
        if objection is None:
            return stated
        if objection.is_later:
            return objection.rule, code_check.trust
        self._objections[lookup] = (objection.rule, code_check.trust)
        return stated
