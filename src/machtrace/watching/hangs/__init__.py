"""Hangs of threads: decided from polls, with stacks taken meanwhile."""
