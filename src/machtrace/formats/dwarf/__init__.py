"""DWARF call-frame information: bytes in, rows out, whatever file format holds it."""
