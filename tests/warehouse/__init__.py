"""The warehouse."""
