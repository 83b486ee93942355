"""Writers of the formats that the package reads: Mach-O, metadata, cores, memory."""
