"""Functions that nobody called, where unwind information says so.

The first function of a thread or of a coroutine has a link register, and bytes where a return
address would be, that mean nothing; its instructions do not tell. Who wrote it may have: with
``.cfi_undefined`` for the return address, as libraries do to end stacks there.
"""

from __future__ import annotations

from machtrace.model.address import Svma
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import Claims, Lost, RuleSource, UnwindRule


class UndefinedReturnAddressRules:
    """What another source says of functions without a caller. A :class:`RuleSource`.

    To be asked before instruction analysis. It answers for interrupted frames only: elsewhere the
    other source is asked anyway.
    """

    __slots__ = ("_tables",)

    trust = FrameTrust.CFI
    claims = Claims.EVERYWHERE

    def __init__(self, tables: RuleSource) -> None:
        """``tables``: compact unwind, with the call-frame information that it leads to."""
        self._tables = tables

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`.

        Raises:
            FormatError: the tables are malformed here.
            MemoryReadError: they were not captured.
        """
        if not interrupted:
            return None
        rule = self._tables.rule_for(lookup, interrupted=True)
        return rule if rule is not None and isinstance(rule.return_address, Lost) else None
