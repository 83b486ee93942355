"""Profiles: a snapshot of a running process at each tick."""
