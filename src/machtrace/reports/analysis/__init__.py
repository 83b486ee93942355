"""What reports have in common: problems, functions, waiting threads, differences."""
