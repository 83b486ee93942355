"""Registers, decoder and instruction analysis of AArch64."""
