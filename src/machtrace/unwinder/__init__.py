"""From registers, memory and unwind rules to return addresses, without files or processes."""
