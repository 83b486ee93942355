"""Personal data leaves reports before they are stored, by rules that a warehouse has."""
