"""Readers of other programs' profiles."""
