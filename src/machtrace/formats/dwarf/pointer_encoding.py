"""Encoded pointers of ``.eh_frame`` (Linux Standard Base, Core, section 10.5: ``DW_EH_PE_*``)."""

from __future__ import annotations

from functools import cache
from typing import Literal

from machtrace.formats.cursor import ByteCursor
from machtrace.frozen import dataclass

OMIT = 0xFF
"""No pointer is present."""

ABSOLUTE = 0x00
"""Both an application (no base) and a form (as wide as a pointer)."""

FORM = 0x0F
"""The half of an encoding for the form of the number."""

_INDIRECT = 0x80
_APPLICATION = 0x70
_PC_RELATIVE = 0x10
_FUNCTION_RELATIVE = 0x40

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
class PointerForm:
    """A decoded encoding that can be read."""

    size: int | None
    """In bytes; None for a LEB128."""
    signed: bool
    application: int
    """``DW_EH_PE_pcrel`` and so on; 0 is none."""
    is_indirect: bool
    """Whether the result is the address of the actual pointer."""

    @property
    def is_absolute(self) -> bool:
        """Whether no base is added."""
        return self.application == ABSOLUTE

    @property
    def is_relative_to_itself(self) -> bool:
        """Whether its own address is added: ``DW_EH_PE_pcrel``."""
        return self.application == _PC_RELATIVE


@cache
def pointer_form(encoding: int, pointer_size: int) -> PointerForm | None:
    """Decode ``encoding``; return None if it is :data:`OMIT` or unknown.

    ``DW_EH_PE_aligned`` is unknown: its length depends on its address, and no linker writes it.
    """
    application, form = encoding & _APPLICATION, encoding & FORM
    if encoding == OMIT or application > _FUNCTION_RELATIVE:
        return None
    indirect = bool(encoding & _INDIRECT)
    if form in (_ULEB128, _SLEB128):
        return PointerForm(None, form == _SLEB128, application, indirect)
    fixed = _FIXED.get(form)
    if fixed is None:
        return None
    return PointerForm(fixed[0] or pointer_size, fixed[1], application, indirect)


def read_number(cursor: ByteCursor, form: PointerForm, *, little_endian: bool) -> int:
    """Read the number at ``cursor``, without a base.

    Raises:
        DwarfError: it is cut short.
    """
    if form.size is None:
        return cursor.sleb128() if form.signed else cursor.uleb128()
    order: Literal["little", "big"] = "little" if little_endian else "big"
    return int.from_bytes(cursor.take(form.size), order, signed=form.signed)


def skip_pointer(cursor: ByteCursor, encoding: int, *, pointer_size: int) -> None:
    """Skip a pointer, whatever its base.

    Raises:
        DwarfError: it is cut short, or of an unknown encoding.
    """
    if encoding != OMIT:
        read_number(cursor, _known_form(cursor, encoding, pointer_size), little_endian=True)


def read_pointer(
    cursor: ByteCursor,
    encoding: int,
    here: int,
    *,
    pointer_size: int,
    little_endian: bool = True,
) -> int:
    """Read the address at ``cursor``, as wide as a pointer.

    ``here``: the address of the byte at offset 0 of the cursor.

    Raises:
        DwarfError: it is cut short, omitted, indirect, or relative to something other than its own
            address, which no compiler for the supported machines does with addresses of code.
    """
    form = _known_form(cursor, encoding, pointer_size)
    if form.is_indirect or not (form.is_absolute or form.is_relative_to_itself):
        raise cursor.fail(f"unsupported pointer encoding {encoding:#04x} of a code address")
    base = here + cursor.offset if form.is_relative_to_itself else 0
    number = read_number(cursor, form, little_endian=little_endian)
    return (number + base) & ((1 << (8 * pointer_size)) - 1)


def _known_form(cursor: ByteCursor, encoding: int, pointer_size: int) -> PointerForm:
    form = pointer_form(encoding, pointer_size)
    if form is None:
        raise cursor.fail(f"unknown pointer encoding {encoding:#04x}")
    return form
