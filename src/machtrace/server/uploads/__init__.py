"""Symbols that clients send: whole files, files in chunks, and forms."""
