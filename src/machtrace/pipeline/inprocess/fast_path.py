"""The calling thread's stack in microseconds, by cached rules and cached lines."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from machtrace._native._inprocess import OwnStacks, image_changes
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import (
    AddressKind,
    Backtrace,
    FrameAddress,
    FrameTrust,
    Gap,
    stretches,
)
from machtrace.pipeline.inprocess import session
from machtrace.pipeline.inprocess.session import OwnProcess
from machtrace.render import nsthread
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.native import NativeWalker
from machtrace.unwinder.thread_walker import code_of

_ELF_FOLDERS = ("/lib/", "/lib32/", "/lib64/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/")
_MACHO_FOLDERS = ("/System/", "/usr/lib/", "/Library/Apple/")
"""Also in the shared cache, and below the root of a simulator's runtime."""


def is_system_image(image: BinaryImage) -> bool:
    """Return whether an image is in the system's folders, or the kernel's (``[vdso]``)."""
    path = image.path
    if image.format is ImageFormat.MACHO:
        return path.startswith(_MACHO_FOLDERS) or "/RuntimeRoot/" in path
    return path.startswith(("[", *_ELF_FOLDERS))


def program_images(images: Iterable[BinaryImage], program: str) -> frozenset[BinaryImage]:
    """Return the executable at ``program``, and the images that are not the system's."""
    return frozenset(
        image for image in images if image.path == program or not is_system_image(image)
    )


_MAX_COUNT = 1 << 30
_ADDRESSES = 2
"""The variant of a cached stack with addresses; 0 has all lines, 1 the program's."""
_INNERMOST = code_of(FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)


def call_stack_symbols(limit: int = 512, *, app_only: bool = False) -> tuple[str, ...]:
    """Return the calling thread's stack as ``+[NSThread callStackSymbols]`` prints it.

    A stack that was seen before takes some microseconds, as long as no image is loaded or unloaded.
    A new rule or name takes some milliseconds once; a frame that the fast loop cannot unwind, such
    as a signal's, takes them each time.

    Args:
        limit: maximum number of frames: the innermost; the default keeps both ends of a deeper
            stack.
        app_only: whether to leave out frames of the system's libraries; the numbers of the others
            stay. The program's images are its executable, and those outside the system's folders.

    Returns:
        One line per frame, the caller of this function first. Where the default limit leaves out
        frames in the middle, a line states how many.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    inner, outer = _frame_limit(limit)
    while True:
        stack = None if _Cache.stacks is None else _Cache.stacks.find(inner, outer, app_only)
        if type(stack) is tuple:
            return cast("tuple[str, ...]", stack)
        # The stack is that of this function's call: only this function can walk it again.
        lines = _lines(stack, limit, app_only=app_only)
        if lines is not None:
            return lines


def call_stack_return_addresses(limit: int = 512) -> tuple[int, ...]:
    """Return the calling thread's stack as ``+[NSThread callStackReturnAddresses]`` does.

    Args:
        limit: see :func:`call_stack_symbols`; frames left out in the middle are not marked.

    Returns:
        Return addresses (Avma), the innermost first.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    inner, outer = _frame_limit(limit)
    while True:
        stack = None if _Cache.stacks is None else _Cache.stacks.find(inner, outer, _ADDRESSES)
        if type(stack) is tuple:
            return cast("tuple[int, ...]", stack)
        addresses = _addresses(stack, limit)
        if addresses is not None:
            return addresses


@lru_cache(maxsize=64)
def _frame_limit(limit: int) -> FrameLimit:
    return FrameLimit.of(min(max(1, limit), _MAX_COUNT))


class _Known:
    """The state of this process with its present images."""

    def __init__(self, own: OwnProcess) -> None:
        self.process = own
        changes = image_changes()  # read first: a change meanwhile makes the state stale
        thread = own.target.thread_id(None)
        self.snapshot: Snapshot = own.target.snapshot((thread,), stack_limit=0)
        walker = own.unwinder.walker(self.snapshot)
        self.walker = walker if isinstance(walker, NativeWalker) else None
        process = self.snapshot.process
        self.program_images = program_images(self.snapshot.images, process.path)
        self.stacks: OwnStacks | None = None
        if self.walker is not None:
            mask = process.pointer_mask.bits & ((1 << 64) - 1)
            self.stacks = OwnStacks(self.walker.table, mask, _INNERMOST, changes)

    def lines(
        self, addresses: tuple[FrameAddress, ...], gap: Gap | None, *, app_only: bool
    ) -> tuple[str, ...]:
        """Return the stack's lines."""
        shown: list[str] = []
        for first, part in stretches(addresses, gap):
            if first and part and gap is not None:
                shown.append(f"... {gap.count} frames not shown")
            for index, address in enumerate(part, first):
                frame = self.process.names.frame(address, self.snapshot)
                if not app_only or frame.image in self.program_images:
                    shown.append(nsthread.line(index, frame))
        return tuple(shown)


class _Cache:
    """The latest state; :attr:`stacks` is read without a lock."""

    known: _Known | None = None
    stacks: OwnStacks | None = None


def _current() -> _Known:
    """Return the state, rebuilt if the images have changed. The lock is held."""
    own, known = session.own_process(), _Cache.known
    is_right = (
        known is not None
        and known.process is own
        and (known.stacks is None or known.stacks.is_current())
    )
    if known is None or not is_right:
        known = _Cache.known = _Known(own)
        _Cache.stacks = known.stacks
    return known


def _learn(missing: object) -> bool:
    """Return whether to walk again: a rule was added, or the images were listed again."""
    with session.LOCK:
        before = _Cache.known
        known = _current()
        if known is not before:
            # Stale at once: another thread holds the loader's list, perhaps for long.
            return known.stacks is not None and known.stacks.is_current()
        if not isinstance(missing, int) or known.walker is None:
            return False
        return known.walker.add(Avma(missing >> 1), interrupted=bool(missing & 1))


def _lines(stack: object, limit: int, *, app_only: bool) -> tuple[str, ...] | None:
    """Return the lines of a stack; None to walk again, after a rule was added."""
    if not isinstance(stack, list):
        return None if _learn(stack) else _walked_lines(limit, app_only=app_only)
    depth, data = stack
    with session.LOCK:
        before = _Cache.known
        known = _current()
        if known is not before or known.stacks is None:
            return None
        addresses = tuple(
            FrameAddress(Avma(address), FrameTrust.CFI, AddressKind.RETURN_ADDRESS)
            for address in array("Q", data)
        )
        left_out = depth - len(addresses)
        gap = Gap(_frame_limit(limit).inner, left_out) if left_out else None
        lines = known.lines(addresses, gap, app_only=app_only)
        known.stacks.remember(depth, data, app_only, lines)
        return lines


def _addresses(stack: object, limit: int) -> tuple[int, ...] | None:
    """Return the addresses of a stack; None to walk again, after a rule was added."""
    if not isinstance(stack, list):
        return None if _learn(stack) else _walked_addresses(limit)
    depth, data = stack
    stacks, addresses = _Cache.stacks, tuple(array("Q", data))
    if stacks is not None:
        stacks.remember(depth, data, _ADDRESSES, addresses)
    return addresses


def _walked(limit: int) -> tuple[_Known, Backtrace]:
    """Unwind exactly, for stacks with a frame that the table cannot hold."""
    known = _current()
    own = known.process
    snapshot = own.target.snapshot((own.target.thread_id(None),))
    return known, own.unwind(snapshot, limit=limit)[0]


def _walked_lines(limit: int, *, app_only: bool) -> tuple[str, ...]:
    with session.LOCK:
        known, walked = _walked(limit)
        return known.lines(walked.addresses, walked.gap, app_only=app_only)


def _walked_addresses(limit: int) -> tuple[int, ...]:
    with session.LOCK:
        return tuple(frame.address for frame in _walked(limit)[1].addresses)
