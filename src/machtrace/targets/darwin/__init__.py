"""Processes of this Mac, by their task ports."""
