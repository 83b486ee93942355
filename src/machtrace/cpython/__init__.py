"""Python functions of other processes, read from CPython's structures in their memory."""
