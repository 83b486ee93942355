"""Which processes run, and whether a process id is of one that can be captured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES
from pathlib import Path

from machtrace.errors import TargetAccessError, TargetError, TargetSpecError
from machtrace.formats.elf.headers import HEADER_SIZE, read_header
from machtrace.model.address import PacMask
from machtrace.model.snapshot import ProcessInfo
from machtrace.targets.base import RunningProcess
from machtrace.targets.linux.access import access_error
from machtrace.targets.linux.procfs import EXITED_STATES, PF_KTHREAD, ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping, address_width, parse_maps

_HOSTS = ("x86_64", "aarch64")
_MAX_READS = 100
"""Times that an empty memory map is read again: threads exit meanwhile."""
_MAX_VALUE = (1 << 63) - 1
"""``sys.maxsize`` of a 64-bit interpreter; a 32-bit one sees 64-bit threads cut short."""


def check_host() -> None:
    """See that processes can be captured on this machine at all.

    Raises:
        TargetSpecError: they cannot.
    """
    machine = os.uname().machine if sys.platform == "linux" else sys.platform
    if machine not in _HOSTS or sys.maxsize < _MAX_VALUE:
        raise TargetSpecError(
            f"capturing processes is not supported on this machine ({machine})",
            remedy=f"capture on Linux ({' or '.join(_HOSTS)}), or open a core file",
        )


def identify(directory: ProcessDirectory, *, is_own: bool = False) -> ProcessInfo:
    """Identify a process; this process only if ``is_own``.

    Raises:
        TargetSpecError: this one, a thread of another, or one of the kernel's.
        TargetGoneError: it has exited.
        TargetAccessError: the kernel denies access.
        FormatError: its program is for a machine that is not known here.
    """
    pid, status = directory.pid, directory.status()
    process, name = int(status.get("Tgid", pid)), status.get("Name", "")
    if process == os.getpid() and not is_own:
        raise TargetSpecError(
            f"process {pid} is this process, which cannot stop itself",
            remedy="use the target self, or capture it from another process",
        )
    if process != pid:
        raise TargetSpecError(
            f"{pid} is a thread of process {process} ({name})",
            remedy=f"pass the process id {process}",
        )
    if directory.is_kernel_thread():
        raise TargetSpecError(
            f"process {pid} ({name}) is a kernel thread",
            remedy="pass the id of a user-space process",
        )
    try:
        program = directory.open_live("exe")
    except OSError as error:
        raise access_error(directory, error) from None
    try:
        path = str(Path(f"/proc/self/fd/{program}").readlink()).removesuffix(" (deleted)")
        arch = read_header(os.pread(program, HEADER_SIZE, 0), path).arch
    finally:
        os.close(program)
    mask = PacMask.of_width(address_width(read_mappings(directory))) if arch.is_arm64 else PacMask()
    return ProcessInfo(pid=pid, path=path, arch=arch, pointer_mask=mask)


def read_mappings(directory: ProcessDirectory) -> tuple[Mapping, ...]:
    """Read the process's current mappings; to read them repeatedly see :class:`MappingsReader`.

    Raises:
        TargetGoneError: it has exited.
        TargetAccessError: the kernel denies access.
    """
    return MappingsReader(directory).read()


class MappingsReader:
    """Reads what one process has mapped; the very same tuple as long as that does not change."""

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._text = ""
        self._mappings: tuple[Mapping, ...] = ()

    def read(self) -> tuple[Mapping, ...]:
        """Read the current mappings. Raises as :func:`read_mappings` does."""
        text = _maps_text(self._directory)
        if text != self._text:
            self._mappings = parse_maps(text, f"/proc/{self._directory.pid}/maps")
            self._text = text
        return self._mappings


def _maps_text(directory: ProcessDirectory) -> str:
    thread = directory.pid  # nearly always, and its state need not be read
    for _ in range(_MAX_READS):
        try:
            text = directory.read(f"task/{thread}/maps")
        except PermissionError as error:
            raise access_error(directory, error) from None
        except OSError:
            text = ""
        if text:
            return text
        # Of a thread that has exited they are empty.
        thread = directory.live_thread()
    raise TargetAccessError(
        f"the memory map of process {directory.pid} is hidden",
        pid=directory.pid,
        errno=EACCES,
        remedy="run outside of the container that hides it",
    )


def running_processes() -> Iterator[RunningProcess]:
    """Yield the processes that run now, without zombies, kernel threads and this one."""
    hertz, now = os.sysconf("SC_CLK_TCK"), time.time()
    booted = now - time.clock_gettime(time.CLOCK_BOOTTIME)
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with ProcessDirectory(int(name)) as directory:
                text = directory.read("stat")
                fields = text[text.rfind(")") + 2 :].split()
                if fields[0] in EXITED_STATES or int(fields[6]) & PF_KTHREAD:
                    continue
                arguments = directory.read("cmdline").removesuffix("\0").split("\0")
                owner = directory.owner("stat")
                program = ""
                with suppress(OSError):  # of another user
                    program = directory.link("exe").removesuffix(" (deleted)")
        except (OSError, TargetError):
            continue  # it has exited
        yield RunningProcess(
            pid=int(name),
            name=text[text.find("(") + 1 : text.rfind(")")],
            program=program,
            arguments=tuple(arguments),
            user=owner,
            started_at=booted + int(fields[19]) / hertz,
        )
