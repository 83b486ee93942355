"""This process on macOS: its other threads, and the calling one."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from machtrace.errors import MemoryReadError, TargetError
from machtrace.formats.macho.dyld import shared_cache
from machtrace.formats.macho.header import arch_of
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryReader
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import SharedCache, Snapshot, ThreadId, ThreadSnapshot
from machtrace.targets.darwin.copier import DarwinCopier, DarwinCopies
from machtrace.targets.darwin.extension import TaskExtension
from machtrace.targets.darwin.images import TaskImages
from machtrace.targets.darwin.memory import ConstantMemory
from machtrace.targets.darwin.queues import served_queues
from machtrace.targets.darwin.task import DarwinTaskTarget
from machtrace.targets.darwin.threads import ListedThread
from machtrace.targets.inprocess.preload import preload
from machtrace.targets.inprocess.threads import OwnStates, OwnThreads, own_copier, python_name
from machtrace.targets.shared.thread_copy import Activity

if TYPE_CHECKING:
    from machtrace._native._inprocess import ImageRow

_ADDRESS_BITS = (1 << 64) - 1


class OwnImages(Protocol):
    """The image list of the extension ``_inprocess`` on macOS, as dyld reports it."""

    def own_images(self) -> list[ImageRow]:
        """Return all images, in no order."""
        ...

    def image_changes(self) -> int:
        """Another number whenever the list has changed."""
        ...


def own_images() -> OwnImages:
    """That list.

    Raises:
        TargetSpecError: the package was installed without its extensions.
    """
    own_copier()  # for the error, and its remedy
    from machtrace._native import _inprocess

    return _inprocess


class DarwinSelfTarget(OwnThreads, DarwinTaskTarget):
    """This process; see :class:`~machtrace.targets.base.Target`.

    Never run on a Mac: see ``docs/darwin.md`` for what was tested how.

    Other threads are suspended one at a time, each only for its own copy; a system call that one
    waits in continues. The calling thread is listed, and copied if requested by its id, but
    not along with all others.

    Args:
        extension: what talks to the kernel; by default the one that is installed.
        images: the list of images; by default the extension's.

    Raises:
        TargetSpecError: the package was installed without its extensions.
    """

    def __init__(
        self, *, extension: TaskExtension | None = None, images: OwnImages | None = None
    ) -> None:
        self._own_copier = own_copier()
        preload(ImageFormat.MACHO)
        self._kept_images = own_images() if images is None else images
        self._known: tuple[int, TaskImages] | None = None
        self._states = OwnStates()
        super().__init__(os.getpid(), extension=extension)
        self._constant = TaskImages(), ConstantMemory(self._memory)

    def _check(self, pid: int) -> None:
        """This process is meant."""

    def _make_copier(self) -> DarwinCopier:
        return _OwnThreadCopier(self)

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`; None is all but the calling one."""
        return super().snapshot(threads, stack_limit=stack_limit)

    def copies(self, threads: Sequence[int], *, stack_limit: int) -> DarwinCopies:
        """See :meth:`~machtrace.targets.darwin.copier.DarwinCopier.copy`."""
        copies = self._own_copier.copy(threads, array("Q"), stack_limit=stack_limit)
        try:
            places = {one.id: one.queue_address for one in self._listed()}
        except TargetError:
            places = {}  # a stack without its queue's label is better than none
        served = served_queues(self._memory, (places.get(thread, 0) for thread in threads))
        queues = {thread: served.get(places.get(thread, 0), 0) for thread in threads}
        return DarwinCopies(copies, {thread: queue for thread, queue in queues.items() if queue})

    def _listed(self) -> tuple[ListedThread, ...]:
        """Describe the threads, with Python's names where it has any."""
        return tuple(
            replace(one, name=python_name(one.id) or one.name) for one in super()._listed()
        )

    def _own_snapshot(
        self, threads: Collection[ThreadId] | None = None, *, stack_limit: int
    ) -> Snapshot:
        return self.snapshot(threads, stack_limit=stack_limit)

    def _thread_ids(self) -> Sequence[int]:
        return [one.id for one in self._listed()]

    def _activity(self, thread: ListedThread) -> Activity:
        state, cpu_ns = super()._activity(thread)
        return self._states.state(thread.id, state, cpu_ns, time.monotonic_ns()), cpu_ns

    def _left_out(self) -> int:
        return threading.get_native_id()

    def _images(self) -> TaskImages:
        changes = self._kept_images.image_changes()
        if self._known is None or self._known[0] != changes:
            images = ImageList(
                self._finder.with_file(_image(row, self._process.arch))
                for row in self._kept_images.own_images()
            )
            self._known = (
                changes,
                TaskImages(
                    images=images, program=self._process.path, shared_cache=self._shared_cache()
                ),
            )
        return self._known[1]

    def _image_memory(self, images: TaskImages, copied: Sequence[ThreadSnapshot]) -> MemoryReader:
        """This process has them, and lives as long as its snapshots; nothing need be copied."""
        del copied
        if self._constant[0] is not images:  # what is unloaded meanwhile must not be believed
            self._constant = images, ConstantMemory(self._memory)
        return self._constant[1]

    def _shared_cache(self) -> SharedCache | None:
        infos = self._image_infos()
        try:
            return None if infos is None else shared_cache(self._memory, infos)
        except MemoryReadError:
            return None


class _OwnThreadCopier:
    """A :class:`~machtrace.targets.darwin.copier.DarwinCopier` of this process."""

    def __init__(self, target: DarwinSelfTarget) -> None:
        self.copy = target.copies


def _image(row: ImageRow, own: Arch) -> BinaryImage:
    load_address, slide, text_size, cpu_type, cpu_subtype, uuid, path = row
    return BinaryImage(
        path=os.fsdecode(path),
        uuid=None if uuid is None else UUID(bytes=uuid),
        arch=arch_of(cpu_type, cpu_subtype) or own,
        format=ImageFormat.MACHO,
        load_address=Avma(load_address),
        header_svma=Svma((load_address - slide) & _ADDRESS_BITS),
        size=min(text_size, (1 << 64) - load_address),
    )
