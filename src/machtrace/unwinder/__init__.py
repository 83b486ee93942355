"""From registers and memory to return addresses. Functions of bytes: no files, no processes."""
