"""Which copier of threads there is on this machine."""

from __future__ import annotations

from machtrace.target.linux_threads import ThreadCopier


def thread_copier() -> ThreadCopier:
    """The extension's, or without it the one by ctypes, which stops threads for longer."""
    try:
        from machtrace.target.linux_native import NativeCopier
    except ImportError:
        from machtrace.target.linux_ptrace import CtypesCopier

        return CtypesCopier()
    return NativeCopier()
