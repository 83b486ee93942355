"""Pointers of a Mach-O image: rebases, binds, chained fixups and relocations."""
