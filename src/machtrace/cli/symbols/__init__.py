"""The commands machtrace symbols: the symbol store."""
