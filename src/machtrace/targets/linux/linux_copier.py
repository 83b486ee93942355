"""Which copier of threads there is on this machine."""

from __future__ import annotations

from machtrace.targets.shared.thread_copy import ThreadCopier


def thread_copier() -> ThreadCopier:
    """The extension's, or without it the one by ctypes, which stops threads for longer."""
    try:
        from machtrace.targets.linux.copier import PtraceCopier
    except ImportError:
        from machtrace.targets.linux.ctypes_copier import CtypesCopier

        return CtypesCopier()
    return PtraceCopier()
