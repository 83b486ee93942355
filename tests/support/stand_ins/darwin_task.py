"""A stand-in for the extension that talks to the kernel of macOS: it serves a snapshot's process.

Its answers follow ``native/darwin_task/task.h``. Each call can be made to fail. Resources that were
not released are known, as are threads that are still suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import ENOSYS, ESRCH
from typing import TYPE_CHECKING

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.dyld import find_image_infos
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.formats.macho.thread_state import thread_command
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, MemoryRegion, RegionMemory
from machtrace.model.snapshot import Snapshot, ThreadSnapshot

if TYPE_CHECKING:
    from machtrace._native._darwin_task import CopyRow, PortRow, ProcessRow, RightsRow, ThreadRow

_READ, _CONTROL = 1, 2
_LP64, _ROSETTA = 0x10, 0x2000000
_RUNNING = 2  # SRUN of sys/proc.h
_STATE_BEGINS = 16
"""In a thread command: behind ``cmd``, ``cmdsize``, ``flavor`` and ``count``."""
_QUEUE_VERSION = 6
_LABEL_OFFSET = 0x48
_QUEUES_AT = 0x1_5F00_0000
_QUEUE_STRIDE = 0x100
_PORT = 0x1303
_READABLE, _WRITABLE = 5, 3
_STACK_TAG = 30
_SUBTYPE_ALL = 0


@dataclass(slots=True)
class SnapshotTask:
    """Answers as the extension would of a process that stands as in a snapshot.

    A :class:`~machtrace.targets.darwin.extension.TaskExtension`.
    """

    snapshot: Snapshot
    """With memory that holds the images; of a thread the stack is all that is mapped there."""
    dyld: MemoryRegion
    """dyld, as it is loaded, with its list of the images."""
    pid: int = 4711
    user: int = 501
    own_user: int = 501
    code_signing: int = 0
    integrity: int = 0
    is_debugger: bool = False
    flags: int = _LP64
    status: int = _RUNNING
    own_cpu: int | None = None
    """The CPU type of the capturing process; None: the same as the target's."""
    knows_read_port: bool = True
    """Whether the system is macOS 11 or later."""
    failing: dict[str, int] = field(default_factory=dict)
    """By the name of a call, what it answers instead."""
    outcomes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By thread, what becomes of its copy: outcome and result."""
    run_states: dict[int, int] = field(default_factory=dict)
    """By thread, its ``TH_STATE_…`` if that is not 1."""
    cpu_ns: dict[int, int] = field(default_factory=dict)
    """By thread, its processor time if it has any."""
    on_copy: Callable[[], None] | None = None
    """Called while threads are copied."""
    calls: list[str] = field(default_factory=list)
    open_ports: int = 0
    hidden: set[int] = field(default_factory=set)
    """Threads that are not there yet, or not any more."""
    _labels: dict[int, MemoryRegion] = field(init=False)

    def __post_init__(self) -> None:
        self._labels = dict(self._queues())

    # --- TaskExtension ---

    def process(self, pid: int, /) -> tuple[int, ProcessRow | None]:
        """See the extension."""
        self.calls.append("process")
        if pid != self.pid or "process" in self.failing:
            return self.failing.get("process", ESRCH), None
        path = self.snapshot.process.path.encode()
        users = (self.user, self.user, self.user)
        name = path.rpartition(b"/")[2][:15]
        cpu = self._cpu
        signing = self.code_signing
        return 0, (1, users, self.flags, self.status, name, path, cpu, _SUBTYPE_ALL, signing)

    def rights(self) -> RightsRow:
        """See the extension."""
        cpu = self._cpu if self.own_cpu is None else self.own_cpu
        return self.own_user, self.integrity, self.is_debugger, False, 47, cpu

    def open_task(self, pid: int, /) -> PortRow:
        """See the extension."""
        self.calls.append("open_task")
        read_error = self.failing.get("task_read_for_pid", 0 if self.knows_read_port else ENOSYS)
        if pid == self.pid and not read_error:
            self.open_ports += 1
            return _PORT, _READ, 0, 0, 0
        result = self.failing.get("task_for_pid", 0)
        if pid == self.pid and not result:
            self.open_ports += 1
            return _PORT, _CONTROL, read_error, 0, 0
        return 0, 0, read_error, result, 0

    def close_task(self, port: int, /) -> None:
        """See the extension."""
        self._check(port)
        self.open_ports -= 1

    def find_region(self, port: int, address: int, /) -> tuple[int, int, int, int, int]:
        """See the extension."""
        self._check(port)
        writable = self._regions()
        images = [
            MemoryRegion(image.load_address, bytes(self._read(image.load_address, image.size)))
            for image in self.snapshot.images
        ]
        constant = {id(image) for image in images}
        for region in sorted([*writable, *images], key=lambda image: image.start):
            if address < region.end and region.data:
                protection = _READABLE if id(region) in constant else _WRITABLE
                return 0, region.start, len(region.data), protection, _STACK_TAG
        return 1, 0, 0, 0, 0

    def read_memory(self, port: int, ranges: list[tuple[int, int]], /) -> list[bytes]:
        """See the extension."""
        self._check(port)
        self.calls.append("read_memory")
        return [self._read(address, size) for address, size in ranges]

    def dyld_info(self, port: int, /) -> tuple[int, int, int, int]:
        """See the extension."""
        self._check(port)
        if "task_info" in self.failing:
            return self.failing["task_info"], 0, 0, 0
        contents = MachOMemoryContents(RegionMemory((self.dyld,)), self.dyld.start, "dyld")
        infos = find_image_infos(contents)
        return 0, infos or 0, 360, 1

    def label_offset(self) -> tuple[int, int] | None:
        """See the extension."""
        return _QUEUE_VERSION, _LABEL_OFFSET

    def list_threads(self, port: int, /) -> tuple[int, list[ThreadRow]]:
        """See the extension."""
        self._check(port)
        self.calls.append("list_threads")
        if "task_threads" in self.failing:
            return self.failing["task_threads"], []
        return 0, [
            (
                thread.info.id,
                0,
                self._queue_place(thread) if thread.info.queue else 0,
                self.run_states.get(thread.info.id, 1),
                0,
                (thread.info.name or "").encode(),
                self.cpu_ns.get(thread.info.id, 0),
            )
            for thread in self._threads()
        ]

    def copy_threads(
        self,
        port: int,
        threads: tuple[int, ...],
        stack_limit: int,
        address_mask: int,
        together: bool,  # noqa: FBT001 - as the extension has it
        /,
    ) -> tuple[int, int, list[CopyRow]]:
        """See the extension."""
        self._check(port)
        self.calls.append("copy together" if together else "copy one by one")
        if self.on_copy is not None:
            self.on_copy()
        suspended = self.failing.get("task_suspend2" if together else "task_threads", 0)
        if suspended:
            return suspended, 0, []
        there = {thread.info.id: thread for thread in self._threads()}
        rows: list[CopyRow] = []
        for number in threads:
            thread = there.get(number)  # type: ignore[call-overload]  # an id is an int
            outcome, result = self.outcomes.get(number, (0, 0))
            if thread is None or outcome:
                now = time.monotonic_ns()
                rows.append((number, outcome or 1, result, 0, b"", (), now, now, now, 0))
            else:
                rows.append(self._copied(thread, stack_limit, address_mask))
        return 0, self.failing.get("task_resume2", 0), rows

    # --- the process ---

    @property
    def _cpu(self) -> int:
        return CPU_TYPE_ARM64 if self.snapshot.process.arch.is_arm64 else CPU_TYPE_X86_64

    def _check(self, port: int) -> None:
        if port != _PORT or self.open_ports < 1:
            raise AssertionError(f"a call on port {port:#x}, which is not open")

    def _threads(self) -> list[ThreadSnapshot]:
        return [thread for thread in self.snapshot.threads if thread.info.id not in self.hidden]

    def _copied(self, thread: ThreadSnapshot, stack_limit: int, address_mask: int) -> CopyRow:
        before = time.monotonic_ns()
        registers = thread_command(thread.registers)[_STATE_BEGINS:]
        sp = (thread.registers.sp or 0) & address_mask
        below = sp - thread.stack.start
        stack = bytes(thread.stack.data[: below + stack_limit]) if stack_limit else b""
        queue = 0
        if thread.info.queue:
            pointer = self._read(self._queue_place(thread), 8)
            queue = int.from_bytes(pointer, "little")
        now = time.monotonic_ns()
        start = thread.stack.start
        return thread.info.id, 0, 0, 0, registers, ((start, stack),), before, before, now, queue

    def _queue_place(self, one: ThreadSnapshot) -> int:
        return _QUEUES_AT + one.info.index * _QUEUE_STRIDE

    def _queues(self) -> Mapping[int, MemoryRegion]:
        """Return each thread's word with its queue's address, and that queue with its label."""
        regions: dict[int, MemoryRegion] = {}
        for thread in self.snapshot.threads:
            if not thread.info.queue:
                continue
            address = self._queue_place(thread)
            queue, label = address + 0x10, address + 0x80
            data = queue.to_bytes(8, "little").ljust(0x10 + _LABEL_OFFSET, b"\0")
            data = (data + label.to_bytes(8, "little")).ljust(0x80, b"\0")
            data = (data + thread.info.queue.encode() + b"\0").ljust(_QUEUE_STRIDE, b"\0")
            regions[address] = MemoryRegion(Avma(address), data)
        return regions

    def _regions(self) -> list[MemoryRegion]:
        stacks = (thread.stack for thread in self.snapshot.threads)
        return sorted([*stacks, *self._labels.values(), self.dyld], key=lambda one: one.start)

    def _read(self, address: int, size: int) -> bytes:
        """Read as much as possible, found by halving."""
        memory = LayeredMemory((RegionMemory(self._regions()), self.snapshot.memory))
        try:
            return bytes(memory.read(Avma(address), size))
        except MemoryReadError:
            good, bad = 0, size
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                memory.read(Avma(address), middle)
                good = middle
            except MemoryReadError:
                bad = middle
        return bytes(memory.read(Avma(address), good)) if good else b""
