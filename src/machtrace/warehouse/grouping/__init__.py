"""Issues of a warehouse: which stored reports are the same problem, and what people decided."""
