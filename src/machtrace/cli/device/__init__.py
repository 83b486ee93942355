"""The commands machtrace device."""
