"""Numbers of the call-frame instructions (DWARF 5, section 7.24, and vendors' extensions).

``DW_CFA_GNU_*`` are described with ``.eh_frame`` in the Linux Standard Base, Core, section 10.6.1;
``DW_CFA_AARCH64_*`` in *DWARF for the Arm 64-bit Architecture*.
"""

from __future__ import annotations

LOW_BITS = 0x3F
"""The operand inside the first three instructions, whose two high bits tell them."""
ADVANCE_LOC = 0x40
OFFSET = 0x80
RESTORE = 0xC0

NOP = 0x00
SET_LOC = 0x01
OFFSET_EXTENDED = 0x05
RESTORE_EXTENDED = 0x06
UNDEFINED = 0x07
SAME_VALUE = 0x08
REGISTER = 0x09
REMEMBER_STATE = 0x0A
RESTORE_STATE = 0x0B
DEF_CFA = 0x0C
DEF_CFA_REGISTER = 0x0D
DEF_CFA_OFFSET = 0x0E
DEF_CFA_EXPRESSION = 0x0F
EXPRESSION = 0x10
OFFSET_EXTENDED_SF = 0x11
DEF_CFA_SF = 0x12
DEF_CFA_OFFSET_SF = 0x13
VAL_OFFSET = 0x14
VAL_OFFSET_SF = 0x15
VAL_EXPRESSION = 0x16
GNU_ARGS_SIZE = 0x2E
GNU_NEGATIVE_OFFSET_EXTENDED = 0x2F

ADVANCES = {SET_LOC: 0, 0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}
"""``DW_CFA_set_loc``, ``DW_CFA_advance_loc1``, ``2``, ``4`` and ``DW_CFA_MIPS_advance_loc8``, with
the bytes of their operand."""
CFA_RULES = frozenset(
    {
        *(DEF_CFA, DEF_CFA_REGISTER, DEF_CFA_OFFSET),
        *(DEF_CFA_EXPRESSION, DEF_CFA_SF, DEF_CFA_OFFSET_SF),
    }
)
REGISTER_RULES = frozenset(
    {
        *(OFFSET_EXTENDED, UNDEFINED, SAME_VALUE, REGISTER, EXPRESSION, OFFSET_EXTENDED_SF),
        *(VAL_OFFSET, VAL_OFFSET_SF, VAL_EXPRESSION, GNU_NEGATIVE_OFFSET_EXTENDED),
    }
)
"""Those whose first operand is a register."""
AARCH64_NEGATE_RA_STATES = frozenset({0x2C, 0x2D})
"""With and without the address of the signing instruction; 0x2d is also
``DW_CFA_GNU_window_save``, of SPARC."""
