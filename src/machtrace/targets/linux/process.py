"""Another process of this Linux machine."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import (
    FormatError,
    MachtraceError,
    MemoryReadError,
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.memory import LayeredMemory, MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.linux.access import OtherTracer
from machtrace.targets.linux.capture import CaptureSource, PtraceCopier, ThreadCapture, why_not
from machtrace.targets.linux.core_facts import FactsGatherer, GatheredFacts
from machtrace.targets.linux.identity import MappingsReader, check_host, identify
from machtrace.targets.linux.images import ImageFinder, LoadedImages, with_earlier
from machtrace.targets.linux.memory import open_memory
from machtrace.targets.linux.procfs import ActivityReader, ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping, stack_ranges
from machtrace.targets.shared.thread_copy import (
    CapturedThreads,
    CopiedThread,
    ThreadCopier,
    UncopiedThread,
)

if TYPE_CHECKING:  # it brings numpy, which most captures do without
    from machtrace.cpython.runtime import PythonRuntime
    from machtrace.targets.linux.freeze import FreezingCopier

MAX_STACK = 1 << 28
"""Bytes of one stack; buffers of that size are allocated before a thread is stopped."""

_NO_RANGES = array("Q")
_NO_STACK = MemoryRegion(Avma(0), b"")
_NO_IMAGES = ImageList(())

_ROUNDS = 4
"""Times that threads are listed: a process can start them faster than they are copied."""


class LinuxProcessTarget(ClosedWhenLeft):
    """A process captured by ptrace(2) and ``/proc``; see :class:`~machtrace.targets.base.Target`.

    Nothing is attached between snapshots, and memory is never written. A signal that arrives while
    a thread is copied is delivered afterwards; a thread that was stopped stays stopped. System
    calls continue, but a few with a time limit may end early with EINTR, as after SIGSTOP and
    SIGCONT (``machtrace_mark_restart`` of ``native/common/linux/registers.h``, which changes the
    only register that is ever written).

    A subclass is another kind of process whose threads this kernel can trace: it overrides
    :meth:`_open_directory` to find ``/proc`` otherwise, or :meth:`_open_memory` to read memory
    otherwise. A process of another machine is another :class:`Target`.

    Args:
        pid: its id, as this process sees it.
        copier: stops and copies threads; by default a :class:`PtraceCopier`.

    Raises:
        TargetSpecError: the id is this process's, a thread's or a kernel thread's; this machine is
            not supported; or the extension is not built.
        TargetGoneError: the process does not exist, or it has exited.
        TargetAccessError: the kernel denies access to it.
        FormatError: its architecture is not supported.
    """

    _is_own = False
    """Whether the target is this process; others refuse its id."""
    _activity: ActivityReader | None = None
    _ranges: tuple[Sequence[Mapping], array[int]] = (), _NO_RANGES

    def __init__(self, pid: int, *, copier: ThreadCopier | None = None) -> None:
        check_host()
        if pid <= 0:
            raise TargetSpecError(f"{pid} is not a process id")
        self._directory = self._open_directory(pid)
        try:
            self._process = identify(self._directory, is_own=self._is_own)
            with open_memory(self._directory):
                pass  # the right to read it is the right to stop it
            self._mappings = MappingsReader(self._directory)
            self._images = ImageFinder(self._directory)
            self._facts = self._facts_gatherer()
            self._freezing: tuple[LoadedImages, FreezingCopier | MachtraceError] | None = None
            self._other_tracer = OtherTracer(self._directory)
            self._copier = PtraceCopier() if copier is None else copier
        except BaseException:
            self._directory.close()
            raise

    def _open_directory(self, pid: int) -> ProcessDirectory:
        """Open the process's directory below ``/proc``; called once, before the other hooks.

        Args:
            pid: the constructor's. A subclass may give it another meaning, but ``pid`` of the
                returned directory, and its thread ids, are those that this process sees: ptrace
                takes no others.
        """
        return ProcessDirectory(pid)

    def _open_memory(self) -> AbstractContextManager[MemoryReader]:
        """Open the process's memory; called for each snapshot."""
        return open_memory(self._directory)

    def _facts_gatherer(self) -> FactsGatherer:
        """Create the gatherer of facts that cores need; ``_directory`` and ``_process`` are set."""
        return FactsGatherer(self._directory, self._process.arch)

    @property
    def process(self) -> ProcessInfo:
        """Which one."""
        return self._process

    def threads(self) -> tuple[ThreadInfo, ...]:
        """See :meth:`~machtrace.targets.base.Target.threads`."""
        self._directory.live_thread()  # one that has exited is still listed until it is collected
        return tuple(self._describe(self._directory.thread_ids(), before=0))

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`.

        Threads that start meanwhile are copied too, if all are requested.

        Raises:
            TargetGoneError: the process exited.
            TargetAccessError: the kernel did not let any of its threads be stopped.
        """
        return self._snapshot(
            stack_limit,
            lambda _images, _memory: self._copier,
            lambda capture, mappings: self._copy(capture, mappings, threads),
        )

    def _snapshot(
        self,
        stack_limit: int,
        choose_copier: Callable[[LoadedImages, MemoryReader], ThreadCopier],
        copy: Callable[[ThreadCapture, Sequence[Mapping]], None],
    ) -> Snapshot:
        with self._open_memory() as memory:
            mappings = self._mappings.read()
            # Before the threads: the process may exit while they are copied.
            images = self._images.find(mappings, memory)
            gathered = self._facts.gather(mappings, memory)
            capture = ThreadCapture(
                CaptureSource(
                    directory=self._directory,
                    other_tracer=self._other_tracer,
                    arch=self._process.arch,
                    memory=memory,
                    copier=choose_copier(images, memory),
                    stack_limit=max(0, min(stack_limit, MAX_STACK)),
                )
            )
            if self._activity is not None:
                capture.found.activity = self._activity.end
            copy(capture, mappings)
            capture.check_any()
            after = self._mappings_after(mappings)
            if after != mappings:
                # A thread may be in what was loaded meanwhile, or unloaded.
                images = with_earlier(self._images.find(after, memory), images)
                with suppress(TargetError):
                    gathered = self._facts.gather(after, memory)
        return snapshot_of(self._process, capture.found, images, gathered)

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """See :meth:`~machtrace.targets.base.PythonTarget.snapshot_with_python`.

        All threads of the process are stopped together until stacks and functions are read.

        Raises:
            TargetGoneError, TargetAccessError: see :meth:`snapshot`.
        """
        from machtrace.cpython.threads import with_problem

        if not stacks and (quick := self._python_snapshot(threads)) is not None:
            return quick
        copier: FreezingCopier | MachtraceError | None = None

        def choose_copier(images: LoadedImages, memory: MemoryReader) -> ThreadCopier:
            nonlocal copier
            copier = self._freezing_copier(images, memory)
            if not isinstance(copier, MachtraceError):
                copier.begin()
            return self._copier if isinstance(copier, MachtraceError) else copier

        def copy(capture: ThreadCapture, mappings: Sequence[Mapping]) -> None:
            if threads is not None or copier is None or isinstance(copier, MachtraceError):
                self._copy(capture, mappings, threads)
                return
            self._begin_activity(self._directory.thread_ids())
            ranges = self._ranges_of(mappings)
            copies = copier.copy_all(ranges, stack_limit=capture.source.stack_limit)
            infos = tuple(self._describe([copy.id for copy in copies], before=0))
            capture.take(infos, copies, ranges)

        snapshot = self._snapshot(stack_limit, choose_copier, copy)
        if copier is None or isinstance(copier, MachtraceError):
            return (snapshot if copier is None else with_problem(snapshot, copier)), {}
        return copier.completed(snapshot)

    def _python_snapshot(
        self, threads: Collection[ThreadId] | None
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]] | None:
        """Copy what CPython stores alone; None if it has to be found first."""
        if self._freezing is None or isinstance(self._freezing[1], MachtraceError):
            return None
        copier = self._freezing[1]
        copier.begin()
        if self._activity is not None:
            self._begin_activity(self._directory.thread_ids())
        copies = copier.copy_all(_NO_RANGES, stack_limit=0)
        if copier.is_failing:
            self._freezing = None
            return None
        infos = self._describe([copy.id for copy in copies], before=0)
        captured = CapturedThreads()
        registers = RegisterSet(self._process.arch, Avma(0), ())
        for info, copy in zip(infos, copies, strict=True):
            if threads is not None and info.id not in threads:
                continue
            copied = copy if isinstance(copy, CopiedThread) else None
            if isinstance(copy, UncopiedThread) and not copy.is_uninterruptible:
                captured.miss(info, why_not(self._directory, copy))
                continue
            state, cpu_ns = (None, None)
            if self._activity is not None:
                state, cpu_ns = self._activity.end(info.id)
            captured.threads.append(
                ThreadSnapshot(
                    info=info,
                    registers=registers,
                    stack=_NO_STACK,
                    taken_at_ns=None if copied is None else copied.taken_at_ns,
                    stopped_for_ns=None if copied is None else copied.stopped_for_ns,
                    native_registers=b"" if copied is None else copied.registers,
                    state=state,
                    cpu_ns=cpu_ns,
                )
            )
        for thread in threads or ():
            if thread not in {copy.id for copy in copies}:
                error = ThreadGoneError(f"thread {thread} does not exist", thread=thread)
                captured.problems.append(Problem(thread=thread, error=error))
        snapshot = Snapshot(
            process=self._process,
            threads=tuple(captured.threads),
            images=_NO_IMAGES,
            memory=RegionMemory(()),
            problems=tuple(captured.problems),
        )
        return copier.completed(snapshot)

    def _freezing_copier(
        self, images: LoadedImages, memory: MemoryReader
    ) -> FreezingCopier | MachtraceError:
        """Return the copier for the CPython in ``images``; the same until they change."""
        if self._freezing is None or self._freezing[0] is not images:
            self._freezing = images, self._new_freezing_copier(images, memory)
        return self._freezing[1]

    def _new_freezing_copier(
        self, images: LoadedImages, memory: MemoryReader
    ) -> FreezingCopier | MachtraceError:
        from machtrace.targets.linux.freeze import FreezingCopier

        try:
            runtime = self._python_runtime(images, memory)
        except (FormatError, MemoryReadError, TargetError) as error:
            if isinstance(error, TargetGoneError | TargetAccessError):
                raise
            return error
        return FreezingCopier(self._directory, self._other_tracer, runtime)

    def _python_runtime(self, images: LoadedImages, memory: MemoryReader) -> PythonRuntime:
        from machtrace.cpython.runtime import find_runtime

        files = {
            loaded_image.image.load_address: loaded_image.segments[:1] for loaded_image in images
        }

        def file_of(image: BinaryImage) -> memoryview | None:
            return next(
                (loaded_image.file.data for loaded_image in files[image.load_address]), None
            )

        loaded = [loaded_image.image for loaded_image in images]
        return find_runtime(loaded, memory, file_of, self._process.path)

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        if self._activity is not None:
            self._activity.close()
        self._directory.close()

    def observe_activity(self) -> None:
        """See :meth:`~machtrace.targets.base.ActivityTarget.observe_activity`."""
        if self._activity is None:
            self._activity = self._activity_reader()

    def _activity_reader(self) -> ActivityReader:
        """Create the reader of threads' states and processor times; called once at most."""
        return ActivityReader(self._directory)

    def _begin_activity(self, threads: Sequence[int], *, are_all: bool = True) -> None:
        if self._activity is not None:
            self._activity.begin(threads, are_all=are_all)

    def _describe(self, threads: Sequence[int], *, before: int) -> Iterator[ThreadInfo]:
        for index, thread in enumerate(threads, before + 1):
            yield ThreadInfo(
                id=ThreadId(thread),
                index=index,
                name=self._name(thread) or None,
                is_main=thread == self._directory.pid,
            )

    def _name(self, thread: int) -> str:
        """Return a thread's name; empty if it has none."""
        known = None if self._activity is None else self._activity.name(thread)
        if known is not None:
            return known
        try:
            return self._directory.read(f"task/{thread}/comm").removesuffix("\n")
        except (OSError, TargetGoneError):
            return ""

    def _left_out(self) -> int:
        """Return the id of a thread that is copied only if its id is requested; 0 for none."""
        return 0

    def _copy(
        self,
        capture: ThreadCapture,
        mappings: Sequence[Mapping],
        threads: Collection[ThreadId] | None,
    ) -> None:
        ids = self._directory.thread_ids()
        if threads is not None:
            self._begin_activity([thread for thread in ids if thread in threads])
            wanted = [info for info in self._describe(ids, before=0) if info.id in threads]
            capture.add(wanted, self._ranges_of(mappings))
            for thread in threads:
                if thread not in ids:
                    error = ThreadGoneError(f"thread {thread} does not exist", thread=thread)
                    capture.found.problems.append(Problem(thread=thread, error=error))
            return
        new: Sequence[int] = ids
        seen: set[int] = set()
        left_out = self._left_out()
        for _ in range(_ROUNDS):
            self._begin_activity(new, are_all=not seen)
            described = [
                info for info in self._describe(new, before=len(seen)) if info.id != left_out
            ]
            capture.add(described, self._ranges_of(mappings), are_new=bool(seen))
            seen.update(new)
            try:
                new = [thread for thread in self._directory.thread_ids() if thread not in seen]
                if not new:
                    return
                mappings = self._mappings.read()
            except TargetError:
                return  # the copies so far remain

    def _ranges_of(self, mappings: Sequence[Mapping]) -> array[int]:
        """Return :func:`stack_ranges` of mappings; the same until they change."""
        if self._ranges[0] is not mappings:
            self._ranges = mappings, stack_ranges(mappings)
        return self._ranges[1]

    def _mappings_after(self, mappings: tuple[Mapping, ...]) -> tuple[Mapping, ...]:
        """Return the current mappings; ``mappings`` if the process has exited."""
        try:
            return self._mappings.read()
        except TargetError:
            return mappings


def snapshot_of(
    process: ProcessInfo,
    captured: CapturedThreads,
    images: LoadedImages,
    gathered: GatheredFacts,
) -> Snapshot:
    """Build the snapshot of captured threads and the images of that time."""
    regions = (
        *(thread.stack for thread in captured.threads),
        *captured.interrupted_stacks,
        *(region for image in images for region in image.regions),
    )
    return Snapshot(
        process=process,
        threads=tuple(captured.threads),
        images=images.image_list,
        # Apart, for what the loader keeps may lie within a stack.
        memory=LayeredMemory((RegionMemory(regions), images.files, RegionMemory(gathered.regions))),
        problems=tuple(captured.problems),
        linux=gathered.facts,
    )
