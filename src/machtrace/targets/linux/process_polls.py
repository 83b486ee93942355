"""Polls of a Linux process as a whole: its memory, its processor time and its threads' counts.

Every poll reads ``statm`` (proc(5)) and the process's clock (clock_getcpuclockid(3)), for which no
right over the process is needed. The threads' ``schedstat`` and ``stat`` are read on request, and
limits when a condition needs them.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from fcntl import ioctl
from struct import Struct

from machtrace.clocks import process_clock
from machtrace.errors import TargetGoneError
from machtrace.model.incident.facts import HostLoad
from machtrace.model.polls import MemoryLimit, ProcessPoll, ThreadCount
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory, thread_use

_EXIT_CODE = 52 - 3
"""``exit_code`` in ``stat``, counted from the state (proc(5))."""
_CORE = 0x80
_PIDFD_INFO = Struct("<Q52xi")
"""The mask and the exit status of ``struct pidfd_info`` (``linux/pidfd.h``)."""
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
"""``PIDFD_INFO_EXIT``, and ``PIDFD_GET_INFO``, which is ``_IOWR(0xFF, 11, struct pidfd_info)``."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_OPEN = 256
"""Threads whose files stay open."""
_MAX_READ = 4096
"""Threads that are read."""
_READ_SIZE = 1024
_MINOR, _MAJOR, _USER, _SYSTEM = 7, 9, 11, 12
"""Fields of ``stat`` from the state on."""
_GROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60
_AS_LIMIT = re.compile(r"^Max address space\s+(\d+)", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_ROLLUP = re.compile(r"^(Anonymous|AnonHugePages|Swap):\s+(\d+) kB", re.MULTILINE)
_DETAILS = {
    "Anonymous": "anonymous_bytes",
    "AnonHugePages": "huge_page_bytes",
    "Swap": "swapped_bytes",
}


class ProcessPolls:
    """Polls a process.

    Args:
        directory: the process's; its owner closes it.
    """

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._clock = process_clock(directory.pid)
        self._statm = directory.open_live("statm")
        self._files: dict[int, tuple[int, int]] = {}
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_limited = allowed != resource.RLIM_INFINITY
        self._most_open = min(_MAX_OPEN, allowed // 8) if is_limited else _MAX_OPEN
        self._groups = _memory_groups(directory)
        self._has_clock = True

    def poll(self, *, with_threads: bool) -> ProcessPoll:
        """Poll the process, and its threads' counts if they are requested.

        Raises:
            TargetGoneError: it has exited.
        """
        at_ns, boot_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        cpu_ns = self._cpu_ns()
        try:
            words = os.pread(self._statm, _READ_SIZE, 0).split()
            if words[:1] in ([], [b"0"]):  # of a thread that has no memory any more
                os.close(self._statm)
                self._statm = -1
                self._statm = self._directory.open_live("statm")  # raises if it has exited
                words = os.pread(self._statm, _READ_SIZE, 0).split()
        except ProcessLookupError:
            self._directory.live_thread()
            words = []
        if words[:1] == [b"0"]:
            words = []
        virtual, resident = (*(int(word) * _PAGE for word in words[:2]), None, None)[:2]
        poll = ProcessPoll(at_ns, boot_ns, resident, virtual, cpu_ns)
        if not with_threads:
            return poll
        threads, unread = self._threads()
        return poll._replace(threads=threads, unread=unread)

    def counts(self, threads: Iterable[int]) -> dict[int, ThreadCount]:
        """Return the counts of those of ``threads`` that have not exited."""
        counts: dict[int, ThreadCount] = {}
        for thread in threads:
            try:
                stat, schedule = self._read(thread)
                fields = stat[stat.rindex(b")") + 2 :].split(None, _SYSTEM + 1)
                faults = int(fields[_MINOR]) + int(fields[_MAJOR])
                counts[thread] = ThreadCount(thread_use(stat, schedule).cpu_ns, faults)
            except (OSError, TargetGoneError, ValueError, IndexError):
                self._forget(thread)  # it exits
        return counts

    def limit(self) -> MemoryLimit:
        """Return the smallest limit of its memory: its control group's, its own, the machine's."""
        bounds = [MemoryLimit(_physical_memory(), "physical memory")]
        for folder in self._groups:
            for name in ("memory.max", "memory.limit_in_bytes"):
                size = _number(f"{folder}/{name}")
                if size is not None and size < _UNLIMITED:
                    bounds.append(MemoryLimit(size, "control group"))
        with suppress(OSError):
            match = _AS_LIMIT.search(self._directory.read("limits"))
            if match is not None:
                bounds.append(MemoryLimit(int(match[1]), "RLIMIT_AS", is_virtual=True))
        return min(bounds, key=lambda bound: bound.size)

    def oom_kills(self) -> int | None:
        """Return how many processes of its control group the kernel killed for memory."""
        for folder in self._groups:
            for name in ("memory.events", "memory.oom_control"):
                match = _OOM_KILLS.search(_text(f"{folder}/{name}"))
                if match is not None:
                    return int(match[1])
        return None

    def memory_details(self) -> dict[str, int]:
        """Return the kinds of memory in bytes (``smaps_rollup``); empty without that right."""
        try:
            text = self._directory.read("smaps_rollup")
        except OSError:
            return {}
        return {_DETAILS[name]: int(size) << 10 for name, size in _ROLLUP.findall(text)}

    def close(self) -> None:
        """Close all files but the directory; a second call does nothing."""
        for files in self._files.values():
            for descriptor in files:
                if descriptor >= 0:
                    os.close(descriptor)
        self._files.clear()
        if self._statm >= 0:
            os.close(self._statm)
        self._statm = -1

    def _cpu_ns(self) -> int | None:
        if self._has_clock:
            try:
                return time.clock_gettime_ns(self._clock)
            except OSError:
                self._directory.live_thread()  # raises if it has exited
                self._has_clock = False
        try:
            text = self._directory.read("stat")
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split(None, _SYSTEM + 1)
        return (int(fields[_USER]) + int(fields[_SYSTEM])) * _NS_PER_TICK

    def _threads(self) -> tuple[dict[int, ThreadCount], int]:
        ids = self._directory.thread_ids()
        for thread in self._files.keys() - set(ids):
            self._forget(thread)
        return self.counts(ids[:_MAX_READ]), max(0, len(ids) - _MAX_READ)

    def _read(self, thread: int) -> tuple[bytes, bytes]:
        files = self._files.get(thread)
        if files is not None:
            return os.pread(files[0], _READ_SIZE, 0), _pread(files[1])
        files = self._open(thread)
        try:
            return os.pread(files[0], _READ_SIZE, 0), _pread(files[1])
        finally:
            if len(self._files) < self._most_open:
                self._files[thread] = files
            else:
                for descriptor in files:
                    if descriptor >= 0:
                        os.close(descriptor)

    def _open(self, thread: int) -> tuple[int, int]:
        stat = self._directory.open(f"task/{thread}/stat")
        try:
            return stat, self._directory.open(f"task/{thread}/schedstat")
        except FileNotFoundError:
            return stat, -1
        except BaseException:
            os.close(stat)
            raise

    def _forget(self, thread: int) -> None:
        for descriptor in self._files.pop(thread, ()):
            if descriptor >= 0:
                os.close(descriptor)


def _pread(descriptor: int) -> bytes:
    return os.pread(descriptor, _READ_SIZE, 0) if descriptor >= 0 else b""


class ProcessEnd:
    """The end of a process that is not traced.

    Its parent receives the status. Others can read it, if it is not 0, in ``stat`` until the parent
    has collected it (proc(5)), and afterwards, since Linux 6.15, from a pidfd that was opened
    before the end (``PIDFD_INFO_EXIT``).

    Args:
        pid: its id.

    Raises:
        TargetGoneError: it does not exist.
    """

    def __init__(self, pid: int) -> None:
        self._directory = ProcessDirectory(pid)
        self._file = -1
        with suppress(OSError):  # the kernel is older than 5.3, or the process has just ended
            self._file = os.pidfd_open(pid)

    def status(self) -> int | None:
        """Return the wait status of the process, which has ended; None if it is unknown."""
        for read in (self._of_child, self._of_zombie, self._of_file):
            with suppress(OSError, TargetGoneError):
                if (status := read()) is not None:
                    return status
        return None

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        self._directory.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _of_child(self) -> int | None:
        # It is left to the code that started it.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        event = os.waitid(os.P_PID, self._directory.pid, options)
        return None if event is None else wait_status(event)

    def _of_zombie(self) -> int | None:
        text = self._directory.read("stat")
        fields = text[text.rfind(")") + 1 :].split()
        is_zombie = len(fields) > _EXIT_CODE and fields[0] in EXITED_STATES
        return int(fields[_EXIT_CODE]) or None if is_zombie else None

    def _of_file(self) -> int | None:
        if self._file < 0:
            return None
        information = bytearray(_PIDFD_INFO.size)
        _PIDFD_INFO.pack_into(information, 0, _INFO_EXIT, 0)
        ioctl(self._file, _GET_INFO, information)
        mask, status = _PIDFD_INFO.unpack(information)
        return status if mask & _INFO_EXIT else None


def wait_status(event: os.waitid_result) -> int:
    """Return what wait(2) states of the end that waitid(2) has returned."""
    if event.si_code == os.CLD_EXITED:
        return event.si_status << 8
    return event.si_status | (_CORE if event.si_code == os.CLD_DUMPED else 0)


def _memory_groups(directory: ProcessDirectory) -> tuple[str, ...]:
    """Return the folders of the control groups that limit its memory, the innermost first."""
    try:
        lines = directory.read("cgroup").splitlines()
    except (OSError, TargetGoneError):
        return ()
    folders: list[str] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = f"{_GROUPS}/{controllers}" if controllers else _GROUPS
        if not os.path.isdir(root + path):  # noqa: PTH112 - once for each process
            path = "/"  # a container's own group is the root of its namespace
        parts = [part for part in path.split("/") if part]
        folders += ["/".join((root, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    return tuple(folders)


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def host_load() -> HostLoad:
    """Return the load of this machine."""
    load = None
    with suppress(OSError):
        load = os.getloadavg()[0]
    return HostLoad(
        processors=os.cpu_count() or 1,
        load=load,
        cpu_pressure=_pressure("cpu"),
        memory_pressure=_pressure("memory"),
        io_pressure=_pressure("io"),
    )


def _pressure(name: str) -> float | None:
    """Read ``avg10`` of ``some`` (``Documentation/accounting/psi.rst`` of the kernel)."""
    try:
        return float(_text(f"/proc/pressure/{name}").partition("avg10=")[2].partition(" ")[0])
    except ValueError:
        return None
