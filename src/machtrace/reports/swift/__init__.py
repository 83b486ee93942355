"""Backtraces that Swift's runtime writes when a program crashes, as text and as JSON."""
