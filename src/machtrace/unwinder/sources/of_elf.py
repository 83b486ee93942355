"""The rule sources of an ELF image, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from struct import unpack
from typing import Protocol

from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import ElfType
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rule_cache import ImageCode, ImageRules
from machtrace.unwinder.rules import (
    CallAnalysis,
    CallSiteRules,
    Claims,
    Lost,
    RegisterOffset,
    RuleSource,
    UnwindRule,
    source_or_none,
)
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.linux_signal_frame import LinuxSignalRules
from machtrace.unwinder.sources.plt import LinkageStubRules
from machtrace.unwinder.sources.start_routines import StartRoutineRules
from machtrace.unwinder.step_budget import DrawsOnBudgets, WalkBudgets


def elf_rules(contents: ElfContents, arch: Arch) -> ImageRules:
    """See :func:`machtrace.unwinder.sources.of_image.image_rules`.

    Signal frames come first, then Go's own table, which shows where stacks are switched. Call-frame
    information is exact at every instruction, so instructions are analysed only where it is
    missing; but no table of 32-bit arm is exact in prologues, LLVM's call-frame information
    included.
    """
    image = contents.image
    call_frames = CallFrameRules.of_elf(contents)
    is_analysed = image.type is not ElfType.RELOCATABLE and image.layout.little_endian
    sources: list[RuleSource | None] = [
        LinuxSignalRules(contents, arch),
        _go_rules(contents, arch),
        call_frames,
        LinkageStubRules.of_elf(contents),
        StartRoutineRules(contents, arch),
    ]
    if arch.is_arm:
        sources = _arm_sources(contents, sources, is_analysed=is_analysed)
    elif is_analysed:
        analysis = LazyAnalysis(contents, arch)
        if call_frames is not None and arch in _EPILOGUES:
            corrections = CallFrameCorrections(contents, arch, call_frames, analysis)
            sources.insert(sources.index(call_frames), corrections)
        sources += [analysis, CallSiteRules(analysis)]
    return ImageRules(
        tuple(source for source in sources if source is not None),
        image.header_svma,
        code=ImageCode(contents, image.code_ranges),
    )


def _go_rules(contents: ElfContents, arch: Arch) -> RuleSource | None:
    if not any(section.name.endswith(".gopclntab") for section in contents.image.sections):
        return None
    from machtrace.unwinder.sources.go import GoFrameRules

    return GoFrameRules.of_elf(contents, arch)


def _arm_sources(
    contents: ElfContents, sources: list[RuleSource | None], *, is_analysed: bool
) -> list[RuleSource | None]:
    """Return ``sources``, which begin with the one for signal frames, and those of 32-bit arm."""
    from machtrace.unwinder.sources.exidx import ExceptionTableRules

    exceptions = source_or_none(lambda: ExceptionTableRules.of_elf(contents))
    if not is_analysed:
        return [*sources, exceptions]
    from machtrace.unwinder.arch.arm32.image_tables import arm_rules_of_elf

    analysis = source_or_none(lambda: arm_rules_of_elf(contents))
    calls = None if analysis is None else CallSiteRules(analysis)
    return [sources[0], analysis, *sources[1:], exceptions, calls]


_X86_LOWERS = re.compile(rb"[\x50-\x57]|\x48[\x81\x83]\xec")
"""``push``; ``sub rsp, n``."""
_X86_RECORD = 16
"""Bytes from rbp to the CFA where rbp addresses a frame record."""
_MAX_SEARCHED_LENGTH = 1 << 12
"""Bytes of x86 code from a function's start that are searched so."""
_ARM64_LOWERS = ((0xFF8003FF, 0xD10003FF), (0xFFC003E0, 0xA98003E0), (0xFFE00FE0, 0xF8000FE0))
"""``sub sp, sp, #n``; ``stp``, ``str`` with sp lowered first: a mask, and the bits under it."""
_ARM64_RELEASES = (
    (0xFF8003FF, 0x910003FF),
    (0xFFC003E0, 0xA8C003E0),
    (0xFFE00FE0, 0xF84007E0),
    (0xFFC07FFF, 0xA9407BFD),
)
"""``add sp, sp, #n``; ``ldp``, ``ldr`` that raise sp; ``ldp x29, x30, [sp, #n]``."""
_X86_RELEASES = {b"\x48\x83\xc4": 4, b"\x48\x81\xc4": 7, b"\x48\x8d\x64\x24": 5}
"""``add rsp, n``; ``lea rsp, [rsp + n]``: how they begin, and their sizes."""
_EPILOGUES = {Arch.X86_64: 40, Arch.ARM64: 48}
"""Bytes before an instruction that are searched for the release of the frame."""
_PROLOGUE = 96
"""Bytes of arm64 code from a function's start that are searched for what lowers sp."""


class CallFrameCorrections:
    """Interrupted frames at which call-frame information does not describe the code.

    Some compilers describe neither the middle of prologues nor epilogues (LLVM's synchronous
    tables), or move an instruction away from its description; assembly pushes registers without
    any, or restates a CFA from rbp where a push only lowers rsp. The
    code is analysed only where its bytes show that it may be so. A :class:`RuleSource`, which is
    queried before the table.
    """

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(
        self, contents: ElfContents, arch: Arch, table: CallFrameRules, analysis: LazyAnalysis
    ) -> None:
        self._contents = contents
        self._arch = arch
        self._table = table
        self._analysis = analysis

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        described = self._table.described_at(lookup) if interrupted else None
        if described is None or lookup == described.start:
            return None
        stated = self._table.rule_for(lookup, interrupted=True)
        if stated is None or stated.is_signal_frame or isinstance(stated.return_address, Lost):
            return None
        undescribed = self._is_undescribed(described, lookup, stated)
        if not undescribed and not self._is_released(described, lookup, stated):
            return None
        return self._analysis.rule_against(lookup, stated, is_undescribed=undescribed)

    def _is_released(self, described: range, lookup: Svma, stated: UnwindRule) -> bool:
        """Return whether code shortly before releases the frame, undescribed by the table.

        Its rule is the same before and behind the release. Behind a return, such as in landing
        pads, the frame is there again, and the table describes both.
        """
        start = max(described.start, lookup - _EPILOGUES[self._arch])
        code = bytes(self._contents.read_svma(Svma(start), lookup - start))
        ends = _arm64_releases(code) if self._arch is Arch.ARM64 else _x86_releases(code)
        return any(
            self._table.rule_for(Svma(start + end - 1), interrupted=True) == stated
            and self._table.rule_for(Svma(start + end), interrupted=True) == stated
            for end in ends
        )

    def _is_undescribed(self, described: range, lookup: Svma, stated: UnwindRule) -> bool:
        """Return whether the table may omit what lowered sp: it has the entry's rule behind that.

        On x86-64, also whether it moves the CFA away from a frame record.
        """
        start, is_arm64 = Svma(described.start), self._arch is Arch.ARM64
        cfa, registers = stated.cfa, self._arch.registers
        if not is_arm64 and cfa != RegisterOffset(registers.sp, self._arch.saved_register_size):
            is_from_fp = isinstance(cfa, RegisterOffset) and cfa.register == registers.fp
            return is_from_fp and cfa != RegisterOffset(registers.fp, _X86_RECORD)
        if stated != self._table.rule_for(start, interrupted=True):
            return False
        size = min(lookup - start, _PROLOGUE if is_arm64 else _MAX_SEARCHED_LENGTH)
        code = bytes(self._contents.read_svma(start, size))
        if not is_arm64:
            return _X86_LOWERS.search(code) is not None
        return any(word & mask == value for word in _words(code) for mask, value in _ARM64_LOWERS)


def _arm64_releases(code: bytes) -> Iterator[int]:
    """Yield the offset behind each instruction that releases a frame."""
    for index, word in enumerate(_words(code)):
        if any(word & mask == value for mask, value in _ARM64_RELEASES):
            yield 4 * (index + 1)


def _x86_releases(code: bytes) -> Iterator[int]:
    """Yield the offset behind each instruction that may release a frame."""
    for opcode, size in _X86_RELEASES.items():
        at = code.find(opcode)
        while at >= 0:
            if at + size <= len(code):
                yield at + size
            at = code.find(opcode, at + 1)


def _words(code: bytes) -> tuple[int, ...]:
    count = len(code) // 4
    return unpack(f"<{count}I", code[: 4 * count])


class LazyAnalysis:
    """Instruction analysis of an ELF image, imported and built when first queried.

    Few frames need it: assembly, Go and musl have code without tables. A :class:`RuleSource`.
    """

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, contents: ElfContents, arch: Arch) -> None:
        self._contents = contents
        self._arch = arch
        self._budgets: WalkBudgets | None = None

    @cached_property
    def _analysis(self) -> _Analysis:
        from machtrace.unwinder.arch.unnamed_functions import UnnamedFunctions
        from machtrace.unwinder.functions.elf_bounds import ElfFunctionBounds

        sections = self._contents.image.code_ranges
        unnamed = UnnamedFunctions(self._contents, self._arch, sections)
        function_at = ElfFunctionBounds(self._contents, unnamed.at).at
        analysis: _Analysis
        if self._arch.is_arm64:
            from machtrace.unwinder.arch.arm64.analysis import InstructionRules

            code = self._contents.image.code_ranges
            analysis = InstructionRules(self._contents, function_at, code)
        else:
            from machtrace.unwinder.arch.x86.analysis import MODES, X86InstructionRules

            analysis = X86InstructionRules(self._contents, function_at, mode=MODES[self._arch])
        if self._budgets is not None:
            analysis.draw_on(self._budgets)
        return analysis

    def draw_on(self, budgets: WalkBudgets) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudgets`."""
        self._budgets = budgets
        if "_analysis" in self.__dict__:
            self._analysis.draw_on(budgets)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """See :data:`~machtrace.unwinder.rules.FunctionAt`."""
        return self._analysis.function_at(address)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        return self._analysis.rule_for(lookup, interrupted=interrupted)

    def rule_against(
        self, lookup: Svma, stated: UnwindRule, *, is_undescribed: bool
    ) -> UnwindRule | None:
        """Return the code's rule if it contradicts a table's; see :class:`FunctionAnalysis`."""
        return self._analysis.rule_against(lookup, stated, is_undescribed=is_undescribed)

    def unchanged_at(self, lookup: Svma, /, *, interrupted: bool) -> tuple[int, ...]:
        """See :class:`~machtrace.unwinder.rules.KnowsScratchRegisters`."""
        return self._analysis.unchanged_at(lookup, interrupted=interrupted)

    def rule_at_call(self, lookup: Svma) -> UnwindRule | None:
        """See :class:`~machtrace.unwinder.rules.CallAnalysis`."""
        return self._analysis.rule_at_call(lookup)


class _Analysis(RuleSource, CallAnalysis, DrawsOnBudgets, Protocol):
    """Instruction analysis of an architecture."""

    def rule_against(
        self, lookup: Svma, stated: UnwindRule, *, is_undescribed: bool
    ) -> UnwindRule | None: ...
