"""File formats: bytes in, tables out."""
