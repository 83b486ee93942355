"""Registers, decoders and instruction analysis of 32-bit arm, ARM and Thumb."""
