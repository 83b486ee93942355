"""Rules from the exception tables of 32-bit arm's ELF images: ``.ARM.exidx``.

They are made for exceptions, and so hold at calls. Most programs of this architecture have no
other tables, unless a debugger's are with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from machtrace.formats.elf.contents import ElfContents
from machtrace.model.address import Svma
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.sources.exidx_instructions import RefusedError, rule_of_instructions
from machtrace.unwinder.rules import Claims, UnwindRule

if TYPE_CHECKING:  # it brings numpy, which is not needed before there is something to look up
    from machtrace.formats.elf.exidx import ExceptionIndex

REMEMBERED = 1 << 12
"""Rules that are kept by their instructions; at the limit all are forgotten."""


class ExceptionTableRules:
    """The exception tables of one image. A :class:`~machtrace.unwinder.rules.RuleSource`."""

    __slots__ = ("_index", "_rules")

    trust = FrameTrust.EXIDX
    claims = Claims.AT_CALLS

    def __init__(self, index: ExceptionIndex) -> None:
        self._index = index
        self._rules: dict[bytes, UnwindRule] = {}

    @classmethod
    def of_elf(cls, contents: ElfContents) -> ExceptionTableRules | None:
        """Of an ELF image; None where it has none, or is not of 32-bit arm.

        Raises:
            MemoryReadError: they were not captured.
        """
        if not contents.image.arch.is_arm:
            return None
        from machtrace.formats.elf.exidx import ExceptionIndex

        index = ExceptionIndex.of_elf(contents)
        return None if index is None else cls(index)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`.

        A function that no exception may pass has no rule here, though something called it.

        Raises:
            ElfError: the entry, or what it points to, is malformed.
            MemoryReadError: what the entry points to was not captured.
        """
        del interrupted
        entry = self._index.find(lookup)
        if entry is None or entry.instructions is None:
            return None
        rule = self._rules.get(entry.instructions)
        if rule is None:
            try:
                rule = rule_of_instructions(entry.instructions, self._index.source)
            except RefusedError:
                return None
            if len(self._rules) >= REMEMBERED:
                self._rules.clear()
            self._rules[entry.instructions] = rule
        return rule
