"""Engines: each applies a function to parts, and yields the answers in any order."""
