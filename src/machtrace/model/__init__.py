"""The values that pass between stages; immutable, and importing only machtrace.errors."""
