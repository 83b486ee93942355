"""Rules from compact unwind encodings.

They are exact at calls, where the frame is complete. For interrupted frames instruction analysis is
queried first.
"""

from __future__ import annotations

from struct import pack
from typing import Protocol

from machtrace.errors import MachOError
from machtrace.formats.dwarf import operations
from machtrace.formats.macho.contents import MachOContents, is_encrypted
from machtrace.formats.macho.tables.compact_encoding import (
    AlignedRegisters,
    Frameless,
    FramelessIndirect,
    FramePointerBased,
    InDwarf,
    SavedRegisters,
    decode,
)
from machtrace.formats.macho.tables.unwind_info import UnwindEntry, UnwindInfo
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Claims,
    InRegister,
    Recovery,
    RegisterOffset,
    UnwindRule,
)


def aligned_location(below: int, alignment: int, offset: int) -> AtExpression:
    """Return the location ``offset`` bytes above ``(cfa + below) & -alignment``, a power of 2.

    In a frame with a realigned stack pointer, the distance from the CFA varies between calls.
    """
    expression = bytes((operations.CONST4S,)) + pack("<i", below)
    expression += bytes((operations.PLUS, operations.CONST4S)) + pack("<i", -alignment)
    expression += bytes((operations.AND, operations.CONST4S)) + pack("<i", offset)
    return AtExpression(expression + bytes((operations.PLUS,)))


_DOUBLE_SIZE = 8


class CallFrames(Protocol):
    """Call-frame information that encodings of DWARF mode refer to."""

    def rule_at_fde_offset(self, offset: int, lookup: Svma, /) -> UnwindRule | None:
        """Return the rule at ``lookup`` by the FDE at ``offset`` of ``__eh_frame``.

        Raises:
            DwarfError: there is no well-formed FDE.
        """
        ...


_SUB_FROM_SP = b"\x81\xec"
"""``sub esp, imm32``; of rsp after a prefix."""


class CompactRules:
    """``__unwind_info`` of one image. A :class:`RuleSource`."""

    __slots__ = ("_arch", "_call_frames", "_contents", "_framed_rules", "_info")

    trust = FrameTrust.COMPACT
    claims = Claims.AT_CALLS

    def __init__(
        self,
        contents: MachOContents,
        arch: Arch,
        info: UnwindInfo,
        call_frames: CallFrames | None = None,
    ) -> None:
        self._contents = contents
        self._arch = arch
        self._info = info
        self._call_frames = call_frames
        self._framed_rules: dict[int, UnwindRule] = {}

    @classmethod
    def of_macho(
        cls, contents: MachOContents, arch: Arch, call_frames: CallFrames | None = None
    ) -> CompactRules | None:
        """Read the section of a Mach-O; return None if it is missing or encrypted.

        Args:
            contents: the image.
            arch: its architecture.
            call_frames: its ``__eh_frame``; without it, functions described only there have no
                rule.

        Raises:
            MachOError: the section's header or index is malformed.
            MemoryReadError: the section was not captured.
        """
        section = contents.image.section("__TEXT", "__unwind_info")
        if section is None or not section.size:
            return None
        if is_encrypted(contents, section.address, section.size):
            return None
        data = contents.read_svma(section.address, section.size)
        info = UnwindInfo(data, f"__unwind_info of {contents.source}")
        return cls(contents, arch, info, call_frames)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`.

        A gap between functions with unwind information has no rule: it is neither the end of the
        stack nor a leaf.

        Raises:
            MachOError: the encoding or the page that it is in is malformed.
            MemoryReadError: the instruction with the frame's size was not captured.
            DwarfError: the FDE that the encoding points to is malformed.
        """
        del interrupted
        entry = self._info.find(self._contents.image.offset_of(lookup))
        known = None if entry is None else self._framed_rules.get(entry.encoding)
        if entry is None or known is not None:
            return known
        match decode(
            entry.encoding, self._arch, source=self._info.source, at=entry.function_offset
        ):
            case None:
                return None
            case InDwarf(offset):
                return self._in_dwarf(offset, lookup)
            case FramePointerBased(cfa_offset, saved, aligned):
                # A few encodings serve most functions, and have the same rule in each.
                rule = self._framed(cfa_offset, saved, aligned)
                self._framed_rules[entry.encoding] = rule
                return rule
            case Frameless(size, saved):
                return self._frameless(size, saved, entry)
            case FramelessIndirect(size_at, added, saved):
                operand = self._operand(entry, size_at)
                return None if operand is None else self._frameless(operand + added, saved, entry)

    def origin(self, lookup: Svma) -> str:
        """Describe the encoding of the rule at ``lookup``; empty without one.

        Raises:
            MachOError: the page that it is in is malformed.
        """
        entry = self._info.find(self._contents.image.offset_of(lookup))
        if entry is None or not entry.encoding:
            return ""
        start = self._contents.image.svma_of(entry.function_offset)
        end = self._contents.image.svma_of(entry.end_offset)
        return f"encoding {entry.encoding:#010x} of {start:#x} to {end:#x} in __unwind_info"

    def _in_dwarf(self, offset: int, lookup: Svma) -> UnwindRule | None:
        # Offset 0 means that the FDE's offset did not fit: the next source finds it.
        if self._call_frames is None or offset == 0:
            return None
        return self._call_frames.rule_at_fde_offset(offset, lookup)

    def _operand(self, entry: UnwindEntry, at: int) -> int | None:
        """Return the 32-bit operand of the ``sub`` at the offset ``at`` of a function.

        None for another instruction: assemblers write such encodings for functions that lower sp by
        other means, for instance after a stack probe.
        """
        start = self._contents.image.svma_of(entry.function_offset)
        before = len(_SUB_FROM_SP)
        code = bytes(self._contents.read_svma(Svma(start + at - before), before + 4))
        if not code.startswith(_SUB_FROM_SP):
            return None
        return int.from_bytes(code[before:], "little")

    @property
    def _word(self) -> int:
        return self._arch.saved_register_size

    def _framed(
        self, cfa_offset: int, saved: SavedRegisters, aligned: AlignedRegisters | None
    ) -> UnwindRule:
        fp = self._arch.registers.fp
        return UnwindRule(
            RegisterOffset(fp, cfa_offset),
            AtCfa(self._word - cfa_offset),
            ((fp, AtCfa(-cfa_offset)), *_at_cfa(saved), *_at_aligned(aligned)),
        )

    def _frameless(self, size: int, saved: SavedRegisters, entry: UnwindEntry) -> UnwindRule:
        numbers = self._arch.registers
        return_address: Recovery = AtCfa(-self._word)
        if numbers.lr is not None:
            return_address = InRegister(numbers.lr)
        elif size < self._word * (len(saved) + 1):
            raise MachOError(
                f"a frame of {size} bytes with {len(saved)} saved registers and a return address",
                source=self._info.source,
                offset=entry.function_offset,
            )
        return UnwindRule(RegisterOffset(numbers.sp, size), return_address, _at_cfa(saved))


def _at_aligned(aligned: AlignedRegisters | None) -> tuple[tuple[int, Recovery], ...]:
    if aligned is None:
        return ()
    return tuple(
        (register, aligned_location(aligned.below, aligned.alignment, _DOUBLE_SIZE * index))
        for index, register in enumerate(aligned.registers)
    )


def _at_cfa(saved: SavedRegisters) -> tuple[tuple[int, Recovery], ...]:
    return tuple((register, AtCfa(offset)) for register, offset in saved)
