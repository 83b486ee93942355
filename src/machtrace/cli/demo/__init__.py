"""The command machtrace demo, and the process with threads that it captures."""
