"""Pages of a server: whole without a script, one style sheet, nothing from elsewhere."""
