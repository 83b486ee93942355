"""Runs the instructions of call-frame information to the row for one address (DWARF 5, 6.4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from machtrace.binary import ByteCursor
from machtrace.dwarf import cfi_opcodes as cfa
from machtrace.dwarf.cfi_records import CallFrameSection, CommonInformation, FrameDescription
from machtrace.dwarf.cfi_rows import (
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
from machtrace.dwarf.pointer_encoding import read_pointer
from machtrace.errors import DwarfError
from machtrace.model.address import Svma

REMEMBERED_LIMIT = 64
"""Rows remembered at once; compilers nest one or two deep."""
REGISTER_LIMIT = 256
"""Registers in a row; the largest machine here has some 130."""


def row_at(section: CallFrameSection, function: FrameDescription, address: Svma) -> CallFrameRow:
    """The row for ``address``, which ``function`` must hold.

    Raises:
        DwarfError: an instruction before it is malformed or unknown, or nothing says where the
            CFA is.
    """
    if address not in function:
        raise section.fail(f"the FDE does not describe {address:#x}", function.offset)
    table = _Table(section, function)
    for end in table.boundaries():
        if address < end:
            return table.row(end)
    return table.row(function.end)


def rows(section: CallFrameSection, function: FrameDescription) -> Iterator[CallFrameRow]:
    """Every row of ``function``, by address; those of no bytes are left out.

    Raises:
        DwarfError: as :func:`row_at`.
    """
    table = _Table(section, function)
    for end in table.boundaries():
        if table.location < end:
            yield table.row(end)
    if table.location < function.end:
        yield table.row(function.end)


@dataclass(slots=True)
class _State:
    """A row while it is made. The CFA's three parts stay apart, as instructions change them."""

    register: int | None
    offset: int
    expression: bytes | None
    registers: dict[int, RegisterRule]
    ra_signed: bool

    def copy(self) -> _State:
        return _State(
            self.register, self.offset, self.expression, dict(self.registers), self.ra_signed
        )


class _Table:
    """One run through an FDE's instructions; ``location`` is where the present row starts."""

    __slots__ = (
        "_common",
        "_function",
        "_here",
        "_initial",
        "_remembered",
        "_section",
        "_state",
        "location",
    )

    def __init__(self, section: CallFrameSection, function: FrameDescription) -> None:
        self._section = section
        self._function = function
        self._common: CommonInformation = function.common
        self.location: int = function.start
        self._state = _State(None, 0, None, {}, ra_signed=False)
        self._remembered: list[_State] = []
        self._initial: dict[int, RegisterRule] = {}
        common = function.common
        self._here = section.address + common.program_offset
        for _ in self._run(common.program, "CIE", common.offset):
            raise section.fail("CIE with an advance among its instructions", common.offset)
        self._initial = dict(self._state.registers)

    def boundaries(self) -> Iterator[int]:
        """Each address at which a row ends, while that row can be had from :meth:`row`."""
        function = self._function
        self._here = self._section.address + function.program_offset
        return self._run(function.program, "FDE", function.offset)

    def row(self, end: int) -> CallFrameRow:
        """The present row, which ends at ``end``."""
        state = self._state
        rule: CfaRule
        if state.expression is not None:
            rule = CfaExpression(state.expression)
        elif state.register is not None:
            rule = CfaRegister(state.register, state.offset)
        else:
            raise self._section.fail("nothing says where the CFA is", self._function.offset)
        return CallFrameRow(
            start=Svma(self.location),
            end=Svma(end),
            cfa=rule,
            registers=tuple(sorted(state.registers.items(), key=lambda item: item[0])),
            return_column=self._common.return_column,
            is_signal_frame=self._common.is_signal_frame,
            ra_signed=state.ra_signed,
        )

    def _run(self, program: bytes, kind: str, offset: int) -> Iterator[int]:
        cursor = ByteCursor(
            program,
            source=f"{self._section.source}, instructions of {kind} {offset:#x}",
            error=DwarfError,
        )
        alignment = self._common.data_alignment
        size = len(program)
        while cursor.offset < size:
            code = program[cursor.offset]
            cursor.offset += 1
            low = code & cfa.LOW_BITS
            high = code & ~cfa.LOW_BITS
            if high == cfa.ADVANCE_LOC:
                location = self._advanced(low)
                yield location
                self.location = location
            elif high == cfa.OFFSET:
                self._set(cursor, low, Offset(cursor.uleb128() * alignment))
            elif high == cfa.RESTORE:
                self._restore(low)
            elif code in cfa.ADVANCES:
                location = self._new_location(cursor, code)
                yield location
                self.location = location
            elif code in cfa.CFA_RULES:
                self._change_cfa(cursor, code)
            elif code in cfa.REGISTER_RULES:
                self._change_register(cursor, code)
            else:
                self._change_row(cursor, code)

    def _advanced(self, delta: int) -> int:
        mask = (1 << (8 * self._common.address_size)) - 1
        return (self.location + delta * self._common.code_alignment) & mask

    def _new_location(self, cursor: ByteCursor, code: int) -> int:
        little = self._section.little_endian
        if code != cfa.SET_LOC:
            return self._advanced(cursor.unsigned(cfa.ADVANCES[code], little_endian=little))
        return read_pointer(
            cursor,
            self._common.pointer_encoding,
            self._here,
            pointer_size=self._common.address_size,
            little_endian=little,
        )

    def _change_cfa(self, cursor: ByteCursor, code: int) -> None:
        state, alignment = self._state, self._common.data_alignment
        if code in (cfa.DEF_CFA, cfa.DEF_CFA_SF):
            state.register = cursor.uleb128()
            state.expression = None
            is_factored = code == cfa.DEF_CFA_SF
            state.offset = cursor.sleb128() * alignment if is_factored else cursor.uleb128()
        elif code == cfa.DEF_CFA_REGISTER:
            # After an expression the last offset counts again, as in GCC's unwinder.
            state.register = cursor.uleb128()
            state.expression = None
        elif code == cfa.DEF_CFA_OFFSET:
            state.offset = cursor.uleb128()
        elif code == cfa.DEF_CFA_OFFSET_SF:
            state.offset = cursor.sleb128() * alignment
        else:
            state.expression = cursor.take(cursor.uleb128())

    def _change_register(self, cursor: ByteCursor, code: int) -> None:
        alignment = self._common.data_alignment
        register = cursor.uleb128()
        rule: RegisterRule
        if code == cfa.OFFSET_EXTENDED:
            rule = Offset(cursor.uleb128() * alignment)
        elif code == cfa.OFFSET_EXTENDED_SF:
            rule = Offset(cursor.sleb128() * alignment)
        elif code == cfa.GNU_NEGATIVE_OFFSET_EXTENDED:
            rule = Offset(-cursor.uleb128() * alignment)
        elif code == cfa.VAL_OFFSET:
            rule = ValueOffset(cursor.uleb128() * alignment)
        elif code == cfa.VAL_OFFSET_SF:
            rule = ValueOffset(cursor.sleb128() * alignment)
        elif code == cfa.REGISTER:
            rule = InOtherRegister(cursor.uleb128())
        elif code == cfa.EXPRESSION:
            rule = Expression(cursor.take(cursor.uleb128()))
        elif code == cfa.VAL_EXPRESSION:
            rule = ValueExpression(cursor.take(cursor.uleb128()))
        else:
            rule = Undefined() if code == cfa.UNDEFINED else SameValue()
        self._set(cursor, register, rule)

    def _change_row(self, cursor: ByteCursor, code: int) -> None:
        if code == cfa.REMEMBER_STATE:
            if len(self._remembered) >= REMEMBERED_LIMIT:
                raise cursor.fail(f"more than {REMEMBERED_LIMIT} rows remembered")
            self._remembered.append(self._state.copy())
        elif code == cfa.RESTORE_STATE:
            if not self._remembered:
                raise cursor.fail("no row was remembered")
            self._state = self._remembered.pop()
        elif code == cfa.RESTORE_EXTENDED:
            self._restore(cursor.uleb128())
        elif code == cfa.GNU_ARGS_SIZE:
            cursor.uleb128()  # of use only to those who throw exceptions through the frame
        elif code in cfa.AARCH64_NEGATE_RA_STATES and self._section.arch.is_arm64:
            self._state.ra_signed = not self._state.ra_signed
        elif code != cfa.NOP:
            raise cursor.fail(f"unknown call-frame instruction {code:#04x}")

    def _set(self, cursor: ByteCursor, register: int, rule: RegisterRule) -> None:
        registers = self._state.registers
        if len(registers) >= REGISTER_LIMIT and register not in registers:
            raise cursor.fail(f"more than {REGISTER_LIMIT} registers in a row")
        registers[register] = rule

    def _restore(self, register: int) -> None:
        rule = self._initial.get(register)
        if rule is None:
            self._state.registers.pop(register, None)
        else:
            self._state.registers[register] = rule
