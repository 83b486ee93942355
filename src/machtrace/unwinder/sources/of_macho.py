"""The rule sources of a Mach-O image, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.macho.contents import (
    MachOContents,
    is_encrypted,
)
from machtrace.formats.macho.tables.function_starts import parse_data_in_code
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.code_check import CodeAnalysis, CodeCheck
from machtrace.unwinder.functions.bounds import FunctionBounds, code_ranges
from machtrace.unwinder.rule_cache import ImageCode, ImageRules
from machtrace.unwinder.rules import (
    CallAnalysis,
    CallSiteRules,
    Claims,
    Lost,
    RuleSource,
    UnwindRule,
    source_or_none,
)
from machtrace.unwinder.sources.async_entry import CONTEXT_REGISTERS, AsyncEntryRules
from machtrace.unwinder.sources.cfi import (
    CallFrameRules,
    IndexedSection,
    RegisterNumbering,
    scanned_index,
)
from machtrace.unwinder.sources.compact import CompactRules
from machtrace.unwinder.sources.darwin_signal_frame import DarwinSignalRules
from machtrace.unwinder.sources.stubs import StubRules

if TYPE_CHECKING:
    from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules

Ranges = tuple[tuple[int, int], ...]
"""The (start, end) of each, ascending, disjoint."""


def macho_rules(contents: MachOContents, arch: Arch) -> ImageRules:
    """See :func:`machtrace.unwinder.sources.of_image.image_rules`.

    A frame gets its rule from the first source below that is exact at its address. Both tables are
    exact at calls only, so an interrupted frame gets its rule from its instructions. Compact unwind
    precedes call-frame information, as in Apple's libunwind: the linker moves what fits into
    compact encodings, drops those descriptions from ``__eh_frame``, and for all other functions
    writes an encoding that refers to their description (DWARF mode).
    """
    analysis = _analysis(contents, arch)
    call_frames = call_frame_rules(contents)
    compact = source_or_none(lambda: CompactRules.of_macho(contents, arch, call_frames))
    tables = compact or call_frames
    frames = [
        source
        for source in (
            _go_rules(contents, arch),
            None if tables is None else UndefinedReturnAddressRules(tables),
            analysis.interrupted,
            source_or_none(lambda: StubRules.of_macho(contents, arch)),
            compact,
            call_frames,
            analysis.calls,  # for code without tables
        )
        if source is not None
    ]
    signals = source_or_none(lambda: DarwinSignalRules.of_macho(contents, arch, frames))
    sources = frames if signals is None else [signals, *frames]
    return ImageRules(
        tuple(sources),
        contents.image.header_svma,
        analysis.code_check,
        ImageCode(contents, code_ranges(contents)),
    )


def _go_rules(contents: MachOContents, arch: Arch) -> RuleSource | None:
    if not any(section.name == "__gopclntab" for section in contents.image.sections):
        return None
    from machtrace.unwinder.sources.go import GoFrameRules

    return GoFrameRules.of_macho(contents, arch)


class UndefinedReturnAddressRules:
    """The functions without a caller, by another source's tables. A :class:`RuleSource`.

    A thread's or coroutine's first function has a meaningless link register, or meaningless bytes
    where a return address would be, and its instructions do not show it. Its author can state it:
    with ``.cfi_undefined`` for the return address, as libraries do to end stacks there.

    It precedes instruction analysis, and has rules for interrupted frames only: for others the
    tables are queried anyway.
    """

    __slots__ = ("_tables",)

    trust = FrameTrust.CFI
    claims = Claims.EVERYWHERE

    def __init__(self, tables: RuleSource) -> None:
        """``tables``: compact unwind, with the call-frame information that it refers to."""
        self._tables = tables

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        if not interrupted:
            return None
        rule = self._tables.rule_for(lookup, interrupted=True)
        return rule if rule is not None and isinstance(rule.return_address, Lost) else None


def call_frame_rules(contents: MachOContents) -> CallFrameRules | None:
    """Return the rules of ``__TEXT,__eh_frame``; None without that section. Raises nothing.

    Compilers for Apple's systems describe prologues there, but not epilogues.
    """
    section = contents.image.section("__TEXT", "__eh_frame")
    arch = contents.image.header.arch
    if section is None or not section.size or arch is None:
        return None
    address = section.address
    frames = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=section.size,
        arch=arch,
        source=f"{contents.source} __TEXT,__eh_frame",
        address=address,
    )
    numbering = RegisterNumbering(arch, is_darwin_eh_frame=True)
    indexed = IndexedSection(frames, numbering, scanned_index)
    return CallFrameRules(indexed, claims=Claims.AT_CALLS)


class CheckingAnalysis(RuleSource, CallAnalysis, CodeAnalysis, Protocol):
    """Instruction analysis that can also check what tables state of calls."""


def instruction_rules(contents: MachOContents, arch: Arch) -> CheckingAnalysis | None:
    """Return instruction analysis of AArch64 or x86 code; None if it is missing or encrypted."""
    sections = _readable_code(contents)
    if not sections:
        return None
    function_at = FunctionBounds.of_macho(contents).at
    if arch.is_arm64:
        from machtrace.unwinder.arch.arm64.analysis import InstructionRules

        return InstructionRules(contents, function_at, sections)
    from machtrace.unwinder.arch.x86.analysis import MODES, X86InstructionRules

    return X86InstructionRules(contents, function_at, _data_in_code(contents), MODES[arch])


def arm_rules(contents: MachOContents) -> ArmInstructionRules | None:
    """Return instruction analysis of 32-bit arm code; None if it is missing or encrypted."""
    if not _readable_code(contents):
        return None
    from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules
    from machtrace.unwinder.arch.arm32.image_tables import instruction_sets_of_macho

    function_at = FunctionBounds.of_macho(contents).at
    sets = instruction_sets_of_macho(contents)
    return ArmInstructionRules(contents, function_at, sets, _data_in_code(contents))


def _readable_code(contents: MachOContents) -> Ranges:
    sections = code_ranges(contents)
    is_encrypted_in = (is_encrypted(contents, Svma(low), high - low) for low, high in sections)
    return () if any(is_encrypted_in) else sections


def _data_in_code(contents: MachOContents) -> Ranges:
    try:
        return parse_data_in_code(contents)
    except (FormatError, MemoryReadError):
        return ()  # some data may be decoded as code


@dataclass(frozen=True, slots=True)
class _Analysis:
    """The uses of one instruction analysis."""

    interrupted: RuleSource | None = None
    """Rules for interrupted frames."""
    calls: RuleSource | None = None
    """Rules for calls that no table describes."""
    code_check: CodeCheck | None = None


def _analysis(contents: MachOContents, arch: Arch) -> _Analysis:
    if arch.is_arm:
        arm = source_or_none(lambda: arm_rules(contents))
        return _Analysis() if arm is None else _Analysis(arm, CallSiteRules(arm))
    analysis = source_or_none(lambda: instruction_rules(contents, arch))
    if analysis is None:
        return _Analysis()
    interrupted: RuleSource = analysis
    if arch in CONTEXT_REGISTERS:
        interrupted = AsyncEntryRules(analysis, contents, arch, analysis.function_at)
    return _Analysis(interrupted, CallSiteRules(analysis), CodeCheck(analysis, contents, arch))
