"""What ``sample`` prints: a call graph of each thread, with counts.

Source: texts of macOS' ``sample(1)``, report version 7.
"""
