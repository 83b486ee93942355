"""Names of functions in a Mach-O image."""
