"""Runs the instructions of call-frame information to the row for one address (DWARF 5, 6.4.3).

The numbers of instructions are in DWARF 5, section 7.24. ``DW_CFA_GNU_*`` are described with
``.eh_frame`` in the Linux Standard Base, Core, section 10.6.1; ``DW_CFA_AARCH64_*`` in *DWARF for
the Arm 64-bit Architecture*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field

from machtrace.errors import DwarfError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.dwarf.cfi_records import (
    CallFrameSection,
    CommonInformation,
    FrameDescription,
    read_frame_description,
)
from machtrace.formats.dwarf.cfi_rows import (
    CallFrameRow,
    CfaExpression,
    CfaRegister,
    CfaRule,
    Expression,
    InOtherRegister,
    Offset,
    RegisterRule,
    SameValue,
    Undefined,
    ValueExpression,
    ValueOffset,
)
from machtrace.formats.dwarf.pointer_encoding import read_pointer
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

DW_CFA_LOW_BITS = 0x3F
"""The operand of the first three instructions, whose two high bits identify them."""
DW_CFA_ADVANCE_LOC = 0x40
DW_CFA_OFFSET = 0x80
DW_CFA_RESTORE = 0xC0

DW_CFA_NOP = 0x00
DW_CFA_SET_LOC = 0x01
DW_CFA_OFFSET_EXTENDED = 0x05
DW_CFA_RESTORE_EXTENDED = 0x06
DW_CFA_UNDEFINED = 0x07
DW_CFA_SAME_VALUE = 0x08
DW_CFA_REGISTER = 0x09
DW_CFA_REMEMBER_STATE = 0x0A
DW_CFA_RESTORE_STATE = 0x0B
DW_CFA_DEF_CFA = 0x0C
DW_CFA_DEF_CFA_REGISTER = 0x0D
DW_CFA_DEF_CFA_OFFSET = 0x0E
DW_CFA_DEF_CFA_EXPRESSION = 0x0F
DW_CFA_EXPRESSION = 0x10
DW_CFA_OFFSET_EXTENDED_SF = 0x11
DW_CFA_DEF_CFA_SF = 0x12
DW_CFA_DEF_CFA_OFFSET_SF = 0x13
DW_CFA_VAL_OFFSET = 0x14
DW_CFA_VAL_OFFSET_SF = 0x15
DW_CFA_VAL_EXPRESSION = 0x16
DW_CFA_GNU_ARGS_SIZE = 0x2E
DW_CFA_GNU_NEGATIVE_OFFSET_EXTENDED = 0x2F

ADVANCES = {DW_CFA_SET_LOC: 0, 0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}
"""``DW_CFA_set_loc``, ``DW_CFA_advance_loc1``, ``2``, ``4`` and ``DW_CFA_MIPS_advance_loc8``, with
the bytes of their operand."""
CFA_RULES = frozenset(
    {
        *(DW_CFA_DEF_CFA, DW_CFA_DEF_CFA_REGISTER, DW_CFA_DEF_CFA_OFFSET),
        *(DW_CFA_DEF_CFA_EXPRESSION, DW_CFA_DEF_CFA_SF, DW_CFA_DEF_CFA_OFFSET_SF),
    }
)
REGISTER_RULES = frozenset(
    {
        *(
            DW_CFA_OFFSET_EXTENDED,
            DW_CFA_UNDEFINED,
            DW_CFA_SAME_VALUE,
            DW_CFA_REGISTER,
            DW_CFA_EXPRESSION,
            DW_CFA_OFFSET_EXTENDED_SF,
        ),
        *(
            DW_CFA_VAL_OFFSET,
            DW_CFA_VAL_OFFSET_SF,
            DW_CFA_VAL_EXPRESSION,
            DW_CFA_GNU_NEGATIVE_OFFSET_EXTENDED,
        ),
    }
)
"""Instructions whose first operand is a register."""
AARCH64_NEGATE_RA_STATES = frozenset({0x2C, 0x2D})
"""With and without the address of the signing instruction; 0x2d is also SPARC's
``DW_CFA_GNU_window_save``."""


REMEMBERED_LIMIT = 64
"""Rows on the stack of remembered rows; compilers nest one or two."""
_STEPS_A_FUNCTION = 24
_STEPS_A_BYTE = 2
"""Steps per byte of instructions; remembering a row is one byte, and takes longest."""
REGISTER_LIMIT = 256
"""Registers in a row; the largest supported architecture has some 130."""


class CallFrames:
    """The table of one section, a row at a time; parts that functions share are parsed once."""

    __slots__ = ("_commons", "_initial", "_spend", "section")

    def __init__(
        self, section: CallFrameSection, spend: Callable[[int], bool] = lambda _: True
    ) -> None:
        """``spend``: counts the steps of a lookup, and returns whether any are left."""
        self.section = section
        self._spend = spend
        self._commons: dict[int, CommonInformation] = {}
        self._initial: dict[int, _State] = {}

    def function(self, offset: int) -> FrameDescription:
        """Return the FDE at ``offset`` of the section.

        Raises:
            DwarfError: there is none, or it or its CIE is malformed or of an unknown kind.
            MemoryReadError: it could not be read.
        """
        if not self._spend(_STEPS_A_FUNCTION):
            raise self.section.fail("the walk's step budget for tables is exhausted", offset)
        return read_frame_description(self.section, offset, self._commons)

    def row(self, function: FrameDescription, address: Svma) -> CallFrameRow:
        """Return the row for ``address``, which must be in ``function``.

        Raises:
            DwarfError: an instruction before it is malformed or unknown, or the CFA is not defined.
        """
        if address not in function:
            raise self.section.fail(f"the FDE does not describe {address:#x}", function.offset)
        table = self._table(function)
        for end in table.run():
            if address < end:
                return table.row(end)
        return table.row(function.end)

    def rows(self, function: FrameDescription) -> Iterator[CallFrameRow]:
        """Yield every row of ``function``, by address, except empty ones.

        Raises:
            DwarfError: as :meth:`row`.
        """
        table = self._table(function)
        for end in table.run():
            if table.location < end:
                yield table.row(end)
        if table.location < function.end:
            yield table.row(function.end)

    def _table(self, function: FrameDescription) -> _Table:
        common = function.common
        initial = self._initial.get(common.offset)
        if initial is None:
            if not self._spend(_STEPS_A_BYTE * len(common.program)):
                raise self.section.fail(
                    "the walk's step budget for tables is exhausted", common.offset
                )
            start = _Table(
                self.section, common, _Program.of_common(self.section, common), 0, _State()
            )
            for _ in start.run():
                raise self.section.fail("CIE with an advance among its instructions", common.offset)
            initial = self._initial[common.offset] = start.state
        program = _Program.of_function(self.section, function)
        if not self._spend(_STEPS_A_BYTE * len(program.code)):
            raise self.section.fail(
                "the walk's step budget for tables is exhausted", function.offset
            )
        return _Table(self.section, common, program, function.start, initial)


@dataclass(slots=True)
class _State:
    """A row being built. The CFA's three parts are separate, as instructions change them."""

    register: int | None = None
    offset: int = 0
    expression: bytes | None = None
    registers: dict[int, RegisterRule] = field(default_factory=dict)
    ra_signed: bool = False

    def copy(self) -> _State:
        return _State(
            self.register, self.offset, self.expression, self.registers.copy(), self.ra_signed
        )


@dataclass(frozen=True, slots=True)
class _Program:
    """Instructions, and their location."""

    code: bytes
    address: int
    """The Svma of the first one, which ``DW_CFA_set_loc`` may be relative to."""
    source: str
    """Their name in errors."""

    @classmethod
    def of_common(cls, section: CallFrameSection, common: CommonInformation) -> _Program:
        source = f"{section.source}, instructions of CIE {common.offset:#x}"
        return cls(common.program, section.address + common.program_offset, source)

    @classmethod
    def of_function(cls, section: CallFrameSection, function: FrameDescription) -> _Program:
        source = f"{section.source}, instructions of FDE {function.offset:#x}"
        return cls(function.program, section.address + function.program_offset, source)


class _Table:
    """One run through a program; ``location`` is the start of the present row."""

    __slots__ = (
        "_common",
        "_initial",
        "_program",
        "_remembered",
        "_section",
        "location",
        "state",
    )

    def __init__(
        self,
        section: CallFrameSection,
        common: CommonInformation,
        program: _Program,
        location: int,
        initial: _State,
    ) -> None:
        self._section = section
        self._common = common
        self._program = program
        self.location = location
        self.state = initial.copy()
        self._remembered: list[_State] = []
        self._initial = initial.registers

    def row(self, end: int) -> CallFrameRow:
        """Return the present row, which ends at ``end``."""
        state = self.state
        rule: CfaRule
        if state.expression is not None:
            rule = CfaExpression(state.expression)
        elif state.register is not None:
            rule = CfaRegister(state.register, state.offset)
        else:
            raise DwarfError(
                "no instruction defines the CFA", source=self._program.source, offset=0
            )
        return CallFrameRow(
            start=Svma(self.location),
            end=Svma(end),
            cfa=rule,
            registers=tuple(sorted(state.registers.items(), key=lambda item: item[0])),
            return_column=self._common.return_column,
            is_signal_frame=self._common.is_signal_frame,
            ra_signed=state.ra_signed,
        )

    def run(self) -> Iterator[int]:
        """Yield each address at which a row ends, while :meth:`row` returns that row."""
        program = self._program.code
        cursor = ByteCursor(program, source=self._program.source, error=DwarfError)
        alignment = self._common.data_alignment
        size = len(program)
        while cursor.offset < size:
            code = program[cursor.offset]
            cursor.offset += 1
            low = code & DW_CFA_LOW_BITS
            high = code & ~DW_CFA_LOW_BITS
            if high == DW_CFA_ADVANCE_LOC:
                location = self._advanced(low)
                yield location
                self.location = location
            elif high == DW_CFA_OFFSET:
                self._set(cursor, low, Offset(cursor.uleb128() * alignment))
            elif high == DW_CFA_RESTORE:
                self._restore(low)
            elif code in ADVANCES:
                location = self._new_location(cursor, code)
                yield location
                self.location = location
            elif code in CFA_RULES:
                self._change_cfa(cursor, code)
            elif code in REGISTER_RULES:
                self._change_register(cursor, code)
            else:
                self._change_row(cursor, code)

    def _advanced(self, delta: int) -> int:
        mask = (1 << (8 * self._common.address_size)) - 1
        return (self.location + delta * self._common.code_alignment) & mask

    def _new_location(self, cursor: ByteCursor, code: int) -> int:
        little = self._section.little_endian
        if code != DW_CFA_SET_LOC:
            return self._advanced(cursor.unsigned(ADVANCES[code], little_endian=little))
        return read_pointer(
            cursor,
            self._common.pointer_encoding,
            self._program.address,
            pointer_size=self._common.address_size,
            little_endian=little,
        )

    def _change_cfa(self, cursor: ByteCursor, code: int) -> None:
        state, alignment = self.state, self._common.data_alignment
        if code in (DW_CFA_DEF_CFA, DW_CFA_DEF_CFA_SF):
            state.register = cursor.uleb128()
            state.expression = None
            is_factored = code == DW_CFA_DEF_CFA_SF
            state.offset = cursor.sleb128() * alignment if is_factored else cursor.uleb128()
        elif code == DW_CFA_DEF_CFA_REGISTER:
            # After an expression the last offset applies again, as in GCC's unwinder.
            state.register = cursor.uleb128()
            state.expression = None
        elif code == DW_CFA_DEF_CFA_OFFSET:
            state.offset = cursor.uleb128()
        elif code == DW_CFA_DEF_CFA_OFFSET_SF:
            state.offset = cursor.sleb128() * alignment
        else:
            state.expression = cursor.take(cursor.uleb128())

    def _change_register(self, cursor: ByteCursor, code: int) -> None:
        alignment = self._common.data_alignment
        register = cursor.uleb128()
        rule: RegisterRule
        if code == DW_CFA_OFFSET_EXTENDED:
            rule = Offset(cursor.uleb128() * alignment)
        elif code == DW_CFA_OFFSET_EXTENDED_SF:
            rule = Offset(cursor.sleb128() * alignment)
        elif code == DW_CFA_GNU_NEGATIVE_OFFSET_EXTENDED:
            rule = Offset(-cursor.uleb128() * alignment)
        elif code == DW_CFA_VAL_OFFSET:
            rule = ValueOffset(cursor.uleb128() * alignment)
        elif code == DW_CFA_VAL_OFFSET_SF:
            rule = ValueOffset(cursor.sleb128() * alignment)
        elif code == DW_CFA_REGISTER:
            rule = InOtherRegister(cursor.uleb128())
        elif code == DW_CFA_EXPRESSION:
            rule = Expression(cursor.take(cursor.uleb128()))
        elif code == DW_CFA_VAL_EXPRESSION:
            rule = ValueExpression(cursor.take(cursor.uleb128()))
        else:
            rule = Undefined() if code == DW_CFA_UNDEFINED else SameValue()
        self._set(cursor, register, rule)

    def _change_row(self, cursor: ByteCursor, code: int) -> None:
        if code == DW_CFA_REMEMBER_STATE:
            if len(self._remembered) >= REMEMBERED_LIMIT:
                raise cursor.fail(f"more than {REMEMBERED_LIMIT} rows remembered")
            self._remembered.append(self.state.copy())
        elif code == DW_CFA_RESTORE_STATE:
            if not self._remembered:
                raise cursor.fail("restored a row without a remembered one")
            self.state = self._remembered.pop()
        elif code == DW_CFA_RESTORE_EXTENDED:
            self._restore(cursor.uleb128())
        elif code == DW_CFA_GNU_ARGS_SIZE:
            cursor.uleb128()  # only needed to throw exceptions through the frame
        elif code in AARCH64_NEGATE_RA_STATES and self._section.arch.is_arm64:
            self.state.ra_signed = not self.state.ra_signed
        elif code != DW_CFA_NOP:
            raise cursor.fail(f"unknown call-frame instruction {code:#04x}")

    def _set(self, cursor: ByteCursor, register: int, rule: RegisterRule) -> None:
        registers = self.state.registers
        if len(registers) >= REGISTER_LIMIT and register not in registers:
            raise cursor.fail(f"more than {REGISTER_LIMIT} registers in a row")
        registers[register] = rule

    def _restore(self, register: int) -> None:
        rule = self._initial.get(register)
        if rule is None:
            self.state.registers.pop(register, None)
        else:
            self.state.registers[register] = rule
