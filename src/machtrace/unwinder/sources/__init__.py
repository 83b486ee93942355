"""The sources of unwind rules, and their order for Mach-O and ELF images."""
