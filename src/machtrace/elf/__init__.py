"""ELF, as far as Linux processes need it: bytes in, tables out. No files, no processes."""
