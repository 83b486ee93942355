"""A child of this process, on which capturing is tried."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from machtrace.errors import TargetError

_PROGRAM = """\
def waiting_for_input():
    print("ready", flush=True)
    input()
try:
    waiting_for_input()
except EOFError:
    pass
"""
_PATIENCE_S = 10


@contextmanager
def own_child() -> Iterator[int]:
    """Start a Python that waits for input until the end of the block; yield its id.

    Raises:
        TargetError: it cannot be started, or does not run.
    """
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise TargetError(
            f"cannot start a child process ({error.strerror})",
            remedy="allow this process to start others; see ulimit -u",
        ) from error
    with process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise TargetError(
                    f"{sys.executable} does not run as a child process",
                    remedy="allow this process to start others, and check what it prints",
                )
            yield process.pid
        finally:
            process.kill()
            process.wait(_PATIENCE_S)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def memory_refusal(pid: int) -> OSError | None:
    """Return the error of process_vm_readv(2) for a running process; None if it works.

    Raises:
        OSError: the process's mappings cannot be read.
    """
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:  # noqa: PTH123
        address = int(maps.readline().partition("-")[0], 16)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        call = libc.process_vm_readv
    except AttributeError:
        return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    call.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Iovec), ctypes.c_ulong) * 2, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(1)
    here, there = _Iovec(ctypes.addressof(buffer), 1), _Iovec(address, 1)
    if call(pid, here, 1, there, 1, 0) == 1:
        return None
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
