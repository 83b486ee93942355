"""A linker for 32-bit Mach-O programs."""
