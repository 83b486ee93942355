"""Registers, decoders and instruction analysis of each architecture."""
