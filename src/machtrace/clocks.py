"""The clock that counts system sleep."""

from __future__ import annotations

import time

# CLOCK_MONOTONIC_RAW of macOS is mach_continuous_time (clock_gettime(3)).
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)


def boot_ns() -> int:
    """Return nanoseconds since the system was booted, system sleep included."""
    return time.clock_gettime_ns(_BOOT_CLOCK)
