"""Rules from DWARF call-frame information: ``.eh_frame``, ``.debug_frame``, ``__eh_frame``.

Where an image has its call-frame information, and how an address is found in it.

From rows of the call-frame table to unwind rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from machtrace.errors import DwarfError, ElfError, MemoryReadError
from machtrace.formats.dwarf import cfi_rows as dwarf
from machtrace.formats.dwarf import operations
from machtrace.formats.dwarf.cfi import CallFrames
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import ElfType
from machtrace.model.address import Svma
from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Cfa,
    CfaPlus,
    Claims,
    ExpressionValue,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)
from machtrace.unwinder.step_budget import StepBudget

if TYPE_CHECKING:
    from machtrace.formats.dwarf.frame_index import FrameIndex
    from machtrace.formats.elf.eh_frame_hdr import EhFrameHeader

_PROGRAM_COUNTERS = frozenset({"rip", "eip", "pc"})
_OFFSET_LIMIT = 1 << 63
_SWAPPED = {4: 5, 5: 4}
_NOT_KEPT = -1
_ARM_DOUBLES = range(256, 256 + len(ARM_DOUBLES))
"""d0 to d31 (*DWARF for the Arm Architecture*, "DWARF register names")."""
_ARM_SINGLES = range(64, 96)
"""s0 to s31, the halves of d0 to d15, which GCC saves two by two."""
_ARM_DWARF_GENERAL = 16


@dataclass(frozen=True, slots=True)
class RegisterNumbering:
    """Which register a number in a section means."""

    arch: Arch
    is_darwin_eh_frame: bool = False
    """Apple's i386 has ebp as 4 and esp as 5 in ``__eh_frame``, the other way round than the
    psABI and than its own ``__debug_frame`` (``libunwind.h``: ``UNW_X86_EBP``, ``UNW_X86_ESP``;
    LLVM's ``DWARFFlavour``: ``X86_32_DarwinEH``, ``X86_32_Generic``)."""

    @property
    def is_swapped(self) -> bool:
        """Whether numbers must be translated."""
        return self.is_darwin_eh_frame and self.arch is Arch.I386

    def register(self, number: int) -> int:
        """The number that :class:`~machtrace.model.registers.RegisterSet` uses."""
        if self.arch.is_arm and number >= _ARM_DWARF_GENERAL:
            return _arm_double(number)
        return _SWAPPED.get(number, number) if self.is_swapped else number

    def expression(self, expression: bytes) -> bytes:
        """``expression`` with its registers renumbered.

        Raises:
            DwarfError: it is malformed.
        """
        if not self.is_swapped:
            return expression
        renumbered = bytearray(expression)
        for offset, operation in operations.read_operations(expression, self.arch.pointer_size):
            number = operation.code - operations.BREG0
            if number in _SWAPPED:
                renumbered[offset] = operations.BREG0 + _SWAPPED[number]
            elif operation.code == operations.BREGX and operation.operand in _SWAPPED:
                # Its number is one byte; where it was padded to more, the first holds it all.
                renumbered[offset + 1] ^= operation.operand ^ _SWAPPED[operation.operand]
        return bytes(renumbered)


def rule_of(row: dwarf.CallFrameRow, numbering: RegisterNumbering) -> UnwindRule:
    """The rule that ``row`` states.

    A register that the row does not name, or calls unchanged, is left out where the ABI preserves
    it. A return address that it does not name is still in its register.

    Raises:
        DwarfError: an offset is beyond any address space.
    """
    translation = _Translation(numbering, keeps_all=row.is_signal_frame)
    kept = _registers_of_a_walk(numbering.arch)
    return_address: Recovery | None = None
    registers: list[tuple[int, Recovery]] = []
    for number, rule in row.registers:
        own = numbering.register(number)
        recovery = translation.recovery(own, rule)
        if number == row.return_column:
            return_address = recovery
        if own in kept and not translation.is_preserved(own, rule):
            registers.append((own, recovery))
    if return_address is None:
        return_address = InRegister(numbering.register(row.return_column))
    return UnwindRule(
        translation.cfa(row.cfa),
        return_address,
        tuple(registers),
        is_signal_frame=row.is_signal_frame,
    )


def _arm_double(number: int) -> int:
    if number in _ARM_DOUBLES:
        return ARM_DOUBLES[number - _ARM_DOUBLES.start]
    half = number - _ARM_SINGLES.start
    # The even half lies where the whole does.
    return ARM_DOUBLES[half // 2] if number in _ARM_SINGLES and half % 2 == 0 else _NOT_KEPT


@cache
def _registers_of_a_walk(arch: Arch) -> frozenset[int]:
    """Those that a walk keeps; others are of coprocessors, or pc itself."""
    names = enumerate(arch.registers.names)
    return frozenset(n for n, name in names if name and name not in _PROGRAM_COUNTERS)


@dataclass(frozen=True, slots=True)
class _Translation:
    numbering: RegisterNumbering
    keeps_all: bool

    def cfa(self, rule: dwarf.CfaRule) -> Cfa:
        match rule:
            case dwarf.CfaRegister(register, offset):
                return RegisterOffset(self.numbering.register(register), _checked(offset))
            case dwarf.CfaExpression(expression):
                return ExpressionValue(self.numbering.expression(expression))

    def recovery(  # noqa: PLR0911 - one branch a kind
        self, own: int, rule: dwarf.RegisterRule
    ) -> Recovery:
        match rule:
            case dwarf.Offset(offset):
                return AtCfa(_checked(offset))
            case dwarf.Undefined():
                return Lost()
            case dwarf.SameValue():
                return InRegister(own)
            case dwarf.ValueOffset(offset):
                return CfaPlus(_checked(offset))
            case dwarf.InOtherRegister(register):
                return InRegister(self.numbering.register(register))
            case dwarf.Expression(expression):
                return AtExpression(self.numbering.expression(expression))
            case dwarf.ValueExpression(expression):
                return ExpressionValue(self.numbering.expression(expression))

    def is_preserved(self, own: int, rule: dwarf.RegisterRule) -> bool:
        """Whether a step keeps the register's value anyhow. The stack pointer becomes the CFA."""
        if not isinstance(rule, dwarf.SameValue):
            return False
        numbers = self.numbering.arch.registers
        return own != numbers.sp and (self.keeps_all or own in numbers.callee_saved)


def _checked(offset: int) -> int:
    if not -_OFFSET_LIMIT <= offset < _OFFSET_LIMIT:
        raise DwarfError(f"offset {offset} from the CFA", source="call-frame information", offset=0)
    return offset


@dataclass(slots=True)
class IndexedSection:
    """A section, and its index once that was asked for."""

    section: CallFrameSection
    numbering: RegisterNumbering
    _build: Callable[[CallFrameSection], FrameIndex]
    _index: FrameIndex | None = field(default=None, init=False)

    @property
    def index(self) -> FrameIndex:
        """Its FDEs by address.

        Raises:
            MemoryReadError: it could not be read.
        """
        if self._index is None:
            self._index = self._build(self.section)
        return self._index


def sections_of_elf(contents: ElfContents) -> tuple[IndexedSection, ...]:
    """``.eh_frame`` and ``.debug_frame``, those that are there."""
    if contents.image.type is ElfType.RELOCATABLE:
        return ()
    found = (_eh_frame(contents), _debug_frame(contents))
    return tuple(section for section in found if section is not None)


def _eh_frame(contents: ElfContents) -> IndexedSection | None:
    from machtrace.formats.elf.eh_frame_hdr import read_eh_frame_header

    image = contents.image
    try:
        header = read_eh_frame_header(contents)
    except (ElfError, MemoryReadError):
        header = None
    found = image.section(".eh_frame")
    end: Svma | None
    if found is not None:
        address, end = found.address, found.end if found.has_bytes else None
    elif header is not None and header.eh_frame is not None:
        address, end = header.eh_frame, image.loaded_end(header.eh_frame)
    else:
        return None
    if end is None or end <= address:
        return None
    section = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=end - address,
        arch=image.arch,
        source=f"{contents.source} .eh_frame",
        address=address,
        little_endian=image.layout.little_endian,
        ends_at_terminator=found is None,
    )

    def build(section: CallFrameSection) -> FrameIndex:
        index = None if header is None else _from_header(contents, header, section)
        return scanned_index(section) if index is None else index

    return IndexedSection(section, RegisterNumbering(image.arch), build)


def _from_header(
    contents: ElfContents, header: EhFrameHeader, section: CallFrameSection
) -> FrameIndex | None:
    import numpy as np

    from machtrace.formats.dwarf.frame_index import FrameIndex
    from machtrace.formats.elf.eh_frame_hdr import read_frame_table

    table = read_frame_table(contents, header)
    if table is None:
        return None
    return FrameIndex(table.starts, table.descriptions - np.uint64(section.address))


def _debug_frame(contents: ElfContents) -> IndexedSection | None:
    found = contents.image.section(".debug_frame")
    if found is None or not found.has_bytes or contents.is_loaded:
        return None
    try:
        data = contents.read_section(found)
    except ElfError:
        return None

    def read(offset: int, size: int) -> memoryview:
        if offset < 0 or offset + size > len(data):
            raise MemoryReadError(offset, size)
        return data[offset : offset + size]

    section = CallFrameSection(
        read=read,
        size=len(data),
        arch=contents.image.arch,
        source=f"{contents.source} .debug_frame",
        is_eh_frame=False,
        little_endian=contents.image.layout.little_endian,
    )
    return IndexedSection(section, RegisterNumbering(contents.image.arch), scanned_index)


def scanned_index(section: CallFrameSection) -> FrameIndex:
    """Build the index of a section that has no table of its own."""
    from machtrace.formats.dwarf.frame_index import build_index

    return build_index(section)


class CallFrameRules:
    """The call-frame information of one image. A :class:`~machtrace.unwinder.rules.RuleSource`.

    Hardly anything is read until the first rule is asked for.
    """

    __slots__ = ("_budget", "_tables", "claims")

    trust = FrameTrust.CFI

    def __init__(self, *sections: IndexedSection, claims: Claims = Claims.EVERYWHERE) -> None:
        self._budget = StepBudget(per_query=True)
        self._tables = tuple(_Table(section, self._afford) for section in sections)
        self.claims = claims

    @classmethod
    def of_elf(cls, contents: ElfContents) -> CallFrameRules | None:
        """From ``.eh_frame``, then ``.debug_frame``; None where there is neither.

        An object file has none: its addresses are not known before it is linked. Raises nothing.
        """
        sections = sections_of_elf(contents)
        return cls(*sections) if sections else None

    def _afford(self, steps: int) -> bool:
        return self._budget.afford(steps)  # of the present budget, which draw_on replaces

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`.

        Rows hold at every instruction, so ``interrupted`` changes nothing.

        Raises:
            FormatError: the information is malformed here.
            MemoryReadError: it was not captured.
        """
        del interrupted
        self._budget.begin_query()
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
        self._budget.begin_query()
        return self._tables[0].rule_at(offset, lookup)

    def draw_on(self, budget: StepBudget) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudget`."""
        self._budget = budget


class _Table:
    """One section, with what was read of it."""

    __slots__ = ("_frames", "_indexed")

    def __init__(self, indexed: IndexedSection, spend: Callable[[int], bool]) -> None:
        self._indexed = indexed
        self._frames = CallFrames(indexed.section, spend)

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
