"""The bounds of an image's functions."""
