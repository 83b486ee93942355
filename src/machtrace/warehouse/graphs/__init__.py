"""Graphs of stored stacks: columns to draw, functions with callers and callees, hangs, owners."""
