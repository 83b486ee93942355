"""Backtraces that debuggers, runtimes and sanitizers print, alone or in logs."""
