"""Pages that are graphs: each has its numbers as a table, too, and works without its script."""
