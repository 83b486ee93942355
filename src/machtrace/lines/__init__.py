"""Source lines and inlined calls, from debug information."""
