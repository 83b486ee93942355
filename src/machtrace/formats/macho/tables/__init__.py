"""Tables of a Mach-O image: symbols, stubs, function starts and unwind information."""
