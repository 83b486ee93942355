"""The calling thread's own stack, at once: by rules, and by lines, that were found before.

Which images are a program's own, and which the system's.
"""

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
"""In the shared cache and in simulators' runtimes, too: there they follow the runtime's root."""


def is_system_image(image: BinaryImage) -> bool:
    """Whether an image is from the system's folders, or made by the kernel (``[vdso]``)."""
    path = image.path
    if image.format is ImageFormat.MACHO:
        return path.startswith(_MACHO_FOLDERS) or "/RuntimeRoot/" in path
    return path.startswith(("[", *_ELF_FOLDERS))


def program_images(images: Iterable[BinaryImage], program: str) -> frozenset[BinaryImage]:
    """Of ``images`` the executable at ``program``, and all that are not the system's."""
    return frozenset(
        image for image in images if image.path == program or not is_system_image(image)
    )


_MOST = 1 << 30
_ADDRESSES = 2
"""Which kind of what is remembered of a stack; its lines are 0, or 1 without the system's."""
_INNERMOST = code_of(FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)


def call_stack_symbols(limit: int = 512, *, app_only: bool = False) -> tuple[str, ...]:
    """The calling thread's stack as ``+[NSThread callStackSymbols]`` prints it.

    Both the walk and the lines of a stack that was seen before take some microseconds together,
    as long as no image is loaded or unloaded. Where a rule or a name is not known yet it takes
    some milliseconds once; where a frame takes thought, such as a signal's, each time.

    Args:
        limit: maximum number of frames: the innermost; the default keeps both ends of a deeper
            stack.
        app_only: whether to leave out frames of the system's libraries; the others keep their
            numbers. The program's own are its executable, and what is not loaded from the
            system's folders.

    Returns:
        One line per frame, the caller of this function first. Where the default limit leaves out
        frames in the middle, a line states how many.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    inner, outer = _frame_limit(limit)
    while True:
        found = None if _Kept.stacks is None else _Kept.stacks.find(inner, outer, app_only)
        if type(found) is tuple:
            return cast("tuple[str, ...]", found)
        # What is found is of this very function's call: to walk again is left to it.
        lines = _lines(found, limit, app_only=app_only)
        if lines is not None:
            return lines


def call_stack_return_addresses(limit: int = 512) -> tuple[int, ...]:
    """The calling thread's stack as ``+[NSThread callStackReturnAddresses]`` gives it.

    Args:
        limit: see :func:`call_stack_symbols`; frames left out in the middle are not marked.

    Returns:
        Return addresses (Avma), the innermost first.

    Raises:
        TargetSpecError: threads of this process cannot be copied here.
    """
    inner, outer = _frame_limit(limit)
    while True:
        found = None if _Kept.stacks is None else _Kept.stacks.find(inner, outer, _ADDRESSES)
        if type(found) is tuple:
            return cast("tuple[int, ...]", found)
        addresses = _addresses(found, limit)
        if addresses is not None:
            return addresses


@lru_cache(maxsize=64)
def _frame_limit(limit: int) -> FrameLimit:
    return FrameLimit.of(min(max(1, limit), _MOST))


class _Known:
    """What is known of this process with the images that it has."""

    def __init__(self, own: OwnProcess) -> None:
        self.process = own
        changes = image_changes()  # before the images are looked at: it errs towards looking again
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
        """The stack's lines."""
        found: list[str] = []
        for first, part in stretches(addresses, gap):
            if first and part and gap is not None:
                found.append(f"... {gap.count} frames not shown")
            for index, address in enumerate(part, first):
                frame = self.process.names.frame(address, self.snapshot)
                if not app_only or frame.image in self.program_images:
                    found.append(nsthread.line(index, frame))
        return tuple(found)


class _Kept:
    """What was known last; :attr:`stacks` is looked at without a lock."""

    known: _Known | None = None
    stacks: OwnStacks | None = None


def _current() -> _Known:
    """What is known, made anew where the images have changed. The lock is held."""
    own, known = session.own_process(), _Kept.known
    is_right = (
        known is not None
        and known.process is own
        and (known.stacks is None or known.stacks.is_current())
    )
    if known is None or not is_right:
        known = _Kept.known = _Known(own)
        _Kept.stacks = known.stacks
    return known


def _learn(missing: object) -> bool:
    """Whether to walk again: a rule was learnt, or the images looked at anew."""
    with session.LOCK:
        before = _Kept.known
        known = _current()
        if known is not before:
            # Not current at once: a thread keeps the loader's list to itself, perhaps for long.
            return known.stacks is not None and known.stacks.is_current()
        if not isinstance(missing, int) or known.walker is None:
            return False
        return known.walker.add(Avma(missing >> 1), interrupted=bool(missing & 1))


def _lines(found: object, limit: int, *, app_only: bool) -> tuple[str, ...] | None:
    """The lines of a stack; None to walk again, after something was learnt."""
    if not isinstance(found, list):
        return None if _learn(found) else _walked_lines(limit, app_only=app_only)
    depth, kept = found
    with session.LOCK:
        before = _Kept.known
        known = _current()
        if known is not before or known.stacks is None:
            return None
        addresses = tuple(
            FrameAddress(Avma(address), FrameTrust.CFI, AddressKind.RETURN_ADDRESS)
            for address in array("Q", kept)
        )
        left_out = depth - len(addresses)
        gap = Gap(_frame_limit(limit).inner, left_out) if left_out else None
        lines = known.lines(addresses, gap, app_only=app_only)
        known.stacks.remember(depth, kept, app_only, lines)
        return lines


def _addresses(found: object, limit: int) -> tuple[int, ...] | None:
    """The same, without names."""
    if not isinstance(found, list):
        return None if _learn(found) else _walked_addresses(limit)
    depth, kept = found
    stacks, addresses = _Kept.stacks, tuple(array("Q", kept))
    if stacks is not None:
        stacks.remember(depth, kept, _ADDRESSES, addresses)
    return addresses


def _walked(limit: int) -> tuple[_Known, Backtrace]:
    """By the exact walk: for stacks of which a frame is not a matter for the table."""
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
        return tuple(one.address for one in _walked(limit)[1].addresses)
