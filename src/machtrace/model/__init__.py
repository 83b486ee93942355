"""The immutable values that pass between stages."""
