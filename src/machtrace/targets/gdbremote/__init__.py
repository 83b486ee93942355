"""Processes behind a gdb-remote stub: debugserver, lldb-server, gdbserver, qemu."""
