"""Source lines of images whose debug information is split from their linked files."""
