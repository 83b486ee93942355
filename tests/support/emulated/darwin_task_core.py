"""The C core that captures other tasks, called in an emulator: ``native/darwin_task/task.h``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from machtrace.formats.macho.contents import MachOFileContents
from tests.support.emulated.library import EmulatedLibrary, Function
from tests.support.emulated.libsystem import Libsystem
from tests.support.emulated.mach import VARIABLES, MachThread
from tests.support.emulated.task import OtherTask

_LAYOUTS = {
    "port": ("port", "kind", "read_error", "control_error", "name_error"),
    "process": (
        *("parent", "user", "flags", "status", "name", "path", "cpu_type", "code_signing"),
    ),
    "rights": (
        *("user", "integrity", "integrity_known", "has_debugger_entitlement", "is_translated"),
        "address_bits",
    ),
    "info": (*("id", "handle", "queue_address", "cpu_ns", "run_state", "suspend_count", "name"),),
    "thread": (
        *("id", "outcome", "error", "registers", "registers_size", "stacks"),
        *("stack_count", "pthread_or_queue", "requested_at", "stopped_at", "resumed_at"),
    ),
    "capture": (
        *("port", "address_mask", "stack_limit", "together", "threads", "thread_count"),
        *("buffer", "room", "resume_error"),
    ),
}
_STALE = b"\xa5"


@dataclass(frozen=True, slots=True)
class TaskCopy:
    """``struct machtrace_thread``, as a copy left it."""

    id: int
    outcome: int
    error: int
    registers: bytes
    stack_start: int
    stack: bytes
    queue: int
    requested_at: int
    stopped_at: int
    resumed_at: int


class TaskCore:
    """The core, loaded into a process that captures another one."""

    def __init__(
        self,
        contents: MachOFileContents,
        threads: Sequence[MachThread],
        more: Mapping[str, Function] | None = None,
    ) -> None:
        """Load it.

        Args:
            contents: the library of ``native/darwin_task/*.c``, ``native/common/darwin/memory.c``
            and
                ``tests/emulated/darwin/task_layout.c``.
            threads: of the other process.
            more: further functions that are imported, by symbol.
        """
        functions: dict[str, Function] = {}
        self.library = library = EmulatedLibrary(contents, functions, VARIABLES, self._observe)
        self.memory = library.memory
        caller = MachThread(1)
        self.task = OtherTask(library.memory, library.allocate, library.free, list(threads), caller)
        self.task.errno_at = library.allocate(4)
        self.libsystem = Libsystem(
            library.memory, library.allocate, library.free, caller, self._refuses
        )
        functions |= self.libsystem.functions
        functions |= self.task.functions
        functions |= more or {}
        self._fields = {name: self._layout(name, fields) for name, fields in _LAYOUTS.items()}

    def _observe(self, name: str) -> None:
        self.task.observe(name)

    def _refuses(self, name: str) -> bool:
        return self.task.fault is not None and self.task.fault(name, ()) is not None

    def _layout(self, name: str, fields: Sequence[str]) -> dict[str, int]:
        start = self.library.address(f"_layout_task_{name}")
        return {field: self.memory.word(start + 8 * n) for n, field in enumerate(("size", *fields))}

    def _made(self, name: str) -> int:
        """Return a structure in which nothing is set."""
        place = self.library.allocate(self._fields[name]["size"])
        self.memory.write(place, _STALE * self._fields[name]["size"])
        return place

    def word(self, name: str, place: int, field: str, size: int = 4) -> int:
        """Return a field of a structure of this name."""
        return self.memory.word(place + self._fields[name][field], size)

    def text(self, name: str, place: int, field: str) -> bytes:
        """Return a field that ends with a NUL."""
        return self.memory.string(place + self._fields[name][field])

    # --- calls ---

    def open(self, pid: int) -> dict[str, int]:
        """``machtrace_task_open``: all fields."""
        place = self._made("port")
        self.library.call("_machtrace_task_open", pid, place)
        return {field: self.word("port", place, field) for field in _LAYOUTS["port"]}

    def close(self, port: int) -> None:
        """``machtrace_task_close``."""
        self.library.call("_machtrace_task_close", port)

    def process(self, pid: int) -> tuple[int, int]:
        """``machtrace_task_process``: an errno, and where the structure is."""
        place = self._made("process")
        return self.library.call("_machtrace_task_process", pid, place) % (1 << 32), place

    def rights(self) -> int:
        """``machtrace_task_rights``: where the structure is."""
        place = self._made("rights")
        self.library.call("_machtrace_task_rights", place)
        return place

    def threads(
        self, port: int, room: int
    ) -> tuple[int, int, list[tuple[int, int, bytes, int, int]]]:
        """``machtrace_task_threads``: result, how many, and facts of some.

        The facts are id, queue's place, name, run state and processor time.
        """
        size = self._fields["info"]["size"]
        place, count = self.library.allocate(size * max(1, room)), self.library.allocate(8)
        result = self.library.call("_machtrace_task_threads", port, place, room, count)
        rows = [place + size * index for index in range(min(room, self.memory.word(count)))]
        described = [
            (
                self.word("info", row, "id", 8),
                self.word("info", row, "queue_address", 8),
                self.text("info", row, "name"),
                self.word("info", row, "run_state"),
                self.word("info", row, "cpu_ns", 8),
            )
            for row in rows
        ]
        return result % (1 << 32), self.memory.word(count), described

    def copy(
        self,
        port: int,
        ids: Sequence[int],
        *,
        stack_limit: int,
        together: bool,
        room: int = 1 << 16,
        mask: int = (1 << 47) - 1,
    ) -> tuple[int, int, list[TaskCopy]]:
        """``machtrace_task_copy``: result, result of resuming, and the threads."""
        size = self._fields["thread"]["size"]
        threads = self.library.allocate(size * max(1, len(ids)))
        for index, number in enumerate(ids):
            self.memory.write(threads + size * index, _STALE * size)
            self.memory.set_word(threads + size * index + self._fields["thread"]["id"], number)
        capture, buffer = self._made("capture"), self.library.allocate(room)
        values = {
            "port": (port, 4),
            "address_mask": (mask, 8),
            "stack_limit": (stack_limit, 8),
            "together": (together, 1),
            "threads": (threads, 8),
            "thread_count": (len(ids), 8),
            "buffer": (buffer, 8),
            "room": (room, 8),
        }
        for field, (value, width) in values.items():
            self.memory.set_word(capture + self._fields["capture"][field], value, width)
        result = self.library.call("_machtrace_task_copy", capture)
        copies = [self._copied(threads + size * index) for index in range(len(ids))]
        left = self.word("capture", capture, "resume_error")
        self.library.free(buffer, room)
        return result % (1 << 32), left, copies

    def _copied(self, row: int) -> TaskCopy:
        def word(field: str, size: int = 8) -> int:
            return self.word("thread", row, field, size)

        stack = row + self._fields["thread"]["stacks"]
        count = word("stack_count")
        assert count <= 1, "of a task's threads one stack is copied"
        size = self.memory.word(stack + 8) if count else 0
        registers = row + self._fields["thread"]["registers"]
        return TaskCopy(
            id=word("id"),
            outcome=word("outcome", 4),
            error=word("error", 4),
            registers=self.memory.read(registers, word("registers_size")),
            stack_start=self.memory.word(stack) if count else 0,
            stack=self.memory.read(self.memory.word(stack + 16), size) if size else b"",
            queue=word("pthread_or_queue"),
            requested_at=word("requested_at"),
            stopped_at=word("stopped_at"),
            resumed_at=word("resumed_at"),
        )
