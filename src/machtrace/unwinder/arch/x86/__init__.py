"""Registers, decoder and instruction analysis of x86, of 32 and 64 bits."""
