"""Processes of this Linux machine, by ptrace and /proc."""
