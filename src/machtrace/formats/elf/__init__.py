"""ELF images: bytes in, tables out."""
