"""Spools: the files in which the agent records calls of watched functions (docs/agent-spool.md)."""
