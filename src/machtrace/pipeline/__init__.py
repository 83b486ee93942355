"""One target in, call stacks out: capture, unwind and symbolicate."""
