"""Numbers of the call-frame instructions (DWARF 5, section 7.24, and vendors' extensions).

``DW_CFA_GNU_*`` are described with ``.eh_frame`` in the Linux Standard Base, Core, section 10.6.1;
``DW_CFA_AARCH64_*`` in *DWARF for the Arm 64-bit Architecture*.
"""

from __future__ import annotations

DW_CFA_LOW_BITS = 0x3F
"""The operand inside the first three instructions, whose two high bits tell them."""
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
        *(DW_CFA_OFFSET_EXTENDED, DW_CFA_UNDEFINED, DW_CFA_SAME_VALUE, DW_CFA_REGISTER, DW_CFA_EXPRESSION, DW_CFA_OFFSET_EXTENDED_SF),
        *(DW_CFA_VAL_OFFSET, DW_CFA_VAL_OFFSET_SF, DW_CFA_VAL_EXPRESSION, DW_CFA_GNU_NEGATIVE_OFFSET_EXTENDED),
    }
)
"""Those whose first operand is a register."""
AARCH64_NEGATE_RA_STATES = frozenset({0x2C, 0x2D})
"""With and without the address of the signing instruction; 0x2d is also
``DW_CFA_GNU_window_save``, of SPARC."""
