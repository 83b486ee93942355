"""Mach-O cores: reading and writing."""
