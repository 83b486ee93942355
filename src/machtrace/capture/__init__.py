"""The pipeline: one target in, call stacks out."""
