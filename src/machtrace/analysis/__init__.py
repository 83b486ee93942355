"""What can be said of many stacks together."""
