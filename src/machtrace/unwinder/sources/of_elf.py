"""Which ways of unwinding an ELF image offers, in the order that they are asked."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import ElfType
from machtrace.model.arch import Arch
from machtrace.unwinder.code.code_check import CallSiteRules
from machtrace.unwinder.functions.elf_bounds import ElfFunctionBounds, code_ranges
from machtrace.unwinder.rule_cache import ImageRules
from machtrace.unwinder.rules import RuleSource, source_or_none
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.exidx import ExceptionTableRules
from machtrace.unwinder.sources.linux_signal_frame import LinuxSignalRules
from machtrace.unwinder.sources.plt import LinkageStubRules


def elf_rules(contents: ElfContents, arch: Arch) -> ImageRules:
    """See :func:`machtrace.unwinder.sources.of_image.image_rules`.

    What signal handlers return to comes before all else. Call-frame information holds at every
    instruction, so instructions are only looked at where there is none; but of 32-bit arm no table
    does, and LLVM's call-frame information neither.
    """
    interrupted, calls = _of_arm(contents, arch)
    found = (
        LinuxSignalRules(contents, arch),
        interrupted,
        source_or_none(lambda: CallFrameRules.of_elf(contents)),
        source_or_none(lambda: LinkageStubRules.of_elf(contents)),
        source_or_none(lambda: ExceptionTableRules.of_elf(contents)),
        *_instructions(contents, arch),
        calls,
    )
    sources = tuple(source for source in found if source is not None)
    return ImageRules(sources, contents.image.header_svma)


def _of_arm(contents: ElfContents, arch: Arch) -> tuple[RuleSource | None, RuleSource | None]:
    """Instruction analysis of 32-bit arm: of interrupted frames, and of calls."""
    image = contents.image
    if not arch.is_arm or image.type is ElfType.RELOCATABLE or not image.layout.little_endian:
        return None, None
    from machtrace.unwinder.arch.arm32.elf import arm_rules_of_elf

    found = source_or_none(lambda: arm_rules_of_elf(contents))
    return found, None if found is None else CallSiteRules(found)


def _instructions(contents: ElfContents, arch: Arch) -> Iterator[RuleSource]:
    """Instruction analysis, for code that came without tables: assembly, Go, musl."""
    image = contents.image
    if image.type is ElfType.RELOCATABLE or not image.layout.little_endian:
        return
    bounds = ElfFunctionBounds(contents)
    if arch.is_arm64:
        from machtrace.unwinder.arch.arm64.analysis import InstructionRules

        instructions = InstructionRules(contents, bounds.at, code_ranges(contents))
        yield instructions
        yield CallSiteRules(instructions)
    elif not arch.is_arm:
        from machtrace.unwinder.arch.x86.analysis import MODES, X86InstructionRules

        x86_instructions = X86InstructionRules(contents, bounds.at, mode=MODES[arch])
        yield x86_instructions
        yield CallSiteRules(x86_instructions)
