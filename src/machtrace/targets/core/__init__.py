"""Mach-O and ELF core files."""
