"""Clocks: one that counts system sleep, and the processor time of other processes."""

from __future__ import annotations

import time

# CLOCK_MONOTONIC_RAW of macOS is mach_continuous_time (clock_gettime(3)).
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)


def boot_ns() -> int:
    """Return nanoseconds since the system was booted, system sleep included."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


_OF_PROCESS = 2
"""``CPUCLOCK_SCHED`` of a whole process: with the complement of its id, a clock of Linux
(``include/linux/posix-timers.h``)."""


def process_clock(pid: int) -> int:
    """Return the id of the clock of a process's processor time."""
    return ~pid << 3 | _OF_PROCESS


def process_time_ns(pid: int) -> int | None:
    """Return the processor time that a process has used, in nanoseconds; None if unknown."""
    try:
        return time.clock_gettime_ns(process_clock(pid))
    except OSError:
        return None
