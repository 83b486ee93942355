"""``/proc/PID`` as an open directory (proc(5))."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping as MappingType
from errno import ENOENT, ESRCH
from types import MappingProxyType
from typing import Self

from machtrace.errors import TargetError, TargetGoneError

_PF_KTHREAD = 0x00200000
"""``include/linux/sched.h`` of the kernel."""

_READ_SIZE = 1 << 16

EXITED_STATES = "ZXx"
"""Letters of threads that have exited, collected or not."""


class ProcessDirectory:
    """Reads the kernel's files about one process.

    The directory is held open, so a later process that is given the same id is never taken for
    this one: every method then raises TargetGoneError.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self._directory = os.open(f"/proc/{pid}", flags)
            self._close = weakref.finalize(self, os.close, self._directory)
        except FileNotFoundError:
            raise TargetGoneError(f"process {pid} does not exist", pid=pid) from None
        except OSError as error:
            raise TargetError(
                f"cannot open /proc/{pid} ({error.strerror})",
                remedy="mount the proc file system on /proc",
            ) from error

    def open(self, name: str) -> int:
        """Return a read-only descriptor of a file, which the caller closes.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the file cannot be opened.
        """
        self._check_open()
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError as error:
            raise self._gone_or(error) from None

    def read(self, name: str) -> str:
        """Return the text of a file; bytes that are not UTF-8 as :func:`os.fsdecode` converts them.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the file cannot be read.
        """
        # By descriptor: a file object takes longer to make than most of these take to read, and
        # samples read one for every thread.
        descriptor = self.open(name)
        try:
            parts = []
            while part := os.read(descriptor, _READ_SIZE):
                parts.append(part)
        except OSError as error:
            raise self._gone_or(error) from None
        finally:
            os.close(descriptor)
        return os.fsdecode(b"".join(parts))

    def link(self, name: str) -> str:
        """Return the target of a symbolic link.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the link cannot be read.
        """
        self._check_open()
        try:
            return os.readlink(name, dir_fd=self._directory)
        except OSError as error:
            raise self._gone_or(error) from None

    def owner(self, name: str) -> int:
        """Return the user id that owns a file. Raises as :meth:`link` does."""
        self._check_open()
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_uid
        except OSError as error:
            raise self._gone_or(error) from None

    def thread_ids(self) -> tuple[int, ...]:
        """Return the main thread's id, then the others in the order of their start.

        Raises:
            TargetGoneError: the process has exited.
        """
        try:
            listing = self.open("task")
            try:
                names = os.listdir(listing)  # noqa: PTH208 - a directory held open has no path
            finally:
                os.close(listing)
        except TargetGoneError:
            raise
        except OSError as error:
            raise self._gone_or(error) from None
        if not names:
            raise self.gone()
        # The kernel lists them so; sorting is stable.
        return tuple(sorted((int(name) for name in names), key=lambda thread: thread != self.pid))

    def state(self, thread: int) -> str:
        """Return the letter of a thread's state, as ps shows it; ``X`` if it has exited."""
        return self.stat(thread)[0] or "X"

    def stat(self, thread: int) -> tuple[str, int]:
        """Return a thread's state letter and kernel flags; the letter is empty if it has exited."""
        try:
            text = self.read(f"task/{thread}/stat")
        except (OSError, TargetGoneError):
            return "", 0
        # "tid (name) state ppid pgrp session tty tpgid flags ...": a name may hold a parenthesis.
        fields = text[text.rfind(")") + 1 :].split()
        return fields[0], int(fields[6])

    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel, with no memory of its own."""
        return bool(self.stat(self.pid)[1] & _PF_KTHREAD)

    def live_thread(self) -> int:
        """Return a thread that has not exited; the main thread may exit before others.

        Raises:
            TargetGoneError: there is none.
        """
        if self.state(self.pid) not in EXITED_STATES:
            return self.pid  # nearly always, and all threads need not be listed
        for thread in self.thread_ids():
            if self.state(thread) not in EXITED_STATES:
                return thread
        raise TargetGoneError(
            f"process {self.pid} has exited; process "
            f"{self.status().get('PPid', '?')} has not collected its exit status yet",
            pid=self.pid,
        )

    def open_live(self, name: str) -> int:
        """Return a descriptor of a file of a thread that has not exited; see :meth:`open`.

        What threads share, their memory and its files, is shown only through such a one.
        """
        while True:
            thread = self.live_thread()
            try:
                return self.open(f"task/{thread}/{name}")
            except TargetGoneError:
                raise
            except OSError:
                if self.state(thread) not in EXITED_STATES:
                    raise

    def status(self, thread: int | None = None) -> MappingType[str, str]:
        """Parse ``/proc/PID/status``, or a thread's, into names and values.

        Raises:
            TargetGoneError: the process has exited.
        """
        try:
            text = self.read("status" if thread is None else f"task/{thread}/status")
        except TargetGoneError:
            raise
        except OSError as error:
            raise self._gone_or(error) from None
        return parse_status(text)

    def namespace_ids(self, thread: int) -> list[int]:
        """Return a thread's ids in its PID namespaces (``NSpid``), from that of ``/proc`` inwards.

        The last one is the id that the thread itself has. Only ``thread`` if the kernel states
        none, or the thread has exited.
        """
        try:
            words = self.status(thread).get("NSpid", "").split()
        except (OSError, TargetGoneError):
            words = []
        return [int(word) for word in words if word.isdecimal()] or [thread]

    def gone(self) -> TargetGoneError:
        """Return the error for a process that has exited."""
        return TargetGoneError(f"process {self.pid} has exited", pid=self.pid)

    def close(self) -> None:
        """Close the directory; a second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise TargetError(f"the target is closed: process {self.pid}", remedy="open it again")

    def _gone_or(self, error: OSError) -> TargetGoneError | OSError:
        # A missing name is ENOENT for a live process and for an exited one.
        if error.errno == ESRCH or (error.errno == ENOENT and not self._exists()):
            return self.gone()
        return error

    def _exists(self) -> bool:
        try:
            os.stat("stat", dir_fd=self._directory)
        except OSError:
            return False
        return True


def parse_status(text: str) -> MappingType[str, str]:
    """Parse ``/proc/PID/status``: a name, a colon and a value on each line."""
    lines = (line.partition(":") for line in text.split("\n"))
    return MappingProxyType({name: value.strip() for name, _, value in lines if name})
