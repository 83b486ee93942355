"""Graphs of stored stacks."""
