"""Stacks of the calling process, with rules and names cached between captures."""
