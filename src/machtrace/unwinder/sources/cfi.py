"""Rules from DWARF call-frame information: ``.eh_frame``, ``.debug_frame``, ``__eh_frame``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cache
from struct import iter_unpack
from typing import TYPE_CHECKING

from machtrace.errors import DwarfError, ElfError, MemoryReadError
from machtrace.formats.dwarf import cfi_rows as dwarf
from machtrace.formats.dwarf import operations
from machtrace.formats.dwarf.cfi import CallFrames
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.eh_frame_hdr import (
    SearchTable,
    eh_frame_section,
    read_eh_frame_header,
    read_search_table,
)
from machtrace.formats.elf.structs import ElfType
from machtrace.frozen import dataclass
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
from machtrace.unwinder.step_budget import WalkBudgets

if TYPE_CHECKING:
    from machtrace.formats.dwarf.frame_index import FrameIndex

_PROGRAM_COUNTERS = frozenset({"rip", "eip", "pc"})
_OFFSET_LIMIT = 1 << 63
_SWAPPED = {4: 5, 5: 4}
_UNTRACKED = -1
_ARM_DOUBLES = range(256, 256 + len(ARM_DOUBLES))
"""d0 to d31 (*DWARF for the Arm Architecture*, "DWARF register names")."""
_ARM_SINGLES = range(64, 96)
"""s0 to s31, the halves of d0 to d15, which GCC saves in pairs."""
_ARM_DWARF_GENERAL = 16
_LINK_REGISTER = 30
_GENERAL = range(_LINK_REGISTER + 1)
"""x0 to x30."""
_PAIR = 0b10
"""The upper bits of a store of two x registers."""


@dataclass(frozen=True, slots=True)
class RegisterNumbering:
    """The register numbering of a section."""

    arch: Arch
    is_darwin_eh_frame: bool = False
    """Apple's i386 numbers ebp 4 and esp 5 in ``__eh_frame``, swapped in comparison with the
    psABI and with its own ``__debug_frame`` (``libunwind.h``: ``UNW_X86_EBP``, ``UNW_X86_ESP``;
    LLVM's ``DWARFFlavour``: ``X86_32_DarwinEH``, ``X86_32_Generic``)."""

    @property
    def is_swapped(self) -> bool:
        """Whether esp and ebp are swapped."""
        return self.is_darwin_eh_frame and self.arch is Arch.I386

    def register(self, number: int) -> int:
        """Return the number that :class:`~machtrace.model.registers.RegisterSet` uses."""
        if self.arch.is_arm and number >= _ARM_DWARF_GENERAL:
            return _arm_double(number)
        return _SWAPPED.get(number, number) if self.is_swapped else number

    def expression(self, expression: bytes) -> bytes:
        """Return ``expression`` with its registers renumbered.

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
                # The number fits in one byte; if it is padded to more, only the first changes.
                renumbered[offset + 1] ^= operation.operand ^ _SWAPPED[operation.operand]
        return bytes(renumbered)


def rule_of(row: dwarf.CallFrameRow, numbering: RegisterNumbering) -> UnwindRule:
    """Return the rule that ``row`` states.

    Registers that are unchanged, or absent from the row, are omitted if the ABI preserves them. A
    return address absent from the row is still in its register.

    Raises:
        DwarfError: an offset is beyond any address space.
    """
    translation = _Translation(numbering, keeps_all=row.is_signal_frame)
    tracked = _tracked_registers(numbering.arch)
    return_address: Recovery | None = None
    registers: list[tuple[int, Recovery]] = []
    for number, rule in row.registers:
        own = numbering.register(number)
        recovery = translation.recovery(own, rule)
        if number == row.return_column:
            return_address = recovery
        if own in tracked and not translation.is_preserved(own, rule):
            registers.append((own, recovery))
    if return_address is None:
        return_address = InRegister(numbering.register(row.return_column))
    return UnwindRule(
        translation.cfa(row.cfa),
        return_address,
        tuple(registers),
        is_signal_frame=row.is_signal_frame,
    )


_PROLOGUE_SIZE = 256
"""Bytes after a function's start in which saved registers are looked up in its code."""
_STORES = (
    (0xFFC00000, 0xA9000000),
    (0xFFC00000, 0xA9800000),
    (0xFFC00000, 0xA8800000),
    (0xFFC00000, 0xF9000000),
    (0xFFE00000, 0xF8000000),
)
"""Masks and bits of AArch64 stores of x registers: pairs (plain, before and behind a change of the
base), single ones (with a scaled offset, and all others)."""
_LEAVES_MASK, _LEAVES = 0x7C000000, 0x14000000
_LEAVES_BY_REGISTER_MASK, _LEAVES_BY_REGISTER = 0xFE000000, 0xD6000000
"""Unconditional branches and calls, also by register, and returns."""


def _code_before(contents: ElfContents, address: Svma, size: int) -> bytes:
    """Return the instructions from a function's start to ``address``; empty if that is far away."""
    if not 0 < size <= _PROLOGUE_SIZE:
        return b""
    try:
        # The address may be in the middle of an instruction.
        return bytes(contents.read_svma(Svma(address - size), size & -4))
    except MemoryReadError:
        return b""


def _without_delayed(rule: UnwindRule, code: bytes) -> UnwindRule:
    """Return the rule without saved registers that no instruction of arm64 ``code`` stored.

    LLVM describes a store before it pairs it with a later one (``stp x9, x30, [sp, #104]``), so
    rows of a prologue can precede their stores. Code that branches away proves nothing.

    Args:
        rule: the rule behind ``code``.
        code: the instructions from the function's start; empty if unavailable.
    """
    stored: set[int] = set()
    for (word,) in iter_unpack("<I", code):
        if word & _LEAVES_MASK == _LEAVES:
            return rule
        if word & _LEAVES_BY_REGISTER_MASK == _LEAVES_BY_REGISTER:
            return rule
        if any(word & mask == bits for mask, bits in _STORES):
            stored.add(word & 31)
            if word >> 30 == _PAIR:
                stored.add(word >> 10 & 31)
    if not code:
        return rule
    delayed = isinstance(rule.return_address, AtCfa) and _LINK_REGISTER not in stored
    registers = tuple(
        (number, recovery)
        for number, recovery in rule.registers
        if number not in _GENERAL or not isinstance(recovery, AtCfa) or number in stored
    )
    return replace(
        rule,
        return_address=InRegister(_LINK_REGISTER) if delayed else rule.return_address,
        registers=registers,
    )


def _arm_double(number: int) -> int:
    if number in _ARM_DOUBLES:
        return ARM_DOUBLES[number - _ARM_DOUBLES.start]
    half = number - _ARM_SINGLES.start
    # The even half is saved at the address of the whole.
    return ARM_DOUBLES[half // 2] if number in _ARM_SINGLES and half % 2 == 0 else _UNTRACKED


@cache
def _tracked_registers(arch: Arch) -> frozenset[int]:
    """Return the registers that a walk tracks: neither coprocessors' nor pc itself."""
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
        """Return whether a step preserves the register without a recovery; sp becomes the CFA."""
        if not isinstance(rule, dwarf.SameValue):
            return False
        numbers = self.numbering.arch.registers
        return own != numbers.sp and (self.keeps_all or own in numbers.callee_saved)


def _checked(offset: int) -> int:
    if not -_OFFSET_LIMIT <= offset < _OFFSET_LIMIT:
        raise DwarfError(
            f"offset {offset} from the CFA is out of range",
            source="call-frame information",
            offset=0,
        )
    return offset


@dataclass(slots=True)
class IndexedSection:
    """A section, and its index once that was queried."""

    section: CallFrameSection
    numbering: RegisterNumbering
    _build: Callable[[CallFrameSection], FrameIndex | SearchTable]
    _index: FrameIndex | SearchTable | None = field(default=None, init=False)

    @property
    def index(self) -> FrameIndex | SearchTable:
        """The section's FDEs by address.

        Raises:
            MemoryReadError: it could not be read.
        """
        if self._index is None:
            self._index = self._build(self.section)
        return self._index


def sections_of_elf(contents: ElfContents) -> tuple[IndexedSection, ...]:
    """Return ``.eh_frame`` and ``.debug_frame``, if present."""
    if contents.image.type is ElfType.RELOCATABLE:
        return ()
    sections = (_eh_frame(contents), _debug_frame(contents))
    return tuple(section for section in sections if section is not None)


def _eh_frame(contents: ElfContents) -> IndexedSection | None:
    image = contents.image
    try:
        header = read_eh_frame_header(contents)
    except (ElfError, MemoryReadError):
        header = None
    section = eh_frame_section(contents, header)
    if section is None:
        return None

    def build(section: CallFrameSection) -> FrameIndex | SearchTable:
        table = None if header is None else read_search_table(contents, header, section.address)
        return scanned_index(section) if table is None else table

    return IndexedSection(section, RegisterNumbering(image.arch), build)


def _debug_frame(contents: ElfContents) -> IndexedSection | None:
    stated = contents.image.section(".debug_frame")
    if stated is None or not stated.has_bytes or contents.is_loaded:
        return None
    try:
        data = contents.read_section(stated)
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
    """Return the index of a section without a search table; numpy is imported for it."""
    from machtrace.formats.dwarf.frame_index import build_index

    return build_index(section)


class CallFrameRules:
    """The call-frame information of one image. A :class:`~machtrace.unwinder.rules.RuleSource`.

    Little is read before the first query.
    """

    __slots__ = ("_budget", "_contents", "_tables", "claims")

    trust = FrameTrust.CFI

    def __init__(
        self,
        *sections: IndexedSection,
        claims: Claims = Claims.EVERYWHERE,
        contents: ElfContents | None = None,
    ) -> None:
        """``contents``: arm64 code that shows which registers are saved at interrupted frames."""
        self._budget = WalkBudgets(per_query=True).tables
        self._contents = contents
        self._tables = tuple(_Table(section, self._afford) for section in sections)
        self.claims = claims

    @classmethod
    def of_elf(cls, contents: ElfContents) -> CallFrameRules | None:
        """Return the rules of ``.eh_frame``, then ``.debug_frame``; None without either.

        Object files have none: they have no addresses before they are linked. Raises nothing.
        """
        sections = sections_of_elf(contents)
        code = contents if contents.image.arch.is_arm64 else None
        return cls(*sections, contents=code) if sections else None

    def _afford(self, steps: int) -> bool:
        return self._budget.afford(steps)  # draw_on replaces the budget

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`.

        Rows hold at every instruction, except before delayed stores of arm64 prologues.

        Raises:
            FormatError: the information is malformed here.
            MemoryReadError: it was not captured.
        """
        self._budget.begin_query()
        for table in self._tables:
            rule = table.rule_for(lookup)
            if rule is not None:
                described = table.described_at(lookup)
                if interrupted and self._contents is not None and described is not None:
                    code = _code_before(self._contents, lookup, lookup - described.start)
                    return _without_delayed(rule, code)
                return rule
        return None

    def described_at(self, lookup: Svma) -> range | None:
        """Return the addresses of the FDE at ``lookup``; None without one. Raises as above."""
        self._budget.begin_query()
        return next(filter(None, (table.described_at(lookup) for table in self._tables)), None)

    def origin(self, lookup: Svma) -> str:
        """Describe the FDE of the rule at ``lookup``; empty without one. Raises as above."""
        return next(filter(None, (table.origin(lookup) for table in self._tables)), "")

    def rule_at_fde_offset(self, offset: int, lookup: Svma) -> UnwindRule | None:
        """Return the rule at ``lookup`` by the FDE at ``offset`` of ``__eh_frame``.

        A compact encoding in DWARF mode has the low 24 bits of that offset. None if the FDE does
        not describe ``lookup``.

        Raises:
            FormatError: there is no FDE, or it is malformed.
            MemoryReadError: it was not captured.
        """
        self._budget.begin_query()
        return self._tables[0].rule_at(offset, lookup)

    def draw_on(self, budgets: WalkBudgets) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudgets`."""
        self._budget = budgets.tables


class _Table:
    """One section, and the frames parsed from it."""

    __slots__ = ("_frames", "_indexed")

    def __init__(self, indexed: IndexedSection, spend: Callable[[int], bool]) -> None:
        self._indexed = indexed
        self._frames = CallFrames(indexed.section, spend)

    def rule_for(self, lookup: Svma) -> UnwindRule | None:
        offset = self._indexed.index.find(lookup)
        return None if offset is None else self.rule_at(offset, lookup)

    def described_at(self, lookup: Svma) -> range | None:
        offset = self._indexed.index.find(lookup)
        function = None if offset is None else self._frames.function(offset)
        if function is None or lookup not in function:
            return None
        return range(function.start, function.end)

    def origin(self, lookup: Svma) -> str:
        offset, function = self._indexed.index.find(lookup), self.described_at(lookup)
        if function is None:
            return ""
        section = self._indexed.section.source.rpartition(" ")[2]
        return f"FDE at {offset:#x} of {section}, {function.start:#x} to {function.stop:#x}"

    def rule_at(self, offset: int, lookup: Svma) -> UnwindRule | None:
        function = self._frames.function(offset)
        if lookup not in function:
            return None
        return rule_of(self._frames.row(function, lookup), self._indexed.numbering)
