"""A process that a gdb-remote stub has: debugserver, lldb-server, gdbserver or qemu."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from machtrace.errors import (
    ConnectionLostError,
    MachtraceError,
    RemoteProtocolError,
    TargetError,
    TargetGoneError,
    ThreadGoneError,
)
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.memory import (
    LayeredMemory,
    MemoryReader,
    MemoryRegion,
    RegionMemory,
    without_overlap,
)
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    FileMapping,
    LinuxFacts,
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.gdbremote.breakpoints import CallBreakpoints, reported_registers
from machtrace.targets.gdbremote.causes import exception_cause
from machtrace.targets.gdbremote.connection import StubConnection
from machtrace.targets.gdbremote.detach import Connect
from machtrace.targets.gdbremote.features import expect_breakpoints
from machtrace.targets.gdbremote.host import RemoteSystem
from machtrace.targets.gdbremote.images import RemoteImageFinder, RemoteImages
from machtrace.targets.gdbremote.memory import RemoteMemory
from machtrace.targets.gdbremote.registers import RegisterReader
from machtrace.targets.gdbremote.spec import RemoteSpec, parse_spec
from machtrace.targets.gdbremote.stacks import RemoteStackReader
from machtrace.targets.gdbremote.stream import connect as connect_by_socket
from machtrace.targets.gdbremote.threads import RemoteThread, chosen, list_threads, read_registers
from machtrace.targets.shared.elf_images import entry_addresses
from machtrace.targets.shared.paged_memory import PagedMemory

_Result = TypeVar("_Result")
_FAILURES = (ConnectionLostError, RemoteProtocolError, TargetGoneError)
"""After these errors nothing more can be copied; earlier copies are retained."""
_LAST = 1 << 28
"""Upper limit for the bytes of one stack, regardless of the request."""


@dataclass(slots=True)
class _Copies:
    """The threads of one snapshot, as far as they are copied."""

    threads: list[ThreadSnapshot]
    problems: list[Problem]
    records: list[MemoryRegion]
    """Frame records that came unasked."""
    mask: PacMask


class GdbRemoteTarget(ClosedWhenLeft):
    """A stub's process as a :class:`~machtrace.targets.base.Target`.

    Memory and registers are never written, and the process is never ended. It is stopped from
    when the stub took it until the target is closed, and then is as it was: one that the stub
    attached to runs, without the stub; one that it started waits where it was
    (:mod:`machtrace.targets.gdbremote.detach`). Between two snapshots a process runs if its stub
    can stop it again without a signal that others would get too; gdbserver cannot.

    Args:
        spec: a ``gdb://`` target; see
        :func:`~machtrace.targets.gdbremote.spec.parse_spec`.
        connect: makes the stream to the stub; by default a socket's.

    Raises:
        TargetSpecError: the words name no stub, or its machine is not known here.
        ConnectionLostError: nobody answers there.
        RemoteProtocolError: what answers there is no stub, or one that lacks what is needed.
        TargetGoneError: its process has exited.
    """

    def __init__(self, spec: str | RemoteSpec, connect: Connect = connect_by_socket) -> None:
        self._spec = parse_spec(spec) if isinstance(spec, str) else spec
        self._stub = StubConnection(self._spec, connect)
        try:
            stub = self._stub
            self._memory = RemoteMemory(stub.session, stub.features)
            self._reader = RegisterReader.of(stub.table, stub.host.arch)
            self._finder = RemoteImageFinder(
                stub.session, stub.features, stub.host, self._memory, stub.pid
            )
            self._images: RemoteImages | None = None
            self._listed: tuple[RemoteThread, ...] | None = None
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> ProcessInfo:
        """Which one; its path is known once its images are."""
        host = self._stub.host
        return ProcessInfo(
            pid=self._stub.pid,
            path="" if self._images is None else self._images.program,
            arch=host.arch,
            pointer_mask=host.pointer_mask or host.usual_mask,
        )

    @property
    def round_trips(self) -> int:
        """How often the stub was waited for so far."""
        return self._stub.session.round_trips

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, in the stub's order.

        Raises:
            TargetGoneError: it exited.
            ConnectionLostError, RemoteProtocolError: the stub does not respond properly.
        """
        self._stub.stop()
        if self._listed is None:
            self._listed = list_threads(self._stub.session, self._stub.features)
        return tuple(self._info(index, one) for index, one in enumerate(self._listed, 1))

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`.

        If the connection breaks, what was copied until then is given, with the reason among the
        problems.

        Raises:
            TargetGoneError: the process exited.
            ConnectionLostError, RemoteProtocolError: not even its threads could be copied.
        """
        began = self._stub.stop()
        taken_at = time.monotonic_ns()
        if self._listed is None:
            self._listed = list_threads(self._stub.session, self._stub.features)
        copies = _Copies([], [], [], self.process.pointer_mask)
        interrupted: list[MemoryRegion] = []
        bytes_used: list[MemoryRegion] = []
        try:
            self._find_images(copies)
            self._copy(copies, threads, taken_at, max(0, min(stack_limit, _LAST)))
            interrupted = self._interrupted(copies, stack_limit)
            interrupted += self._finder.copy_contexts(copies.threads)
            if self._images is not None:
                bytes_used = self._finder.copy_used(
                    self._images.images, copies.threads, interrupted
                )
        except _FAILURES as error:
            if not copies.threads:
                raise
            copies.problems.append(Problem(thread=None, error=error))
        try:
            self._examine(copies.threads)
            if self._stub.resume():
                self._listed = None
        except _FAILURES as error:
            copies.problems.append(Problem(thread=None, error=error))
        return self._result(copies, interrupted, bytes_used, began)

    def breakpoints(
        self, *, stack_bytes: int | Callable[[int], int] = 0, waits: bool = False
    ) -> CallBreakpoints:
        """Return breakpoints of the process, which continues when the target is closed.

        Args:
            stack_bytes: how much of a stack is read with each call, or a function of the thread.
            waits: whether the process continues only after a call was taken.

        Raises:
            TargetGoneError: it exited.
            ConnectionLostError, RemoteProtocolError: the stub does not respond properly.
        """
        self._stub.stop()
        self._stub.watch(lambda _: None)
        if not self._stub.features.has_thread_suffix:  # lldb's stubs report it
            expect_breakpoints(self._stub.session)
        return CallBreakpoints(self._stub, self._memory, stack_bytes=stack_bytes, waits=waits)

    def images(self) -> Snapshot:
        """Copy the list of images, without threads; the process stays stopped.

        Raises:
            TargetGoneError: it exited.
            ConnectionLostError, RemoteProtocolError: the stub does not respond properly.
        """
        self._stub.stop()
        copies = _Copies([], [], [], self.process.pointer_mask)
        self._find_images(copies)
        return self._result(copies, (), (), None)

    def read(self, work: Callable[[MemoryReader], _Result]) -> _Result:
        """Return the result of work that reads memory, while the process is stopped.

        Args:
            work: is called again until all that it reads has been fetched.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not respond properly.
        """
        pages = PagedMemory(self._memory)
        return pages.gather(lambda: work(pages))

    @property
    def is_at_start(self) -> bool:
        """Whether a Linux process has not executed an instruction yet; after :meth:`images`."""
        images, stop = self._images, self._stub.last_stop
        if images is None or stop is None or not self._is_linux:
            return False
        mask = self.process.pointer_mask
        registers = self._reader.of_values(reported_registers(stop), mask)
        if registers is None:
            return False
        vector, arch = images.auxiliary_vector, self._stub.host.arch
        return registers.pc in self.read(lambda memory: entry_addresses(vector, arch, memory))

    @property
    def runs_between_snapshots(self) -> bool:
        """See :meth:`~machtrace.targets.base.PausingTarget.runs_between_snapshots`."""
        return self._stub.resumed_at_ns is not None

    def close(self) -> None:
        """Leave the process as it was, and hang up; calling it twice does nothing more."""
        self._stub.close()

    def _examine(self, threads: Sequence[ThreadSnapshot]) -> None:
        """Read more about copied threads before the process runs; nothing by default."""

    # --- threads ---

    def _info(self, index: int, thread: RemoteThread) -> ThreadInfo:
        number, pid = thread.handle.id, self._stub.pid
        cause = self._stub.cause_of(number, is_only=len(self._listed or ()) == 1)
        if cause is None and thread.exception is not None:
            cause = exception_cause(thread.exception, self._stub.host.arch, is_awaited=False)
        is_linux = self._stub.host.system is RemoteSystem.LINUX
        return ThreadInfo(
            id=ThreadId(number),
            index=index,
            name=thread.name,
            queue=thread.queue,
            # Darwin's first thread is the main one.
            is_main=number == pid if is_linux and pid is not None else index == 1,
            crashed=cause is not None and cause.is_fatal,
            cause=cause,
        )

    def _copy(
        self,
        copies: _Copies,
        wanted: Collection[ThreadId] | None,
        taken_at: int,
        stack_limit: int,
    ) -> None:
        listed = chosen(self._listed or (), wanted)
        for thread in sorted(
            set(wanted or ()) - {listed_thread.handle.id for _, listed_thread in listed}
        ):
            error = ThreadGoneError(f"thread {thread} does not exist", thread=thread)
            copies.problems.append(Problem(thread=ThreadId(thread), error=error))
        reader = self._stack_reader()
        expected = self._expected(listed, copies.mask)
        values, more = read_registers(
            self._stub.session,
            self._stub.features,
            self._reader,
            [listed_thread for _, listed_thread in listed],
            reader.requests(expected),
        )
        reader.add_replies(expected, more)
        copied: list[tuple[ThreadInfo, RegisterSet]] = []
        others: list[tuple[tuple[str, int], ...]] = []
        for (index, listed_thread), stated in zip(listed, values, strict=True):
            info = self._info(index, listed_thread)
            registers = self._registers(stated, copies.mask)
            if isinstance(registers, MachtraceError):
                copies.problems.append(Problem(thread=info.id, error=registers))
                continue
            copied.append((info, registers))
            has_cause = info.cause is not None
            others.append(
                ()
                if isinstance(stated, MachtraceError)
                else self._reader.others_of(stated, with_fault=has_cause)
            )
            copies.records.extend(listed_thread.memory)
        stacks = [self._nothing(registers) for _, registers in copied]
        try:
            stacks = reader.read([registers.sp or 0 for _, registers in copied], stack_limit)
            if stack_limit:
                copies.problems += _unread(copied, stacks, copies.problems)
        finally:
            # Without stacks, if need be: where each thread is, is good to know, too.
            copies.threads += [
                ThreadSnapshot(
                    info=info,
                    registers=registers,
                    stack=stack,
                    taken_at_ns=taken_at,
                    other_registers=other,
                )
                for (info, registers), stack, other in zip(copied, stacks, others, strict=True)
            ]

    def _expected(self, listed: Sequence[tuple[int, RemoteThread]], mask: PacMask) -> list[int]:
        """Stack pointers that came with the list of threads."""
        sets = [self._reader.of_values(one.registers, mask) for _, one in listed]
        return list({set_.sp: None for set_ in sets if set_ is not None and set_.sp})

    @staticmethod
    def _nothing(registers: RegisterSet) -> MemoryRegion:
        from machtrace.model.address import Avma

        return MemoryRegion(Avma(registers.sp or 0), b"")

    def _registers(
        self, values: Mapping[int, bytes] | MachtraceError, mask: PacMask
    ) -> RegisterSet | MachtraceError:
        if isinstance(values, MachtraceError):
            return values
        registers = self._reader.of_values(values, mask)
        if registers is None:
            return RemoteProtocolError(
                "registers without pc and sp", request="registers", reply=f"{len(values)} of them"
            )
        return registers

    def _stack_reader(self) -> RemoteStackReader:
        mappings = () if self._images is None else self._images.mappings
        return RemoteStackReader(self._stub.session, self._memory, self._stub.host.arch, mappings)

    def _interrupted(self, copies: _Copies, stack_limit: int) -> list[MemoryRegion]:
        if self._stub.host.system is not RemoteSystem.LINUX:
            return []
        stacks = [(thread.registers.sp or 0, thread.stack) for thread in copies.threads]
        return self._stack_reader().read_interrupted(stacks, max(0, min(stack_limit, _LAST)))

    # --- images ---

    def _find_images(self, copies: _Copies) -> None:
        try:
            self._images = self._finder.find(self._stub.resumed_at_ns)
        except ConnectionLostError:
            self._images = self._images or RemoteImages()
            raise
        copies.problems += [
            Problem(thread=None, error=problem) for problem in self._images.problems
        ]

    # --- all ---

    def _result(
        self,
        copies: _Copies,
        interrupted: Sequence[MemoryRegion],
        bytes_used: Sequence[MemoryRegion],
        began: int | None,
    ) -> Snapshot:
        images = self._images or RemoteImages()
        stacks = [thread.stack for thread in copies.threads]
        memory = LayeredMemory(
            (
                RegionMemory(without_overlap(stacks, interrupted, bytes_used)),
                RegionMemory(without_overlap(copies.records)),
            )
        )
        return Snapshot(
            process=self.process,
            threads=tuple(self._timed(thread, began) for thread in copies.threads),
            images=images.images,
            memory=memory,
            problems=tuple(copies.problems),
            shared_cache=images.shared_cache,
            linux=self._linux(images) if self._is_linux else None,
        )

    @property
    def _is_linux(self) -> bool:
        return self._stub.host.system is RemoteSystem.LINUX

    def _timed(self, thread: ThreadSnapshot, began: int | None) -> ThreadSnapshot:
        ended = self._stub.resumed_at_ns
        if began is None or ended is None or ended < began:
            return thread
        from dataclasses import replace

        return replace(thread, stopped_for_ns=ended - began)

    def _linux(self, images: RemoteImages) -> LinuxFacts:
        cause = self._stub.cause
        return LinuxFacts(
            auxiliary_vector=images.auxiliary_vector,
            file_mappings=tuple(
                FileMapping(mapping.start, mapping.end, mapping.offset, mapping.path)
                for mapping in images.mappings
                if mapping.is_file
            ),
            name=images.program.rpartition("/")[2][:15],
            signal=0 if cause is None or not cause.is_fatal else cause.signal_number or 0,
        )


def _unread(
    copied: Sequence[tuple[ThreadInfo, RegisterSet]],
    stacks: Sequence[MemoryRegion],
    problems: Sequence[Problem],
) -> list[Problem]:
    """Yield the problems of threads whose stacks could not be read; one problem if none could."""
    if len(copied) + len(problems) > 1 and not any(len(one.data) for one in stacks):
        error = TargetError(
            "no stack of the process can be read: it exited during the capture, or the stub "
            "may not read it",
            remedy="check whether it still runs, and whether the stub's own debugger can read it",
        )
        return [Problem(thread=None, error=error)]
    return [
        Problem(
            thread=info.id,
            error=TargetError(
                f"the stack of thread {info.id}, at {registers.sp or 0:#x}, cannot be read",
                remedy="check whether the stub's own debugger can read it",
            ),
        )
        for (info, registers), stack in zip(copied, stacks, strict=True)
        if not len(stack.data)
    ]
