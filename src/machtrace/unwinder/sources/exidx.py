"""Rules from the exception tables of 32-bit arm's ELF images: ``.ARM.exidx``.

They serve exceptions, and so are exact at calls. Most programs of this architecture have no other
tables, except for debuggers.

Source of the instructions: *Exception Handling ABI for the Arm Architecture*, section 10.3, table
4. They are run symbolically: the virtual stack pointer starts as sp and ends as the caller's sp, so
each location has an offset from a register, or, after a load of the stack pointer itself, from a
word of the stack.
"""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from machtrace.errors import ElfError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.dwarf import operations
from machtrace.formats.elf.contents import ElfContents
from machtrace.model.address import Svma
from machtrace.model.arch import ARM_DOUBLES
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Cfa,
    Claims,
    ExpressionValue,
    InRegister,
    Recovery,
    RegisterOffset,
    UnwindRule,
)

if TYPE_CHECKING:
    from machtrace.formats.elf.exidx import ExceptionIndex

_SP, _LR, _PC = 13, 14, 15
_WORD, _DOUBLE = 4, 8
_FINISH = 0xB0
_RESERVED_BASES = (_SP, _PC)

_Base = int | bytes
"""A register, or an expression for an address."""


class RefusedError(Exception):
    """The instructions state that this frame cannot be unwound."""


def rule_of_instructions(instructions: bytes, source: str) -> UnwindRule:
    """Return the rule that EHABI instructions state.

    Raises:
        ElfError: one is spare, or cut short.
        RefusedError: they refuse.
    """
    return _Run(instructions, source).rule()


class _Run:
    def __init__(self, instructions: bytes, source: str) -> None:
        self._cursor = ByteCursor(instructions, source=source, error=ElfError)
        self._base: _Base = _SP
        self._offset = 0
        self._saved: dict[int, tuple[_Base, int]] = {}
        """The locations of registers, by number."""

    def rule(self) -> UnwindRule:
        cursor = self._cursor
        while not cursor.at_end:
            code = cursor.unsigned(1)
            if code == _FINISH:
                break
            self._one(code)
        return_address = self._saved.pop(_PC, None)
        if return_address is None:  # the saved value is both the caller's lr and the return address
            return_address = self._saved.get(_LR)
        recovery: Recovery = InRegister(_LR)
        if return_address is not None:
            recovery = self._recovery(return_address)
        registers = tuple(
            (number, self._recovery(location)) for number, location in sorted(self._saved.items())
        )
        return UnwindRule(self._cfa(), recovery, registers)

    def _cfa(self) -> Cfa:
        if isinstance(self._base, int):
            return RegisterOffset(self._base, self._offset)
        return ExpressionValue(_plus(self._base, self._offset))

    def _recovery(self, location: tuple[_Base, int]) -> Recovery:
        base, offset = location
        if base == self._base:
            return AtCfa(offset - self._offset)
        return AtExpression(_expression(base, offset))

    def _one(self, code: int) -> None:
        match code >> 4:
            case 0b0000 | 0b0001 | 0b0010 | 0b0011:
                self._offset += ((code & 0x3F) << 2) + _WORD
            case 0b0100 | 0b0101 | 0b0110 | 0b0111:
                self._offset -= ((code & 0x3F) << 2) + _WORD
            case 0b1000:
                mask = (code & 0xF) << 8 | self._cursor.unsigned(1)
                if not mask:
                    raise RefusedError
                self._pop([number + 4 for number in range(12) if mask >> number & 1])
            case 0b1001:
                if code & 0xF in _RESERVED_BASES:
                    raise self._spare(code)
                self._move_to(code & 0xF)
            case 0b1010:
                self._pop([*range(4, 5 + (code & 7)), *([_LR] if code & 8 else [])])
            case 0b1011:
                self._various(code)
            case _:
                self._coprocessor(code)

    def _various(self, code: int) -> None:
        if code & 8:  # pop d8 to d8+n, as FSTMFDX stores them
            self._pop_doubles(8, (code & 7) + 1, padding=_WORD)
            return
        match code & 7:
            case 1:
                mask = self._cursor.unsigned(1)
                if not 0 < mask < 1 << 4:
                    raise self._spare(code)
                self._pop([number for number in range(4) if mask >> number & 1])
            case 2:
                self._offset += 0x204 + (self._cursor.uleb128() << 2)
            case 3:
                first, more = divmod(self._cursor.unsigned(1), 16)
                self._pop_doubles(first, more + 1, padding=_WORD)
            case 4:  # a return address authentication code, which is not tracked
                self._offset += _WORD
            case _:
                raise self._spare(code)

    def _coprocessor(self, code: int) -> None:
        match code >> 3:
            case 0b11001 if code & 7 in (0, 1):
                first, more = divmod(self._cursor.unsigned(1), 16)
                self._pop_doubles(first + (0 if code & 1 else 16), more + 1)
            case 0b11010:
                self._pop_doubles(8, (code & 7) + 1)
            case 0b11000:
                self._intel_wireless(code & 7)
            case _:
                raise self._spare(code)

    def _intel_wireless(self, code: int) -> None:
        """Skip registers of an extension that is not tracked."""
        if code == 7:  # noqa: PLR2004 - control registers
            mask = self._cursor.unsigned(1)
            if not 0 < mask < 1 << 4:
                raise self._spare(0xC7)
            self._offset += _WORD * mask.bit_count()
        elif code == 6:  # noqa: PLR2004 - from which, and how many
            self._offset += _DOUBLE * (self._cursor.unsigned(1) % 16 + 1)
        else:
            self._offset += _DOUBLE * (code + 1)

    def _pop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._saved[number] = (self._base, self._offset)
            self._offset += _WORD
        if _SP in numbers:
            base, offset = self._saved.pop(_SP)
            self._base = _expression(base, offset) + bytes((operations.DEREF,))
            self._offset = 0

    def _move_to(self, number: int) -> None:
        """Copy a register's present value to the stack pointer."""
        saved = self._saved.get(number)
        if saved is None:
            self._base = number
        else:
            self._base = _expression(*saved) + bytes((operations.DEREF,))
        self._offset = 0

    def _pop_doubles(self, first: int, count: int, *, padding: int = 0) -> None:
        if first + count > len(ARM_DOUBLES):
            raise self._cursor.fail(f"invalid register d{first + count - 1} popped")
        for number in range(first, first + count):
            self._saved[ARM_DOUBLES[number]] = (self._base, self._offset)
            self._offset += _DOUBLE
        self._offset += padding

    def _spare(self, code: int) -> Exception:
        return self._cursor.fail(f"spare unwinding instruction {code:#04x}")


def _expression(base: _Base, offset: int) -> bytes:
    if isinstance(base, int):
        return bytes((operations.BREG0 + base,)) + _sleb128(offset)
    return _plus(base, offset)


def _plus(expression: bytes, offset: int) -> bytes:
    if not offset:
        return expression
    number = pack("<i", (offset + (1 << 31)) % (1 << 32) - (1 << 31))
    return expression + bytes((operations.CONST4S,)) + number + bytes((operations.PLUS,))


def _sleb128(value: int) -> bytes:
    encoded = bytearray()
    while not -0x40 <= value < 0x40:  # noqa: PLR2004 - six bits and a sign
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value & 0x7F)
    return bytes(encoded)


CACHED_RULES = 1 << 12
"""Cached rules, by their instructions; a full cache is cleared."""


class ExceptionTableRules:
    """The exception tables of one image. A :class:`~machtrace.unwinder.rules.RuleSource`."""

    __slots__ = ("_index", "_rules")

    trust = FrameTrust.EXIDX
    claims = Claims.AT_CALLS

    def __init__(self, index: ExceptionIndex) -> None:
        self._index = index
        self._rules: dict[bytes, UnwindRule] = {}

    @classmethod
    def of_elf(cls, contents: ElfContents) -> ExceptionTableRules | None:
        """Find the tables; return None for an image without them, or not of 32-bit arm.

        Raises:
            MemoryReadError: they were not captured.
        """
        if not contents.image.arch.is_arm:
            return None
        from machtrace.formats.elf.exidx import ExceptionIndex

        index = ExceptionIndex.of_elf(contents)
        return None if index is None else cls(index)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`.

        A function that exceptions may not pass has no rule here, though it has a caller.

        Raises:
            ElfError: the entry, or what it points to, is malformed.
            MemoryReadError: what the entry points to was not captured.
        """
        del interrupted
        entry = self._index.find(lookup)
        if entry is None or entry.instructions is None:
            return None
        rule = self._rules.get(entry.instructions)
        if rule is None:
            try:
                rule = rule_of_instructions(entry.instructions, self._index.source)
            except RefusedError:
                return None
            if len(self._rules) >= CACHED_RULES:
                self._rules.clear()
            self._rules[entry.instructions] = rule
        return rule
