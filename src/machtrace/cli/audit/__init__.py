"""``machtrace audit``: which code gets which private data."""
