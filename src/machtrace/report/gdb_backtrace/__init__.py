"""What gdb's ``bt`` and ``thread apply all bt`` print, ``bt full`` too.

Source: *Debugging with GDB*, *Backtraces* and *Print Settings*; and what gdb 13 prints.
"""
