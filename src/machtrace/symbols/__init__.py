"""Names of functions in one image."""
