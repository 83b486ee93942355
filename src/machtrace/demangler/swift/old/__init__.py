"""Swift names of Swift 3 and earlier."""
