"""Graphs over HTTP: which stacks, and the formats of answers."""
