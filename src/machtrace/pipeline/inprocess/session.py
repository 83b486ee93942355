"""This process as it is looked at from within: what is kept from one capture to the next."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from machtrace.images.resolver import ImageResolver
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace, Gap
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.targets.open import own_target
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.unwinder import Unwinder

LOCK = threading.RLock()
"""Held while what is kept is used; never needed by a thread that is stopped."""


class OwnProcess:
    """The target, what was learnt for walks, and the names. Used with :data:`LOCK` held."""

    def __init__(self) -> None:
        self.target = own_target()
        files = ImageResolver()
        self.unwinder = Unwinder(files)
        self.names = Symbolicator(files, lines=False)
        self.lines = Symbolicator(files)
        self.code = self.target.own_code()
        """Of the extension."""

    def unwind(self, snapshot: Snapshot, *, limit: int) -> tuple[Backtrace, ...]:
        """Unwind all threads, without the frames of the extension that copied the calling one."""
        frame_limit = FrameLimit.of(max(1, limit))
        own, seen = -1, 0
        while own < seen:  # our frames count towards the limit, and may hide more of ours
            own = seen
            limit_with_own = frame_limit._replace(inner=frame_limit.inner + own)
            walked = self.unwinder.unwind(snapshot, limit=limit_with_own)
            deep = (one for one in walked if one.gap is not None)
            seen = max(map(self._own_frames, deep), default=0)
        return tuple(self._without_own_frames(one) for one in walked)

    def _own_frames(self, walked: Backtrace) -> int:
        count = 0
        while count < len(walked.addresses) and walked.addresses[count].lookup in self.code:
            count += 1
        return count

    def _without_own_frames(self, walked: Backtrace) -> Backtrace:
        count = self._own_frames(walked)
        if not count:
            return walked
        gap = walked.gap
        if gap is not None:
            gap = Gap(max(0, gap.after - count), gap.count)
        return replace(walked, addresses=walked.addresses[count:], gap=gap)


class _Kept:
    """Where the one is kept."""

    process: OwnProcess | None = None
    is_told_of_forks = False


def own_process() -> OwnProcess:
    """This process, opened once. :data:`LOCK` is held.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    if _Kept.process is None:
        if not _Kept.is_told_of_forks:
            os.register_at_fork(after_in_child=_forget)
            _Kept.is_told_of_forks = True
        _Kept.process = OwnProcess()
    return _Kept.process


def _forget() -> None:
    """In the child of a fork: it is another process, and whoever held the lock is not there."""
    global LOCK  # noqa: PLW0603 - there is no way to let go of another thread's lock
    LOCK = threading.RLock()
    _Kept.process = None
