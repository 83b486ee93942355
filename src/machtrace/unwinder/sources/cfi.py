"""Rules from DWARF call-frame information: ``.eh_frame``, ``.debug_frame``, ``__eh_frame``."""

from __future__ import annotations

from machtrace.formats.dwarf.cfi import CallFrames
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.macho.contents import MachOContents
from machtrace.model.address import Svma
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.sources.cfi_sections import IndexedSection, section_of_macho, sections_of_elf
from machtrace.unwinder.sources.cfi_translation import rule_of
from machtrace.unwinder.rules import Claims, UnwindRule
from machtrace.unwinder.step_budget import Allowance, StepBudget


class CallFrameRules:
    """The call-frame information of one image. A :class:`~machtrace.unwinder.rules.RuleSource`.

    Hardly anything is read until the first rule is asked for.
    """

    __slots__ = ("_allowance", "_tables", "claims")

    trust = FrameTrust.CFI

    def __init__(self, *sections: IndexedSection, claims: Claims = Claims.EVERYWHERE) -> None:
        self._allowance = Allowance()
        self._tables = tuple(_Table(section, self._allowance) for section in sections)
        self.claims = claims

    @classmethod
    def of_elf(cls, contents: ElfContents) -> CallFrameRules | None:
        """From ``.eh_frame``, then ``.debug_frame``; None where there is neither.

        An object file has none: its addresses are not known before it is linked. Raises nothing.
        """
        sections = sections_of_elf(contents)
        return cls(*sections) if sections else None

    @classmethod
    def of_macho(cls, contents: MachOContents) -> CallFrameRules | None:
        """From ``__TEXT,__eh_frame``; None where there is none. Raises nothing.

        Compilers for Apple's systems describe prologues there, and no epilogues.
        """
        section = section_of_macho(contents)
        return None if section is None else cls(section, claims=Claims.AT_CALLS)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`.

        Rows hold at every instruction, so ``interrupted`` changes nothing.

        Raises:
            FormatError: the information is malformed here.
            MemoryReadError: it was not captured.
        """
        del interrupted
        self._allowance.begin_question()
        for table in self._tables:
            rule = table.rule_for(lookup)
            if rule is not None:
                return rule
        return None

    def origin(self, lookup: Svma) -> str:
        """Which FDE the rule at ``lookup`` is from; empty where there is none.

        Raises:
            FormatError, MemoryReadError: as :meth:`rule_for` does.
        """
        return next(filter(None, (table.origin(lookup) for table in self._tables)), "")

    def rule_at_fde_offset(self, offset: int, lookup: Svma) -> UnwindRule | None:
        """The rule at ``lookup`` by the FDE at ``offset`` of ``__eh_frame``.

        A compact encoding in DWARF mode has the low 24 bits of that offset. None where the FDE
        there does not describe ``lookup``.

        Raises:
            FormatError: there is no FDE, or it is malformed.
            MemoryReadError: it was not captured.
        """
        self._allowance.begin_question()
        return self._tables[0].rule_at(offset, lookup)

    def draw_on(self, work: StepBudget) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudget`."""
        self._allowance.draw_on(work)


class _Table:
    """One section, with what was read of it."""

    __slots__ = ("_frames", "_indexed")

    def __init__(self, indexed: IndexedSection, allowance: Allowance) -> None:
        self._indexed = indexed
        self._frames = CallFrames(indexed.section, allowance.afford)

    def rule_for(self, lookup: Svma) -> UnwindRule | None:
        offset = self._indexed.index.find(lookup)
        return None if offset is None else self.rule_at(offset, lookup)

    def origin(self, lookup: Svma) -> str:
        offset = self._indexed.index.find(lookup)
        function = None if offset is None else self._frames.function(offset)
        if function is None or lookup not in function:
            return ""
        section = self._indexed.section.source.rpartition(" ")[2]
        return f"FDE at {function.offset:#x} of {section}, {function.start:#x} to {function.end:#x}"

    def rule_at(self, offset: int, lookup: Svma) -> UnwindRule | None:
        function = self._frames.function(offset)
        if lookup not in function:
            return None
        return rule_of(self._frames.row(function, lookup), self._indexed.numbering)
