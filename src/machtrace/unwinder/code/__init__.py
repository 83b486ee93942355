"""Instruction analysis that is the same for every architecture."""
