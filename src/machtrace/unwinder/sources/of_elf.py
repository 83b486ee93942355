"""The rule sources of an ELF image, and their order."""

from __future__ import annotations

from functools import cached_property
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
    is_analysed = image.type is not ElfType.RELOCATABLE and image.layout.little_endian
    sources: list[RuleSource | None] = [
        LinuxSignalRules(contents, arch),
        _go_rules(contents, arch),
        CallFrameRules.of_elf(contents),
        LinkageStubRules.of_elf(contents),
        StartRoutineRules(contents, arch),
    ]
    if arch.is_arm:
        sources = _arm_sources(contents, sources, is_analysed=is_analysed)
    elif is_analysed:
        analysis = LazyAnalysis(contents, arch)
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

    def rule_at_call(self, lookup: Svma) -> UnwindRule | None:
        """See :class:`~machtrace.unwinder.rules.CallAnalysis`."""
        return self._analysis.rule_at_call(lookup)


class _Analysis(RuleSource, CallAnalysis, DrawsOnBudgets, Protocol):
    """Instruction analysis of an architecture."""
