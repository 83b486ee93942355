"""Names of Mach exceptions and signals, and runtimes' last words about uncaught exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable

EXCEPTION_TYPES = {
    1: "EXC_BAD_ACCESS",
    2: "EXC_BAD_INSTRUCTION",
    3: "EXC_ARITHMETIC",
    4: "EXC_EMULATION",
    5: "EXC_SOFTWARE",
    6: "EXC_BREAKPOINT",
    7: "EXC_SYSCALL",
    8: "EXC_MACH_SYSCALL",
    9: "EXC_RPC_ALERT",
    10: "EXC_CRASH",
    11: "EXC_RESOURCE",
    12: "EXC_GUARD",
    13: "EXC_CORPSE_NOTIFY",
}
"""``mach/exception_types.h``."""
DARWIN_SIGNALS = {
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGBUS",
    11: "SIGSEGV",
    12: "SIGSYS",
    13: "SIGPIPE",
    15: "SIGTERM",
}
"""Darwin's ``sys/signal.h``."""


_LAST_WORDS = re.compile(
    r"\*\*\* Terminating app due to uncaught exception (?:of class )?'(?P<name>[^'\n]{1,200})'"
    r"(?:, reason: '(?P<reason>.*)')?",
    re.DOTALL,
)


def last_words(texts: Iterable[str]) -> tuple[str, str | None] | None:
    """Return the exception's name and reason from the first text that has them."""
    for text in texts:
        match = _LAST_WORDS.search(text) if "uncaught exception" in text else None
        if match is not None:
            return match["name"], match["reason"]
    return None


_ADDRESS = re.compile(r"\bat (0x[0-9a-fA-F]{1,16})\b")


def accessed_address(subtype: str | None) -> int | None:
    """Return the address of ``KERN_INVALID_ADDRESS at 0x0000000000000010``."""
    match = _ADDRESS.search(subtype) if subtype is not None else None
    return None if match is None else int(match[1], 16)
