"""The commands machtrace warehouse: the stacks of a fleet in a folder."""
