"""A process in a core file."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.formats.macho.core.crash import core_cause, crashed_thread, with_trap
from machtrace.formats.macho.core.file import CoreFile, parse_core
from machtrace.formats.macho.core.images import CoreImages, find_images
from machtrace.formats.macho.thread_state import ThreadState
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.process_metadata import NotedThread
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.core.target import CoreTarget, noted_indexes, stack_region
from machtrace.targets.shared.file_mapping import is_elf_core, map_core

if TYPE_CHECKING:  # a Mach-O core is opened without it
    from machtrace.targets.core.elf import ElfCorefileTarget


def open_corefile(path: str | Path) -> CorefileTarget | ElfCorefileTarget:
    """Open a core, Mach-O or ELF.

    Raises:
        FileAccessError: there is no such file, or it cannot be read.
        CoreFileError: it is empty or not a Mach-O core.
        MachOError, ElfError: it ends before its header does.
    """
    if is_elf_core(str(path)):
        from machtrace.targets.core.elf import ElfCorefileTarget

        return ElfCorefileTarget(path)
    return CorefileTarget(path)


class CorefileTarget(CoreTarget[CoreFile]):
    """A Mach-O core as a :class:`~machtrace.targets.base.Target`."""

    def __init__(self, path: str | Path) -> None:
        """Map the file and read its load commands and notes; see :func:`open_corefile`."""
        super().__init__(str(path), parse_core(map_core(str(path)), str(path)))

    @cached_property
    def process(self) -> ProcessInfo:
        """Which one; its path is that of its main executable."""
        core, program = self.core, self._images.program
        return ProcessInfo(
            pid=core.metadata.pid,
            path=core.metadata.path or ("" if program is None else program.path),
            arch=core.arch,
            pointer_mask=core.pointer_mask,
        )

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads in the core's order, including unreadable ones.

        Raises:
            TargetError: the target was closed.
        """
        return thread_infos(self.core)

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Return ``threads`` (None: all) as the core has them; nothing is copied.

        A thread whose state is bad is left out, and a stack that is not in the core is empty; both
        are named in :attr:`Snapshot.problems`, and so is everything else that could not be read.
        """
        core, images, infos = self.core, self._images, self.threads()
        listed = frozenset(info.id for info in infos)
        wanted = listed if threads is None else frozenset(threads)
        notes = noted_threads(core)
        states = [thread.state for thread in core.threads]
        pointers = [state.registers.sp or 0 for state in states if isinstance(state, ThreadState)]
        copied: list[ThreadSnapshot] = []
        problems = [Problem(thread=None, error=error) for error in core.problems]
        problems += [Problem(thread=None, error=error) for error in images.problems]
        problems += [noted.problem for noted in core.metadata.problems]
        for thread, info in zip(core.threads, infos, strict=True):
            if info.id not in wanted:
                continue
            if not isinstance(thread.state, ThreadState):
                problems.append(Problem(thread=info.id, error=thread.state))
                continue
            registers = thread.state.registers
            stack = stack_region(core.memory.regions, registers, stack_limit, pointers)
            if not stack.data and stack_limit > 0:
                error = self._no_stack(info, thread.state.registers.sp)
                problems.append(Problem(thread=info.id, error=error))
            noted = notes[thread.index - 1]
            copied.append(
                ThreadSnapshot(
                    info=info,
                    registers=noted.restored(thread.state.registers),
                    stack=stack,
                    taken_at_ns=noted.taken_at_ns,
                    stopped_for_ns=noted.stopped_for_ns,
                    other_registers=noted.other_registers or _others(thread.state, info),
                )
            )
        problems += [
            Problem(thread=thread, error=self._no_thread(thread))
            for thread in sorted(wanted - listed)
        ]
        return Snapshot(
            process=self.process,
            threads=tuple(copied),
            images=images.images,
            memory=core.memory.regions,
            problems=tuple(problems),
        )

    @cached_property
    def _images(self) -> CoreImages:
        return find_images(self.core)


def noted_threads(core: CoreFile) -> tuple[NotedThread, ...]:
    """Return the "process metadata" of each thread of ``core``."""
    noted = core.metadata.threads
    # The note has an entry for each command, or it is about other threads.
    return noted if len(noted) == len(core.threads) else (NotedThread(),) * len(core.threads)


def _others(state: ThreadState, info: ThreadInfo) -> tuple[tuple[str, int], ...]:
    """Return flags and, where they are of the crash, fault registers: others are stale."""
    has_fault = info.crashed or info.cause is not None
    return (*state.flags, *(state.fault_registers if has_fault else ()))


def thread_infos(core: CoreFile) -> tuple[ThreadInfo, ...]:
    """Return the core's threads; ids and names are from "process metadata".

    A thread without an id there gets the lowest number that is free: without the note, its index.
    """
    crashed = crashed_thread(core)
    cause = None if crashed is None else core_cause(core, crashed)
    noted = noted_threads(core)
    # Darwin's first thread is the main one; a core that names none holds a part of the threads.
    is_named = any(note.is_main is not None for note in noted)
    main = next(
        (index for index, note in enumerate(noted, 1) if note.is_main), 0 if is_named else 1
    )
    taken = {note.id for note in noted}
    free = (number for number in count(1) if number not in taken)
    used: set[int] = set()
    infos: list[ThreadInfo] = []
    for thread, note, index in zip(core.threads, noted, noted_indexes(noted), strict=True):
        number = note.id
        if number is None or number in used:
            number = ThreadId(next(free))
        used.add(number)
        infos.append(
            ThreadInfo(
                id=number,
                index=index,
                name=note.name,
                queue=note.queue,
                is_main=thread.index == main,
                crashed=thread.index == crashed,
                cause=note.cause
                or with_trap(cause if thread.index == crashed else None, thread.state),
            )
        )
    return tuple(infos)
