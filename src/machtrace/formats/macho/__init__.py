"""Mach-O images and cores."""
