"""Encoded pointers of ``.eh_frame`` (Linux Standard Base, Core, section 10.5: ``DW_EH_PE_*``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from machtrace.binary import ByteCursor
from machtrace.errors import DwarfError

OMIT = 0xFF
"""There is no pointer."""

ABSOLUTE = 0x00
"""Both an application (no base) and a form (as wide as a pointer)."""

_INDIRECT = 0x80
_FORM = 0x0F
_APPLICATION = 0x70
_PC_RELATIVE, _TEXT_RELATIVE, _DATA_RELATIVE = 0x10, 0x20, 0x30

_ULEB128, _SLEB128 = 0x01, 0x09
_FIXED = {
    # Size (0: that of a pointer) and signedness.
    0x00: (0, False),
    0x02: (2, False),
    0x03: (4, False),
    0x04: (8, False),
    0x08: (0, True),
    0x0A: (2, True),
    0x0B: (4, True),
    0x0C: (8, True),
}


@dataclass(frozen=True, slots=True)
class PointerBases:
    """What relative pointers are relative to, as Svmas."""

    here: int
    """Of the byte at offset 0 of the cursor that reads them: a pointer's own place follows."""
    text: int = 0
    data: int = 0


@dataclass(frozen=True, slots=True)
class PointerForm:
    """An encoding taken apart; only those that can be decoded exist."""

    size: int | None
    """In bytes; None where the pointer is a LEB128."""
    signed: bool
    application: int
    """``DW_EH_PE_pcrel`` and so on; 0 is none."""
    is_indirect: bool
    """Whether the result is the address of the pointer that is meant."""

    def base(self, bases: PointerBases, offset: int) -> int:
        """What to add to the pointer at ``offset`` of a cursor."""
        if self.application == _PC_RELATIVE:
            return bases.here + offset
        if self.application == _TEXT_RELATIVE:
            return bases.text
        return bases.data if self.application == _DATA_RELATIVE else 0


def pointer_form(encoding: int, pointer_size: int) -> PointerForm | None:
    """What ``encoding`` means; None where it is :data:`OMIT` or nothing that is known.

    ``DW_EH_PE_funcrel`` and ``DW_EH_PE_aligned`` are not: no function's own address can be
    relative to it, and no linker writes the other.
    """
    application, form = encoding & _APPLICATION, encoding & _FORM
    if encoding == OMIT or application > _DATA_RELATIVE:
        return None
    indirect = bool(encoding & _INDIRECT)
    if form in (_ULEB128, _SLEB128):
        return PointerForm(None, form == _SLEB128, application, indirect)
    fixed = _FIXED.get(form)
    if fixed is None:
        return None
    return PointerForm(fixed[0] or pointer_size, fixed[1], application, indirect)


def read_number(cursor: ByteCursor, form: PointerForm, *, little_endian: bool) -> int:
    """The number at ``cursor``, with nothing added to it.

    Raises:
        DwarfError: it is cut short.
    """
    if form.size is None:
        return cursor.sleb128() if form.signed else cursor.uleb128()
    order: Literal["little", "big"] = "little" if little_endian else "big"
    return int.from_bytes(cursor.take(form.size), order, signed=form.signed)


def read_pointer(
    cursor: ByteCursor,
    encoding: int,
    bases: PointerBases,
    *,
    pointer_size: int,
    little_endian: bool = True,
) -> int | None:
    """The address at ``cursor``, as wide as a pointer; None where the encoding omits it.

    The address of an indirect pointer is given, not what is stored there.

    Raises:
        DwarfError: it is cut short, or encoded in no known way.
    """
    if encoding == OMIT:
        return None
    form = pointer_form(encoding, pointer_size)
    if form is None:
        raise DwarfError(
            f"unknown pointer encoding {encoding:#04x}", source=cursor.source, offset=cursor.offset
        )
    offset = cursor.offset
    number = read_number(cursor, form, little_endian=little_endian)
    return (number + form.base(bases, offset)) & ((1 << (8 * pointer_size)) - 1)
