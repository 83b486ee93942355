"""Facts about the waits of threads, read without stopping them: proc(5), memory.

A kernel without ``CONFIG_PROC_CHILDREN`` lists no child processes, and hides system calls from
users that may not trace the process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from machtrace.errors import MachtraceError, MemoryReadError, TargetError, TargetGoneError
from machtrace.formats.elf.headers import HEADER_SIZE, read_header
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.model.polls import SystemCall
from machtrace.targets.linux.access import access_error
from machtrace.targets.linux.identity import read_mappings
from machtrace.targets.linux.images import ImageFinder
from machtrace.targets.linux.memory import ProcessMemory
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory

if TYPE_CHECKING:  # most processes run no Python
    from machtrace.cpython.locks import LockReader
    from machtrace.cpython.runtime import PythonRuntime

_CALL_SIZE = 256
_SYSTEM_CALLS = {Arch.X86_64: b"\x0f\x05", Arch.ARM64: b"\x01\x00\x00\xd4"}
"""The instruction of a system call."""
_RETURN_POLL_S = 0.001
_MAX_OPEN = 256
"""Threads whose files stay open."""
_LIST_USES = 10
"""Surveys after which threads are listed again, even if their number is the same."""
_SWITCHES = re.compile(
    r"^voluntary_ctxt_switches:\s+(\d+)\nnonvoluntary_ctxt_switches:\s+(\d+)", re.MULTILINE
)


def parse_call(text: bytes) -> SystemCall | None:
    """Parse ``/proc/PID/task/TID/syscall``; None if the thread runs, or waits elsewhere."""
    words = text.split()
    try:
        number, *arguments, sp, pc = (int(word, 0) for word in words)
    except ValueError:
        return None
    return SystemCall(number, tuple(arguments), Avma(sp), Avma(pc))


class LinuxLocks:
    """Reads about a process and others; a :class:`~machtrace.watching.locks.waits.LockSource`."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._used: set[int] = set()
        """The processes that were read since the last refresh."""
        self._file_locks: str | None = None

    def refresh(self) -> None:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.refresh`."""
        self._file_locks = None
        for number, (pid, process) in enumerate([*self._processes.items()]):
            if number == 0 or pid in self._used:  # the first one is watched, others are owners
                process.refresh()
            else:
                self._processes.pop(pid).close()
        self._used.clear()

    def threads(self, pid: int) -> Mapping[int, int]:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.threads`."""
        return self._of(pid).threads()

    def call(self, pid: int, thread: int) -> SystemCall | None:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.call`."""
        return self._of(pid).call(thread)

    def await_return(self, pid: int, stopped: Mapping[int, Avma], limit_ns: int) -> None:
        """Wait until threads that were stopped in a system call are in one again.

        Args:
            pid: the process.
            stopped: the pc of each thread that was stopped.
            limit_ns: the longest wait: on a busy host they have to wait for a processor.

        Raises:
            TargetGoneError, TargetAccessError: as :meth:`threads`.
        """
        process, end = self._of(pid), time.monotonic_ns() + limit_ns
        instruction = _SYSTEM_CALLS.get(process.arch(), b"")
        pending = [
            thread
            for thread, pc in stopped.items()
            if instruction and process.call(thread) is None and process.is_after(instruction, pc)
        ]
        while pending and time.monotonic_ns() < end:
            time.sleep(_RETURN_POLL_S)
            pending = [thread for thread in pending if process.call(thread) is None]

    def switches(self, pid: int, thread: int) -> tuple[int, int] | None:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.switches`."""
        try:
            text = self._of(pid).directory.read(f"task/{thread}/status")
        except OSError:
            return None
        match = _SWITCHES.search(text)
        return None if match is None else (int(match[1]), int(match[2]))

    def name(self, pid: int, thread: int) -> str:
        """Return a thread's name; empty if it has exited."""
        try:
            return self._of(pid).directory.read(f"task/{thread}/comm").removesuffix("\n")
        except OSError:
            return ""

    def arch(self, pid: int) -> Arch:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.arch`."""
        return self._of(pid).arch()

    def memory(self, pid: int) -> MemoryReader:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.memory`."""
        return self._of(pid)

    def mapped_files(self, pid: int) -> frozenset[str]:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.mapped_files`."""
        mappings = read_mappings(self._of(pid).directory)
        return frozenset(mapping.path for mapping in mappings if mapping.is_file)

    def python(self, pid: int) -> LockReader | None:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.python`."""
        return self._of(pid).python()

    def children(self, pid: int) -> Mapping[int, int]:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.children`."""
        process = self._of(pid)
        depth = len(process.namespaces) - 1
        children: dict[int, int] = {}
        for thread in process.threads().values():
            with suppress(OSError):
                for word in process.directory.read(f"task/{thread}/children").split():
                    with suppress(MachtraceError, OSError), ProcessDirectory(int(word)) as child:
                        listed = child.namespace_ids(child.pid)
                        children[listed[min(depth, len(listed) - 1)]] = child.pid
        return children

    def file_locks(self) -> str:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.file_locks`."""
        if self._file_locks is None:
            try:
                with open("/proc/locks", encoding="ascii") as file:  # noqa: PTH123 - a kernel's file
                    self._file_locks = file.read()
            except OSError:
                self._file_locks = ""
        return self._file_locks

    def file(self, pid: int, descriptor: int) -> tuple[tuple[tuple[int, int], int] | None, str]:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.file`."""
        directory = self._of(pid).directory
        try:
            path = directory.link(f"fd/{descriptor}")
            status = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116 - a descriptor
        except OSError:
            return None, ""
        return _file_id(status), path.removesuffix(" (deleted)")

    def flock_holders(self, file: tuple[tuple[int, int], int]) -> tuple[int, ...]:
        """See :meth:`~machtrace.watching.locks.waits.LockSource.flock_holders`."""
        names = os.listdir("/proc")  # noqa: PTH208 - names alone
        return tuple(int(name) for name in names if name.isdecimal() and _has_lock(int(name), file))

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def _of(self, pid: int) -> _Process:
        self._used.add(pid)
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = _Process(pid)
        return process


def _file_id(status: os.stat_result) -> tuple[tuple[int, int], int]:
    return (os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino


def _has_lock(pid: int, file: tuple[tuple[int, int], int]) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names alone
            with suppress(OSError):
                if _file_id(os.stat(f"{folder}/{name}")) != file:  # noqa: PTH116 - many of them
                    continue
                with open(f"{folder}info/{name}", encoding="ascii") as info:  # noqa: PTH123
                    if any("FLOCK" in line and line.startswith("lock:") for line in info):
                        return True
    return False


class _Process:
    """A process of which something is read; also the reader of its memory."""

    def __init__(self, pid: int) -> None:
        self.directory = ProcessDirectory(pid)
        self.namespaces = self.directory.namespace_ids(pid)
        self._calls: dict[int, int] = {}
        self._texts: dict[int, tuple[bytes, SystemCall | None]] = {}
        self._tasks = -1
        self._links = 0
        self._uses = 0
        self._own_ids: dict[int, int] = {}
        self._threads: dict[int, int] | None = None
        self._memory = -1
        self._arch: Arch | None = None
        self._runtime: PythonRuntime | None = None
        self._has_python: bool | None = None

    def refresh(self) -> None:
        if self._threads is not None and not self._is_same_list():
            self._threads = None
        if self._memory >= 0:  # after execve(2) it is another memory
            os.close(self._memory)
            self._memory = -1

    def _is_same_list(self) -> bool:
        """Whether the number of threads is the same; one that exited is noticed by its files."""
        self._uses += 1
        if self._uses >= _LIST_USES:
            return False
        try:
            if self._tasks < 0:
                self._tasks = self.directory.open("task")
            links, self._links = self._links, os.fstat(self._tasks).st_nlink
        except (OSError, TargetGoneError):
            return False
        return links == self._links

    def close(self) -> None:
        self.refresh()
        for descriptor in (*self._calls.values(), self._tasks):
            if descriptor >= 0:
                os.close(descriptor)
        self._tasks = -1
        self._calls.clear()
        self.directory.close()

    def threads(self) -> dict[int, int]:
        if self._threads is None:
            self._uses = 0
            ids = self.directory.thread_ids()
            if self.directory.state(ids[0]) in EXITED_STATES:
                ids = ids[1:]  # the main thread may exit before others
            if not ids:
                raise self.directory.gone()
            if len(self.namespaces) > 1:
                self._own_ids = {id_: self._own_id(id_) for id_ in ids}
                self._threads = {own: id_ for id_, own in self._own_ids.items()}
            else:
                self._threads = {id_: id_ for id_ in ids}
            for gone in self._calls.keys() - set(ids):
                os.close(self._calls.pop(gone))
                self._texts.pop(gone, None)
        return self._threads

    def _own_id(self, thread: int) -> int:
        known = self._own_ids.get(thread)
        return self.directory.namespace_ids(thread)[-1] if known is None else known

    def call(self, thread: int) -> SystemCall | None:
        descriptor = self._calls.get(thread)
        is_new = descriptor is None
        try:
            if descriptor is None:
                descriptor = self.directory.open(f"task/{thread}/syscall")
            text = os.pread(descriptor, _CALL_SIZE, 0)
        except (OSError, TargetGoneError) as error:
            if descriptor is not None:
                self._calls.pop(thread, None)
                os.close(descriptor)
            self._threads = None
            if isinstance(error, PermissionError):
                raise access_error(self.directory, error) from None
            return None  # it has exited
        if is_new:
            if len(self._calls) < _MAX_OPEN:
                self._calls[thread] = descriptor
            else:
                os.close(descriptor)
        known = self._texts.get(thread)
        if known is None or known[0] != text:
            known = self._texts[thread] = text, parse_call(text)
        return known[1]

    def arch(self) -> Arch:
        if self._arch is None:
            try:
                program = self.directory.open_live("exe")
            except OSError as error:
                raise access_error(self.directory, error) from None
            try:
                self._arch = read_header(os.pread(program, HEADER_SIZE, 0), "").arch
            finally:
                os.close(program)
        return self._arch

    def is_after(self, instruction: bytes, pc: Avma) -> bool:
        size = len(instruction)
        try:
            return self.read(Avma(pc - size), size) == instruction
        except MemoryReadError:
            return False

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        if self._memory < 0:
            try:
                self._memory = self.directory.open_live("mem")
            except (OSError, TargetError):
                raise MemoryReadError(address, size) from None
        return ProcessMemory(self._memory).read(address, size)

    def python(self) -> LockReader | None:
        if self._has_python is None:
            self._runtime = self._find_python()
            self._has_python = self._runtime is not None
        runtime = self._runtime
        if runtime is None:
            return None
        from machtrace.cpython.locks import LockReader

        return LockReader(self, runtime.layout, runtime.address)

    def _find_python(self) -> PythonRuntime | None:
        from machtrace.cpython.runtime import find_runtime

        try:
            images = ImageFinder(self.directory).find(read_mappings(self.directory), self)
            files = {loaded.image.load_address: loaded.segments[:1] for loaded in images}
            program = self.directory.link("exe").removesuffix(" (deleted)")

            def file_of(image: BinaryImage) -> memoryview | None:
                return next((part.file.data for part in files[image.load_address]), None)

            return find_runtime([loaded.image for loaded in images], self, file_of, program)
        except (MachtraceError, OSError):
            return None
