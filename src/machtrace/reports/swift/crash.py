"""What a program was ended by, as its backtrace says."""

from __future__ import annotations

import re

from machtrace.model.reported_process import ReportedException

_SIGNALS = {
    "Quit": "SIGQUIT",
    "Illegal instruction": "SIGILL",
    "System trap": "SIGTRAP",
    "Aborted": "SIGABRT",
    "Floating point exception": "SIGFPE",
    "Bad pointer dereference": "SIGSEGV",
}
"""``signalDescription`` of ``swift-backtrace`` → the signal; SIGBUS is said of it, too."""
_NUMBERED = {
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",  # of Linux; 10 is macOS's
    8: "SIGFPE",
    10: "SIGBUS",
    11: "SIGSEGV",
}
_ADDRESS_OF_CRASH = re.compile(r"(?P<what>.*\S) at (?P<address>0x[0-9a-fA-F]{1,16})")


def exception(description: str, signal: int | None = None) -> ReportedException:
    """What a description tells: ``Bad pointer dereference at 0x0000000000000004``.

    Args:
        description: as it is written behind *Program crashed*, or what the runtime says of itself.
        signal: its number, where that is written.
    """
    match = _ADDRESS_OF_CRASH.fullmatch(description)
    what = description if match is None else match["what"]
    return ReportedException(
        signal=_SIGNALS.get(what) if signal is None else _NUMBERED.get(signal),
        message=what,
        address=None if match is None else int(match["address"], 16),
    )
