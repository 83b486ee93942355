"""The commands machtrace symbolicate, convert and report."""
