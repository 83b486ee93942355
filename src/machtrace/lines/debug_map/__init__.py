"""Source lines of images whose debug information is in object files."""
