"""Swift names of all versions of the mangling."""
