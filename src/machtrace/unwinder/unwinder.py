"""The facade: unwind snapshots, one or thousands, with the rules of a process cached."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from machtrace.errors import MemoryReadError
from machtrace.formats.object_file import in_memory
from machtrace.images.resolver import ImageResolver, Search
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.options import DEFAULT_FRAME_LIMIT
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace
from machtrace.model.symbol import FrameStatus
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.sources.of_image import merged_rules
from machtrace.unwinder.thread_walker import PythonWalker, ThreadWalker

if TYPE_CHECKING:
    from machtrace.unwinder.stack_columns import CollectedStacks, StackColumns

CACHED_PROCESSES = 16
"""Processes whose rules are cached; the oldest is evicted."""


def unwind(
    snapshot: Snapshot, *, limit: int = DEFAULT_FRAME_LIMIT, search: Search = ()
) -> tuple[Backtrace, ...]:
    """Unwind every thread of a snapshot.

    For many snapshots use an :class:`Unwinder`, which reads each image and computes each rule once.

    Args:
        snapshot: the captured threads and memory; nothing else of the target is read.
        limit: the maximum number of addresses per stack: the innermost; the default keeps both ends
            of a deeper stack. The others are counted.
        search: files and folders with images whose bytes the snapshot lacks.
    """
    return Unwinder(search).unwind(snapshot, limit=limit)


class Unwinder:
    """Unwinds any number of snapshots; reads each image and computes each rule once.

    Rules are cached and reused for snapshots with the same images at the same addresses (all must
    have UUIDs). Image bytes come from a file or from the first snapshot that had them; if they were
    incomplete, a later, more complete snapshot replaces them. Not thread-safe.
    """

    __slots__ = ("_by_image_list", "_files", "_processes", "_scan")

    def __init__(self, search: Search = (), *, scan: bool = False) -> None:
        """Start with an empty cache.

        Args:
            search: files and folders with images whose bytes snapshots lack; or a resolver.
            scan: see :attr:`machtrace.model.options.WalkOptions.scan`.
        """
        self._scan = scan
        self._files = ImageResolver.of(search)
        self._processes: dict[Hashable, _ProcessUnwinder] = {}
        self._by_image_list: dict[int, _ProcessUnwinder] = {}

    def unwind(
        self, snapshot: Snapshot, *, limit: int | FrameLimit = DEFAULT_FRAME_LIMIT
    ) -> tuple[Backtrace, ...]:
        """Unwind every thread of a snapshot; see :func:`machtrace.unwind`."""
        frame_limit = limit if isinstance(limit, FrameLimit) else FrameLimit.of(limit)
        walker = self._process(snapshot).walker
        backtraces: list[Backtrace] = []
        for thread in snapshot.threads:
            walk = walker.walk(thread, snapshot.memory, frame_limit)
            backtraces.append(
                Backtrace(
                    addresses=walk.addresses,
                    stop=walk.stop,
                    gap=walk.gap,
                    physical_remainder=walk.physical_remainder,
                    thread=thread,
                    snapshot=snapshot,
                )
            )
        return tuple(backtraces)

    def rules(self, snapshot: Snapshot) -> RuleCache:
        """Return the rules for a snapshot's stacks."""
        return self._process(snapshot).rules

    def walker(self, snapshot: Snapshot) -> ThreadWalker:
        """Return the walker for a snapshot's stacks."""
        return self._process(snapshot).walker

    def columns(
        self, snapshots: Iterable[Snapshot], *, limit: int = DEFAULT_FRAME_LIMIT
    ) -> StackColumns:
        """Unwind every thread of many snapshots, of one process or of several.

        Stacks are in the order of the snapshots and of their threads. The contents are those of
        :meth:`unwind`, without an object per frame.
        """
        from machtrace.unwinder.stack_columns import CollectedStacks, columns_of

        frame_limit = FrameLimit.of(limit)
        collected: dict[_ProcessUnwinder, CollectedStacks] = {}
        number = 0
        try:
            for snapshot in snapshots:
                process = self._process(snapshot)
                stacks = collected.get(process)
                if stacks is None:
                    stacks = collected[process] = CollectedStacks()
                collect, memory = process.walker.collect, snapshot.memory
                for thread in snapshot.threads:
                    stacks.stacks.append(collect(thread, memory, frame_limit))
                    stacks.numbers.append(number)
                    number += 1
        finally:
            for process, stacks in collected.items():
                stacks.frames = process.walker.take()
        return columns_of(tuple(collected.values()))

    def _process(self, snapshot: Snapshot) -> _ProcessUnwinder:
        # Snapshots of one sampling run share an image list, which is quicker to compare by id.
        process = self._by_image_list.get(id(snapshot.images))
        if process is not None and process.is_of(snapshot) and process.accepts(snapshot.memory):
            return process
        key = _identity(snapshot)
        process = self._processes.get(key)
        if process is None or not process.accepts(snapshot.memory):
            process = _ProcessUnwinder(snapshot, self._files, scan=self._scan)
            self._processes.pop(key, None)
            while len(self._processes) >= CACHED_PROCESSES:
                self._processes.pop(next(iter(self._processes)))
            self._processes[key] = process
            self._by_image_list = {id(each.images): each for each in self._processes.values()}
        return process


class _ProcessUnwinder:
    """The rules and the walker of snapshots that have the same images."""

    __slots__ = ("_files", "_memory", "_process", "_unknown", "images", "rules", "walker")

    def __init__(self, snapshot: Snapshot, files: ImageResolver, *, scan: bool) -> None:
        process = snapshot.process
        self._process = process
        self._files = files
        self.images = snapshot.images
        self._memory = snapshot.memory
        self._unknown: list[BinaryImage] = []
        """Images without rule sources."""
        self.rules = RuleCache(snapshot.images, process.arch, self._rules_of, scans=scan)
        self.walker: ThreadWalker = thread_walker(self.rules, process.arch, process.pointer_mask)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot has this very image list, and the same kind of process."""
        process, own = snapshot.process, self._process
        return snapshot.images is self.images and (
            process is own or (process.arch, process.pointer_mask) == (own.arch, own.pointer_mask)
        )

    def accepts(self, memory: MemoryReader) -> bool:
        """Switch to ``memory`` unless it has bytes that earlier memory lacked."""
        if memory is not self._memory and self._is_completed_by(memory):
            return False
        self._memory = memory
        return True

    def _is_completed_by(self, memory: MemoryReader) -> bool:
        """Return whether ``memory`` has bytes that were needed and not captured."""
        if any(not isinstance(in_memory(image, memory), FrameStatus) for image in self._unknown):
            return True
        missing = self.rules.missing_ranges()
        return missing is None or any(_can_read(memory, *extent) for extent in missing)

    def _rules_of(self, image: BinaryImage) -> ImageRules:
        loaded, file = in_memory(image, self._memory), self._files.binary(image)
        # A Mach-O's tables are in memory, if they were captured. An ELF file has more than its
        # memory: the section headers that lead to .debug_frame, and in static programs to
        # .eh_frame.
        copies = (file, loaded) if image.format is ImageFormat.ELF else (loaded, file)
        available = [copy for copy in copies if not isinstance(copy, FrameStatus)]
        rules = merged_rules(available, image.arch)
        if not rules.sources:
            self._unknown.append(image)
        return rules


def thread_walker(rules: RuleCache, arch: Arch, mask: PacMask) -> ThreadWalker:
    """Return the extension's walker, or Python's, which takes over ten times as long."""
    try:
        from machtrace.unwinder.native import NativeWalker
    except ImportError:
        return PythonWalker(rules, mask)
    return NativeWalker(rules, arch, mask)


def _can_read(memory: MemoryReader, address: int, size: int) -> bool:
    try:
        memory.read(Avma(address), size)
    except MemoryReadError:
        return False
    return True


def _identity(snapshot: Snapshot) -> Hashable:
    """Return the key of snapshots that share rules."""
    process = snapshot.process
    images = tuple(snapshot.images)
    if any(image.uuid is None for image in images):
        return id(snapshot.images), process.arch, process.pointer_mask
    return images, process.arch, process.pointer_mask
