"""Constants of entries of symbol tables, under the names of Apple's headers.

Sources: ``mach-o/nlist.h``, ``mach-o/stab.h``.
"""

from __future__ import annotations

# --- mach-o/nlist.h ---

N_STAB = 0xE0
N_PEXT = 0x10
N_TYPE = 0x0E
N_EXT = 0x01
N_UNDF = 0x0
N_ABS = 0x2
N_INDR = 0xA
N_PBUD = 0xC
N_SECT = 0xE
N_ARM_THUMB_DEF = 0x0008
REDACTED_NAME = b"<redacted>"
"""What a shared cache calls symbols that were local (Libc, ``gen/backtrace.c``)."""

# --- mach-o/stab.h ---

STAB_NAMES = {
    0x20: "GSYM",
    0x22: "FNAME",
    0x24: "FUN",
    0x26: "STSYM",
    0x28: "LCSYM",
    0x2A: "MAIN",
    0x2E: "BNSYM",
    0x30: "PC",
    0x32: "AST",
    0x3A: "MAC_UNDEF",
    0x3C: "OPT",
    0x40: "RSYM",
    0x44: "SLINE",
    0x46: "DSLINE",
    0x48: "BSLINE",
    0x4E: "ENSYM",
    0x60: "SSYM",
    0x64: "SO",
    0x66: "OSO",
    0x68: "LIB",
    0x80: "LSYM",
    0x82: "BINCL",
    0x84: "SOL",
    0x86: "PARAMS",
    0x88: "VERSION",
    0x8A: "OLEVEL",
    0xA0: "PSYM",
    0xA2: "EINCL",
    0xA4: "ENTRY",
    0xC0: "LBRAC",
    0xC2: "EXCL",
    0xE0: "RBRAC",
    0xE2: "BCOMM",
    0xE4: "ECOMM",
    0xE8: "ECOML",
    0xFE: "LENG",
}
"""By ``n_type``, without their ``N_``."""
