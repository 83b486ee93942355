"""Compilers for other systems: Mach-O and ELF files, and our own C for Darwin."""
