"""When the next sample is due, and how many were missed."""

from __future__ import annotations

from collections.abc import Callable


class TickClock:
    """Ticks at whole multiples of an interval from the first one.

    A tick that cannot be kept is lost: it is not made up for, which would bring two samples
    closer together than they should be.

    Args:
        interval_ns: nanoseconds from one tick to the next, 1 or more.
        now_ns: nanoseconds of a clock that never goes back.
        sleep: waits for so many seconds.
    """

    __slots__ = ("_next", "_now_ns", "_sleep", "began_ns", "interval_ns", "lost")

    def __init__(
        self, interval_ns: int, now_ns: Callable[[], int], sleep: Callable[[float], None]
    ) -> None:
        self.interval_ns = interval_ns
        self._now_ns = now_ns
        self._sleep = sleep
        self.began_ns = now_ns()
        self.lost = 0
        self._next = 0

    @property
    def elapsed_ns(self) -> int:
        """Since the first tick."""
        return self._now_ns() - self.began_ns

    @property
    def left_ns(self) -> int:
        """Until the next tick; 0 or less where that is due."""
        return self.began_ns + self._next * self.interval_ns - self._now_ns()

    def wait(self, until_ns: int, should_stop: Callable[[], bool]) -> bool:
        """Wait for the next tick, and count those that are lost; whether there is one.

        Args:
            until_ns: since the first tick: no tick comes then or later.
            should_stop: asked several times a second; True ends the wait without a tick.
        """
        interval = self.interval_ns
        while not should_stop():
            elapsed = self.elapsed_ns
            if elapsed >= until_ns:
                end = -(-until_ns // interval)
                self.lost += max(0, end - self._next)
                self._next = end
                return False
            left = min(self._next * interval, until_ns) - elapsed
            if left <= 0:
                newest = elapsed // interval
                self.lost += newest - self._next
                self._next = newest + 1
                return True
            self._sleep(min(left, _LONGEST_SLEEP_NS) / 1e9)
        return False


_LONGEST_SLEEP_NS = 50_000_000
