"""DWARF call-frame information: bytes in, rows out. Knows no container format."""
