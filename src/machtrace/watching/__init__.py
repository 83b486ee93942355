"""Watches processes, and captures stacks while something is wrong."""
