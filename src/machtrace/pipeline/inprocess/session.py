"""This process, inspected from within: the caches shared by its captures."""

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
"""Held while the session is used; a suspended thread never holds it."""


class OwnProcess:
    """The target, the unwinder and the symbolicators of this process. Hold :data:`LOCK`."""

    def __init__(self) -> None:
        self.target = own_target()
        files = ImageResolver()
        self.unwinder = Unwinder(files)
        self.names = Symbolicator(files, lines=False)
        self.lines = Symbolicator(files)
        self.code = self.target.own_code()
        """The code of the extension that copies threads."""

    def unwind(self, snapshot: Snapshot, *, limit: int) -> tuple[Backtrace, ...]:
        """Unwind all threads, without the frames of the extension that copied the calling one."""
        frame_limit = FrameLimit.of(max(1, limit))
        own, seen = -1, 0
        while own < seen:  # our frames count towards the limit, and may hide more of ours
            own = seen
            limit_with_own = frame_limit._replace(inner=frame_limit.inner + own)
            walked = self.unwinder.unwind(snapshot, limit=limit_with_own)
            deep = (stack for stack in walked if stack.gap is not None)
            seen = max(map(self._own_frames, deep), default=0)
        return tuple(map(self._without_own_frames, walked))

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


class _Session:
    """The session of this process."""

    process: OwnProcess | None = None
    is_registered = False


def own_process() -> OwnProcess:
    """Return this process, opened once. Hold :data:`LOCK`.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    if _Session.process is None:
        if not _Session.is_registered:
            os.register_at_fork(after_in_child=_forget)
            _Session.is_registered = True
        _Session.process = OwnProcess()
    return _Session.process


def _forget() -> None:
    """Start again in the child of a fork, where the thread that held the lock does not exist."""
    global LOCK  # noqa: PLW0603 - another thread's lock cannot be released
    LOCK = threading.RLock()
    _Session.process = None
