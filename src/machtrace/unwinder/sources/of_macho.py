"""Which ways of unwinding a Mach-O image offers, in the order that they are asked.

Functions that nobody called, where unwind information says so.

The first function of a thread or of a coroutine has a link register, and bytes where a return
address would be, that mean nothing; its instructions do not tell. Who wrote it may have: with
``.cfi_undefined`` for the return address, as libraries do to end stacks there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from machtrace.formats.macho.contents import MachOContents
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.code_check import CallAnalysis, CallSiteRules, CodeAnalysis, CodeCheck
from machtrace.unwinder.rule_cache import ImageRules
from machtrace.unwinder.rules import Claims, Lost, RuleSource, UnwindRule, source_or_none
from machtrace.unwinder.sources.async_entry import CONTEXT_REGISTERS, AsyncEntryRules
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.darwin_signal_frame import DarwinSignalRules
from machtrace.unwinder.sources.stubs import StubRules


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


def macho_rules(contents: MachOContents, arch: Arch) -> ImageRules:
    """See :func:`machtrace.unwinder.sources.of_image.image_rules`.

    What signal handlers return to comes before all else. Instruction analysis is next: it answers
    only for interrupted frames, where compact unwind is not meant to be right. Compact unwind
    hands over to call-frame information where it says so.
    """
    analysis = _analysis(contents, arch)
    call_frames = CallFrameRules.of_macho(contents)
    compact = source_or_none(lambda: CompactRules.of_macho(contents, arch, call_frames))
    tables = compact or call_frames
    frames = [
        source
        for source in (
            None if tables is None else UndefinedReturnAddressRules(tables),
            analysis.interrupted,
            source_or_none(lambda: StubRules.of_macho(contents, arch)),
            compact,
            call_frames,
            analysis.calls,
        )
        if source is not None
    ]
    signals = source_or_none(lambda: DarwinSignalRules.of_macho(contents, arch, frames))
    sources = frames if signals is None else [signals, *frames]
    return ImageRules(tuple(sources), contents.image.header_svma, analysis.witness)


@dataclass(frozen=True, slots=True)
class _Analysis:
    """What instructions say."""

    interrupted: RuleSource | None = None
    """Of interrupted frames."""
    calls: RuleSource | None = None
    """Of calls, where nothing else knows."""
    witness: CodeCheck | None = None


class _CheckingSource(RuleSource, CallAnalysis, CodeAnalysis, Protocol):
    """Instruction analysis that can also check what tables say of calls."""


def _analysis(contents: MachOContents, arch: Arch) -> _Analysis:
    if arch.is_arm64:
        from machtrace.unwinder.arch.arm64.analysis import InstructionRules

        arm64 = source_or_none(lambda: InstructionRules.of_macho(contents, arch))
        return _Analysis() if arm64 is None else _checking(arm64, contents, arch)
    if arch.is_arm:
        from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules

        arm = source_or_none(lambda: ArmInstructionRules.of_macho(contents, arch))
        return _Analysis() if arm is None else _Analysis(arm, CallSiteRules(arm))
    from machtrace.unwinder.arch.x86.analysis import X86InstructionRules

    x86 = source_or_none(lambda: X86InstructionRules.of_macho(contents, arch))
    return _Analysis() if x86 is None else _checking(x86, contents, arch)


def _checking(found: _CheckingSource, contents: MachOContents, arch: Arch) -> _Analysis:
    interrupted: RuleSource = found
    if arch in CONTEXT_REGISTERS:
        interrupted = AsyncEntryRules(found, contents, arch, found.function_at)
    return _Analysis(interrupted, CallSiteRules(found), CodeCheck(found, contents, arch))
