"""Observed calls, from spools of programs whose calls are known."""
