"""Which ways of unwinding an image offers, in the order that they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from machtrace.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.elf.structs import ElfType
from machtrace.errors import FormatError, MemoryReadError
from machtrace.macho.contents import FileContents, MemoryContents
from machtrace.model.arch import Arch
from machtrace.unwinder.arm_prologue import ArmCallSiteRules, ArmInstructionRules
from machtrace.unwinder.async_entry import CONTEXT_REGISTERS, AsyncEntryRules
from machtrace.unwinder.call_witness import CallWitness
from machtrace.unwinder.cfi import CallFrameRules
from machtrace.unwinder.compact import CompactRules
from machtrace.unwinder.darwin_signal_frame import DarwinSignalRules
from machtrace.unwinder.elf_function_bounds import ElfFunctionBounds, code_ranges
from machtrace.unwinder.exidx import ExceptionTableRules
from machtrace.unwinder.linux_signal_frame import LinuxSignalRules
from machtrace.unwinder.plt import LinkageStubRules
from machtrace.unwinder.process_rules import ImageRules
from machtrace.unwinder.prologue import CallSiteRules, InstructionRules
from machtrace.unwinder.rules import RuleSource
from machtrace.unwinder.stubs import StubRules
from machtrace.unwinder.x86_prologue import MODES, X86CallSiteRules, X86InstructionRules

Contents = FileContents | MemoryContents | ElfFileContents | ElfMemoryContents
"""The bytes of an image of any format."""


def image_rules(contents: Contents, arch: Arch) -> ImageRules:
    """The rule sources of an image, best first.

    What signal handlers return to comes before all else. In a Mach-O, instruction analysis is
    next: it answers only for interrupted frames, where compact unwind is not meant to be right.
    Compact unwind hands over to call-frame information where it says so. In an ELF image
    call-frame information holds at every instruction, so instructions are only looked at where
    there is none. A kind whose tables are malformed, or were not captured, is left out.
    """
    if isinstance(contents, ElfFileContents | ElfMemoryContents):
        found = [
            LinuxSignalRules(contents, arch),
            _built(lambda: CallFrameRules.of_elf(contents)),
            _built(lambda: LinkageStubRules.of_elf(contents)),
            _built(lambda: ExceptionTableRules.of_elf(contents)),
            *_elf_instructions(contents, arch),
        ]
        witness = None
    else:
        found = list(_macho(contents, arch))
        frames = [source for source in found if source is not None]
        found.insert(0, _built(lambda: DarwinSignalRules.of_macho(contents, arch, frames)))
        witness = _witness(frames, contents, arch)
    sources = tuple(source for source in found if source is not None)
    return ImageRules(sources, contents.image.header_svma, witness)


def _elf_instructions(
    contents: ElfFileContents | ElfMemoryContents, arch: Arch
) -> Iterator[RuleSource]:
    """Instruction analysis, for code that came without tables: assembly, Go, musl."""
    image = contents.image
    if image.type is ElfType.RELOCATABLE or not image.layout.little_endian:
        return
    bounds = ElfFunctionBounds(contents)
    if arch.is_arm64:
        instructions = InstructionRules(contents, bounds.at, code_ranges(contents))
        yield instructions
        yield CallSiteRules(instructions)
    elif arch in MODES:
        x86_instructions = X86InstructionRules(contents, bounds.at, mode=MODES[arch])
        yield x86_instructions
        yield X86CallSiteRules(x86_instructions)


def _witness(sources: Sequence[RuleSource], contents: Contents, arch: Arch) -> CallWitness | None:
    for source in sources:
        analysis = source.inner if isinstance(source, AsyncEntryRules) else source
        if isinstance(analysis, InstructionRules | X86InstructionRules):
            return CallWitness(analysis, contents, arch)
    return None


def _macho(contents: FileContents | MemoryContents, arch: Arch) -> Iterator[RuleSource | None]:
    call_frames = CallFrameRules.of_macho(contents)
    instructions = _built(lambda: InstructionRules.of_macho(contents, arch))
    yield _with_async_entry(instructions, contents, arch)
    x86_instructions = _built(lambda: X86InstructionRules.of_macho(contents, arch))
    yield _with_async_entry(x86_instructions, contents, arch)
    arm_instructions = _built(lambda: ArmInstructionRules.of_macho(contents, arch))
    yield arm_instructions
    yield _built(lambda: StubRules.of_macho(contents, arch))
    yield _built(lambda: CompactRules.of_macho(contents, arch, call_frames))
    yield call_frames
    if isinstance(instructions, InstructionRules):
        yield CallSiteRules(instructions)
    if isinstance(x86_instructions, X86InstructionRules):
        yield X86CallSiteRules(x86_instructions)
    if isinstance(arm_instructions, ArmInstructionRules):
        yield ArmCallSiteRules(arm_instructions)


def _with_async_entry(
    rules: RuleSource | None, contents: FileContents | MemoryContents, arch: Arch
) -> RuleSource | None:
    if isinstance(rules, InstructionRules | X86InstructionRules) and arch in CONTEXT_REGISTERS:
        return AsyncEntryRules(rules, contents, arch, rules.function_at)
    return rules


def _built(build: Callable[[], RuleSource | None]) -> RuleSource | None:
    try:
        return build()
    except (FormatError, MemoryReadError):
        return None
