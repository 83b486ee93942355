"""Walking snapshots, one or thousands, with what was learnt of a process kept for the next.

Which way of walking many stacks there is on this machine.
"""

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
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace
from machtrace.model.symbol import FrameStatus
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.thread_walker import PythonWalker, ThreadWalker
from machtrace.unwinder.walker import DEFAULT_DEPTH

if TYPE_CHECKING:
    from machtrace.unwinder.stack_columns import CollectedStacks, StackColumns


def thread_walker(rules: RuleCache, arch: Arch, mask: PacMask) -> ThreadWalker:
    """The extension's, or without it Python's, which is ten times slower and more."""
    try:
        from machtrace.unwinder.native import NativeWalker
    except ImportError:
        return PythonWalker(rules, mask)
    return NativeWalker(rules, arch, mask)


_REMEMBERED = 16
"""Processes whose rules are kept; at the limit the one that came first is forgotten."""


def unwind(
    snapshot: Snapshot, *, limit: int = DEFAULT_DEPTH, search: Search = ()
) -> tuple[Backtrace, ...]:
    """Walk every thread of a snapshot.

    Of many snapshots, an :class:`Unwinder` reads each image and works out each rule once.

    Args:
        snapshot: what was copied; nothing else of the target is read.
        limit: how many addresses of a stack are kept at most: of a deeper one those at both ends,
            and the number of the others.
        search: files and folders with the images whose bytes the snapshot does not hold.
    """
    return Unwinder(search).unwind(snapshot, limit=limit)


class Unwinder:
    """Walks any number of snapshots; each image is read, and each rule worked out, once.

    What was learnt serves every snapshot of the same images at the same places, if all of them
    have a UUID. An image's bytes are those of the first snapshot that it was met in, or of a file;
    where they could not be had whole, a snapshot that has what was missing is asked anew. Not for
    use by several threads at once.
    """

    __slots__ = ("_files", "_met", "_processes")

    def __init__(self, search: Search = ()) -> None:
        """``search``: files and folders with images whose bytes snapshots lack; or a resolver."""
        self._files = ImageResolver.of(search)
        self._processes: dict[Hashable, _Process] = {}
        self._met: dict[int, _Process] = {}

    def unwind(self, snapshot: Snapshot, *, limit: int = DEFAULT_DEPTH) -> tuple[Backtrace, ...]:
        """Walk every thread of a snapshot; see :func:`machtrace.unwind`."""
        process = self._process(snapshot)
        found: list[Backtrace] = []
        for thread in snapshot.threads:
            walked = process.walker.walk(thread, snapshot.memory, limit)
            found.append(
                Backtrace(
                    addresses=walked.addresses,
                    stop=walked.stop,
                    gap=walked.gap,
                    physical_remainder=walked.physical_remainder,
                    thread=thread,
                    snapshot=snapshot,
                )
            )
        return tuple(found)

    def rules(self, snapshot: Snapshot) -> RuleCache:
        """The rules by which a snapshot's stacks are walked."""
        return self._process(snapshot).rules

    def walker(self, snapshot: Snapshot) -> ThreadWalker:
        """What walks a snapshot's stacks, and keeps what it learns."""
        return self._process(snapshot).walker

    def columns(self, snapshots: Iterable[Snapshot], *, limit: int = DEFAULT_DEPTH) -> StackColumns:
        """Walk every thread of many snapshots, of one process or of several.

        Stacks are in the order of the snapshots and of the threads in them. What they say is what
        :meth:`unwind` says, without an object for each frame.
        """
        from machtrace.unwinder.stack_columns import CollectedStacks, columns_of

        collected: dict[_Process, CollectedStacks] = {}
        number = 0
        try:
            for snapshot in snapshots:
                process = self._process(snapshot)
                stacks = collected.get(process)
                if stacks is None:
                    stacks = collected[process] = CollectedStacks()
                collect, memory = process.walker.collect, snapshot.memory
                for thread in snapshot.threads:
                    stacks.stacks.append(collect(thread, memory, limit))
                    stacks.numbers.append(number)
                    number += 1
        finally:
            for process, stacks in collected.items():
                stacks.frames = process.walker.take()
        return columns_of(tuple(collected.values()))

    def _process(self, snapshot: Snapshot) -> _Process:
        met = self._met.get(id(snapshot.images))
        if met is not None and met.is_of(snapshot) and met.takes(snapshot.memory):
            return met
        key = _identity(snapshot)
        found = self._processes.get(key)
        if found is None or not found.takes(snapshot.memory):
            found = _Process(snapshot, self._files)
            self._processes.pop(key, None)
            while len(self._processes) >= _REMEMBERED:
                self._processes.pop(next(iter(self._processes)))
            self._processes[key] = found
            self._met = {id(one.images): one for one in self._processes.values()}
        return found


class _Process:
    """Rules for the images of a snapshot, and for all snapshots that have the same."""

    __slots__ = ("_about", "_bare", "_files", "_memory", "images", "rules", "walker")

    def __init__(self, snapshot: Snapshot, files: ImageResolver) -> None:
        process = snapshot.process
        self._about = process
        self._files = files
        self.images = snapshot.images
        self._memory = snapshot.memory
        self._bare: list[BinaryImage] = []
        """Images of which nothing was known."""
        self.rules = RuleCache(snapshot.images, process.arch, self._sources_of)
        self.walker: ThreadWalker = thread_walker(self.rules, process.arch, process.pointer_mask)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of this process, as can be told at once."""
        about = snapshot.process
        return snapshot.images is self.images and (
            about is self._about
            or (about.arch, about.pointer_mask) == (self._about.arch, self._about.pointer_mask)
        )

    def takes(self, memory: MemoryReader) -> bool:
        """Whether what was learnt so far holds whatever ``memory`` has; if so, go on with that."""
        if memory is not self._memory and self._gains_by(memory):
            return False
        self._memory = memory
        return True

    def _gains_by(self, memory: MemoryReader) -> bool:
        """Whether ``memory`` has anything that was looked for and not captured."""
        if any(not isinstance(in_memory(image, memory), FrameStatus) for image in self._bare):
            return True
        lacked = self.rules.lacked()
        return lacked is None or any(_can_read(memory, *piece) for piece in lacked)

    def _sources_of(self, image: BinaryImage) -> ImageRules:
        found = _rules_of(image, self._memory, self._files)
        if not found.sources:
            self._bare.append(image)
        return found


def _can_read(memory: MemoryReader, address: int, size: int) -> bool:
    try:
        memory.read(Avma(address), size)
    except MemoryReadError:
        return False
    return True


def _identity(snapshot: Snapshot) -> Hashable:
    """What snapshots have in common that the same rules are for."""
    process = snapshot.process
    images = tuple(snapshot.images)
    if any(image.uuid is None for image in images):
        return id(snapshot.images), process.arch, process.pointer_mask
    return images, process.arch, process.pointer_mask


def _rules_of(image: BinaryImage, memory: MemoryReader, files: ImageResolver) -> ImageRules:
    loaded, file = in_memory(image, memory), files.binary(image)
    # A Mach-O's tables are in memory, if they were captured. An ELF file has more than its
    # memory: the section headers that lead to .debug_frame, and in static programs to
    # .eh_frame.
    places = (file, loaded) if image.format is ImageFormat.ELF else (loaded, file)
    found = [place for place in places if not isinstance(place, FrameStatus)]
    rules = [image_rules(contents, image.arch) for contents in found]
    if not rules:
        return ImageRules()
    header = rules[0].header_svma
    # What one place does not have, the next is asked for.
    alike = [one for one in rules if one.header_svma == header]
    sources = tuple(source for one in alike for source in one.sources)
    witness = next((one.witness for one in alike if one.witness is not None), None)
    return ImageRules(sources, header, witness)
