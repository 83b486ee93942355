"""Options of watching: thresholds of time, processor time and memory, and their notation.

``80%/60s`` is a share of one processor over a window. ``1GiB`` is an amount of memory, ``90%`` a
share of the limit, ``+100MiB/1s`` growth within a window, and ``limit/5m`` growth that reaches the
limit within that time. A list has commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass
from machtrace.model.quantities import parse_bytes, parse_seconds
from machtrace.model.text import counted

POLL_NS = 20_000_000
"""Time between two polls of threads, by default."""
PROCESS_POLL_NS = 100_000_000
"""Time between two polls of a process."""
_SECOND_NS = 1_000_000_000
_MAX_NS = 86_400_000_000_000
_MIN_JUMP = 1 << 20
_MIN_POLL_NS, _MAX_POLL_NS = 1_000_000, 1_000_000_000
_MIN_HANG_NS = 10_000_000
_DAILY_LIMIT = 1000
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_CPU_REMEDY = "write the share of one processor and a time, such as 80%/60s"
_MEMORY_REMEDY = "write 1GiB, 90% (of the limit), +100MiB/1s or limit/5m"

_T = TypeVar("_T")


class CpuThreshold(NamedTuple):
    """A share of one processor that is used for some time: 2.0 are two threads that always run."""

    share: float
    window_ns: int

    def __str__(self) -> str:
        return f"{_percent(self.share)}/{_time(self.window_ns)}"


class MemoryLevel(NamedTuple):
    """An amount of memory."""

    size: int

    def __str__(self) -> str:
        return _size(self.size)


class MemoryShare(NamedTuple):
    """A share of the memory that the process may use, from 0 to 1."""

    share: float

    def __str__(self) -> str:
        return _percent(self.share)


class MemoryJump(NamedTuple):
    """Growth within a window."""

    size: int
    window_ns: int

    def __str__(self) -> str:
        return f"+{_size(self.size)}/{_time(self.window_ns)}"


class MemorySlope(NamedTuple):
    """Growth that reaches the limit within a time, if it continues."""

    left_ns: int

    def __str__(self) -> str:
        return f"limit/{_time(self.left_ns)}"


MemoryThreshold: TypeAlias = MemoryLevel | MemoryShare | MemoryJump | MemorySlope

_LONG_HANG = 12
"""Polls in a hang whose beginning may be twice as uncertain."""

DEFAULT_CPU = "80%/60s,50%/180s,90%/5s"
DEFAULT_MEMORY = "90%,+100MiB/1s,limit/5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The thresholds, and the threads that are watched.

    Raises:
        ArgumentError: a threshold makes no sense.
    """

    hang_ns: int | None = 250_000_000
    """The time away from the loop that is a hang; None to report none."""
    poll_ns: int = POLL_NS
    threads: str | tuple[str, ...] = "main"
    launch_grace_ns: int | None = None
    """The time after the start of the process in which hangs of threads that were never idle are
    not reported; None for some seconds."""
    search: tuple[str, ...] = ()
    lines: bool = True
    daily_limit: int = _DAILY_LIMIT
    deadlocks: bool = True
    """Whether deadlocks are reported."""
    crash: bool | None = None
    """Whether the process is traced for crashes; None if it is interrupted for its polls anyway."""
    cpu: tuple[CpuThreshold, ...] = ()
    memory: tuple[MemoryThreshold, ...] = ()

    @property
    def idle_poll_ns(self) -> int:
        """From poll to poll of threads that are idle: twice the time where hangs are long."""
        if self.hang_ns is None or self.hang_ns < _LONG_HANG * self.poll_ns:
            return self.poll_ns
        return 2 * self.poll_ns

    @property
    def has_only_deadlocks(self) -> bool:
        """Whether deadlocks are all that is watched."""
        others = self.hang_ns or self.cpu or self.memory or self.crash
        return self.deadlocks and not others

    def __post_init__(self) -> None:
        if not _MIN_POLL_NS <= self.poll_ns <= _MAX_POLL_NS:
            raise ArgumentError(
                f"cannot poll every {self.poll_ns / 1e6:g} ms", remedy="pass 1ms to 1s"
            )
        if self.hang_ns is not None and self.hang_ns > _MAX_NS:
            raise ArgumentError("a hang of more than a day is not seen", remedy="pass 24h or less")
        if self.hang_ns is not None and self.hang_ns < max(_MIN_HANG_NS, 2 * self.poll_ns):
            raise ArgumentError(
                f"a hang of {self.hang_ns / 1e6:g} ms cannot be seen by polls every "
                f"{self.poll_ns / 1e6:g} ms",
                remedy="pass two polls or more, at least 10ms, such as 100ms; or a shorter poll",
            )


def parse_cpu(text: str, *, processors: int) -> tuple[CpuThreshold, ...]:
    """Parse thresholds of processor time.

    Args:
        text: one, or several with commas.
        processors: those of the machine, which limit the share.

    Raises:
        ArgumentError: one is malformed or can never be exceeded.
    """

    def parse(word: str) -> CpuThreshold:
        first, slash, rest = word.partition("/")
        share = _parse_share(first)
        if share is None or not slash:
            raise ArgumentError(
                f"{word!r} is not a threshold of processor time", remedy=_CPU_REMEDY
            )
        window_ns = _parse_window(word, rest, _CPU_REMEDY)
        if not 0 < share <= processors:
            raise ArgumentError(
                f"{word!r} is always or never exceeded on {counted(processors, 'processor')}",
                remedy=f"pass more than 0% and at most {100 * processors}%",
            )
        return CpuThreshold(share, window_ns)

    return _parse_list(text, parse, _CPU_REMEDY)


def parse_memory(text: str) -> tuple[MemoryThreshold, ...]:
    """Parse thresholds of memory.

    Raises:
        ArgumentError: one is malformed or can never be exceeded.
    """
    return _parse_list(text, _parse_memory_threshold, _MEMORY_REMEDY)


def _parse_memory_threshold(word: str) -> MemoryThreshold:
    first, slash, rest = word.partition("/")
    if first.strip().lower() == "limit" and slash:
        return MemorySlope(_parse_window(word, rest, _MEMORY_REMEDY))
    share = None if slash else _parse_share(word)
    if share is not None:
        if not 0 < share < 1:
            raise ArgumentError(
                f"{word!r} of the limit is always or never exceeded",
                remedy="pass more than 0 and below 100%",
            )
        return MemoryShare(share)
    size = parse_bytes(first.strip().removeprefix("+"))
    if size is None or bool(slash) != first.strip().startswith("+"):
        raise ArgumentError(f"{word!r} is not a threshold of memory", remedy=_MEMORY_REMEDY)
    if not slash:
        if not size:
            raise ArgumentError(f"{word!r} of memory is always exceeded", remedy=_MEMORY_REMEDY)
        return MemoryLevel(int(size))
    window_ns = _parse_window(word, rest, _MEMORY_REMEDY)
    if size < _MIN_JUMP:
        raise ArgumentError(
            f"{word!r} is too small a jump", remedy="pass 1MiB or more, such as +100MiB/1s"
        )
    return MemoryJump(int(size), window_ns)


def _parse_list(text: str, parse: Callable[[str], _T], remedy: str) -> tuple[_T, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ArgumentError(f"{text!r} has an empty threshold", remedy=remedy)
    return tuple(dict.fromkeys(map(parse, words)))


def _parse_share(text: str) -> float | None:
    match = _PERCENT.fullmatch(text.strip())
    return None if match is None else float(match[1]) / 100


def _parse_window(word: str, text: str, remedy: str) -> int:
    """Parse the time behind the slash of ``word``, in nanoseconds."""
    seconds = parse_seconds(text)
    if seconds is None or not text.strip():
        raise ArgumentError(f"{word!r} has no valid time", remedy=remedy)
    nanoseconds = round(seconds * 1e9)
    if nanoseconds < 2 * PROCESS_POLL_NS:
        raise ArgumentError(
            f"the time of {word!r} is shorter than two polls",
            remedy="pass 200ms or more, such as 1s",
        )
    if nanoseconds > _MAX_NS:
        raise ArgumentError(f"the time of {word!r} is longer than a day", remedy="pass 24h or less")
    return nanoseconds


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _time(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:g}ms" if nanoseconds < _SECOND_NS else f"{nanoseconds / 1e9:g}s"


def _size(size: int) -> str:
    for unit, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << unit:
            return f"{size / (1 << unit):.4g}{name}"
    return f"{size}B"
