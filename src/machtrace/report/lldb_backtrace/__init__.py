"""What lldb's ``bt`` prints, with its usual ``frame-format`` and ``thread-format``.

Source: lldb, *Frame and Thread Format*.
"""
