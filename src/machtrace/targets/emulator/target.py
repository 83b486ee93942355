"""An iOS-like process that can be captured on any machine: ``emulated:demo``."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from machtrace.errors import (
    FileAccessError,
    MissingExtraError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.emulator import PROGRAM

if TYPE_CHECKING:
    from machtrace.targets.emulator.machine import EmulatedThread, Emulator, StopPlace

DEMO = "demo"
KNOWN = (DEMO,)
"""The names after ``emulated:``."""

_PATH = "/Applications/Demo.app/Demo"
_SLIDE = 0x2064000
_ADDRESS_WIDTH = 47
"""Bits of an address that iOS gives a process; above it are signatures."""
_RED_ZONE = 128
"""Bytes below the stack pointer that a leaf may use (Apple's arm64 conventions)."""


def demo_places() -> dict[str, StopPlace]:
    """By thread name, where the threads of ``emulated:demo`` stop; offsets are of the built file.

    com.machtrace.network is not among them: it stops by itself, waiting for a message.
    """
    from machtrace.targets.emulator.machine import StopPlace

    return {
        # Stalled: in its loop for the thousandth time.
        "main": StopPlace("-[ViewController test2:b:]", 0x14, arrival=1000),
        # Back from the innermost call, so that lr is what it was when that returned.
        "com.machtrace.recursion": StopPlace("_descend", 0x20),
        "com.machtrace.leaf": StopPlace("_checksum", 0x3C, arrival=9),
        # Registers stored, but the frame pointer still the caller's.
        "com.machtrace.prologue": StopPlace("_decode", 0x4, arrival=2),
        # The frame pointer the caller's again, but the stack pointer not yet.
        "com.machtrace.epilogue": StopPlace("_decode", 0x28, arrival=2),
        "com.machtrace.async": StopPlace("_decodePixels", 0x28, arrival=5),
        "com.machtrace.render": StopPlace("_render", 0xA0, arrival=3),
        "com.machtrace.messages": StopPlace("_objc_msgSend", 0x2C, arrival=12),
        # Its return address signed, and still in lr.
        "com.machtrace.signed": StopPlace("_authenticate", 0x4, arrival=2),
    }


class EmulatedTarget(ClosedWhenLeft):
    """A small arm64 program in an emulator; a :class:`~machtrace.targets.base.Target`.

    It is built for macOS, as iOS executables cannot be linked without Apple's tools; code,
    calling conventions, unwind tables and Objective-C metadata are the same. The whole process
    runs when the target is opened, and comes to the same state every time: each thread is at a
    place that shows something (see ``emulated_demo/threads.c``).

    The emulator has one CPU, and threads run one at a time. Between two snapshots none of them
    runs. A snapshot's times of stops are measured: for that long it
    was held while its registers were taken over, as the emulator had saved them, and its stack
    was copied.
    """

    def __init__(self, name: str, *, slide: int = _SLIDE, record_calls: bool = False) -> None:
        """Load and run the process.

        Args:
            name: which; ``demo`` is the only one.
            slide: bytes that the program is moved by; a multiple of 16 KiB.
            record_calls: watch every call and return, for :meth:`true_stack`.

        Raises:
            TargetSpecError: there is none of this name.
            MissingExtraError: the library that emulates is not installed.
            FileAccessError, MachOError: the program was taken out of the package, or altered.
            TargetError: there is no such slide.
        """
        if name not in KNOWN:
            known = ", ".join(f"emulated:{known}" for known in KNOWN)
            raise TargetSpecError(
                f"emulated process {name!r} does not exist", remedy=f"choose one of: {known}"
            )
        self.name = name
        try:
            from machtrace.targets.emulator.machine import Emulator
        except ImportError as error:
            # Without a name it is unicorn's own library that cannot be loaded.
            if error.name is not None and error.name.partition(".")[0] != "unicorn":
                raise
            raise MissingExtraError(f"emulated:{name}", extra="emulator") from error
        try:
            contents = MachOFileContents(PROGRAM.read_bytes(), str(PROGRAM.name))
        except OSError as error:
            raise FileAccessError(str(PROGRAM), error.strerror or "cannot be read") from error
        self._emulator: Emulator | None = Emulator(
            contents, slide=slide, places=demo_places(), record_calls=record_calls
        )
        self._emulator.run()
        image = contents.image
        text = image.text_segment
        self._image = BinaryImage(
            path=_PATH,
            uuid=image.uuid,
            arch=image.arch,
            format=ImageFormat.MACHO,
            load_address=Avma(image.header_svma + slide),
            header_svma=image.header_svma,
            size=0 if text is None else text.vmsize,
        )

    @property
    def process(self) -> ProcessInfo:
        """Which one; the system that runs it has given it no process id."""
        return ProcessInfo(
            pid=None,
            path=_PATH,
            arch=Arch.ARM64,
            pointer_mask=PacMask.of_width(_ADDRESS_WIDTH),
        )

    def images(self) -> ImageList:
        """Return the program; it links with no library."""
        self._opened()
        return ImageList((self._image,))

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, in the order of creation.

        Raises:
            TargetGoneError: the target was closed.
        """
        return tuple(_info(thread) for thread in self._opened().threads)

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Copy ``threads`` (None: all), and all memory besides the stacks.

        Raises:
            TargetGoneError: the target was closed.
        """
        emulator = self._opened()
        wanted = None if threads is None else set(threads)
        there = {thread.id for thread in emulator.threads}
        return Snapshot(
            process=self.process,
            threads=tuple(
                _copy(emulator, thread, stack_limit)
                for thread in emulator.threads
                if wanted is None or thread.id in wanted
            ),
            images=self.images(),
            memory=RegionMemory(emulator.regions),
            problems=tuple(
                Problem(
                    thread=thread,
                    error=ThreadGoneError(f"thread {thread} does not exist", thread=thread),
                )
                for thread in sorted((wanted or set()) - there)
            ),
        )

    def true_stack(self, thread: ThreadId) -> tuple[Avma, ...]:
        """Return the return addresses of calls that have not returned, innermost first.

        They are recorded from the calls themselves, without reading the stack; so unwinding can be
        held against them. Signatures are not part of them.

        Raises:
            ThreadGoneError: there is no such thread.
            ValueError: calls were not recorded.
        """
        for candidate in self._opened().threads:
            if candidate.id == thread:
                if candidate.shadow is None:
                    raise ValueError("calls are recorded only with record_calls=True")
                return candidate.shadow.return_addresses
        raise ThreadGoneError(f"thread {thread} does not exist", thread=thread)

    def close(self) -> None:
        """Let the emulator go; calling it twice does nothing more."""
        self._emulator = None

    def _opened(self) -> Emulator:
        if self._emulator is None:
            raise TargetGoneError(f"emulated:{self.name} was closed", pid=0)
        return self._emulator


def _info(thread: EmulatedThread) -> ThreadInfo:
    is_main = thread.index == 1
    return ThreadInfo(
        id=thread.id,
        index=thread.index,
        name=thread.name,
        queue="com.apple.main-thread" if is_main else None,
        is_main=is_main,
    )


def _copy(emulator: Emulator, thread: EmulatedThread, stack_limit: int) -> ThreadSnapshot:
    from machtrace.targets.emulator.cpu import registers_of, stack_pointer

    begun = time.monotonic_ns()
    # A context is never written to again, so its registers can be taken out of it afterwards.
    context = thread.context
    start = Avma(stack_pointer(context) - _RED_ZONE)
    stack = emulator.read(start, max(0, min(stack_limit, thread.stack_end - start)))
    ended = time.monotonic_ns()
    return ThreadSnapshot(
        info=_info(thread),
        registers=registers_of(context),
        stack=MemoryRegion(start, stack),
        taken_at_ns=begun,
        stopped_for_ns=ended - begun,
    )
