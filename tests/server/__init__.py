"""A warehouse over HTTP."""
