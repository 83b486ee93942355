"""Calls that were observed in running processes, judged by consent and policies."""
