"""Jobs over many segments, in one process or on many machines; others distribute the work."""
