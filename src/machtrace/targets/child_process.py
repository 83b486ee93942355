"""Children of this process: programs that are captured from their start, and a trial child."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from machtrace.errors import FileAccessError, MachtraceError, TargetAccessError, TargetError

FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
"""Exit statuses of commands that run another, as env(1) and timeout(1) have them."""
_OF_SIGNALS = 128
"""A signal's exit status less its number, as in shells."""


def status_without(error: MachtraceError) -> int:
    """Return the exit status if a program was not run because of ``error``."""
    if isinstance(error, FileAccessError) and isinstance(error.__cause__, OSError):
        return NOT_FOUND if isinstance(error.__cause__, FileNotFoundError) else NOT_EXECUTABLE
    return FAILED


def exit_status(wait_status: int) -> int:
    """Return the exit status of a process: 128 and the number of a fatal signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else _OF_SIGNALS - code


class StartedProgram:
    """A program that this process started; on Linux it is stopped before its first instruction.

    It inherits standard input, output and error, the environment and the process group. A context
    manager: if the block raises, the program is killed.

    Args:
        arguments: the program, a path or a name to find in ``PATH``; and its arguments.
        environment: its environment, if that is not this process's.
        stdin: its standard input, a descriptor, if that is not this process's.
        stdout: its standard output, likewise.

    Raises:
        FileAccessError: it does not exist, or cannot be executed.
        TargetAccessError: it would lack rights that it is installed with.
        TargetError: the system refuses to start or trace a child.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        on_linux = sys.platform == "linux"
        _check_rights(arguments[0])
        if on_linux:
            from machtrace._native import _ptrace
        try:
            with warnings.catch_warnings():
                # Of forks in processes with threads: the child makes one call, then executes.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = subprocess.Popen(  # noqa: S603 - the user's program
                    list(arguments),
                    env=environment,
                    stdin=stdin,
                    stdout=stdout,
                    preexec_fn=_ptrace.trace_me if on_linux else None,  # noqa: PLW1509 - see above
                )
        except OSError as error:
            raise _not_started(arguments[0], error) from error
        except subprocess.SubprocessError as error:
            raise TargetError(
                "this process may not trace its children",
                remedy="run outside the sandbox, or allow ptrace in its seccomp profile",
            ) from error
        self.pid = self._process.pid
        if on_linux:
            with self:
                # Its exec stopped it. In a stop of job control, any OS thread can trace it.
                self._await_stop()
                _ptrace.detach(self.pid, signal.SIGSTOP)
                self._await_stop()

    def _await_stop(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.collected(status)
            raise TargetError(
                f"process {self.pid} was killed before it could run", remedy="start it again"
            )

    def run(self) -> None:
        """Have it execute its first instruction."""
        self.send(signal.SIGCONT)

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.returncode is None:  # or another process may have its id
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, which leaves its exit status to :meth:`wait`."""
        if self._process.returncode is not None:
            return True
        if sys.platform != "linux":
            return self._process.poll() is not None
        try:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        # Stops of a traced child are reported, too.
        return end is not None and end.si_code in _ENDS

    def collected(self, status: int) -> None:
        """Record a wait status that was collected elsewhere, such as by a tracer."""
        self._process.returncode = os.waitstatus_to_exitcode(status)

    def wait(self) -> int:
        """Wait for its end and return its exit status: 128 and the number of a fatal signal."""
        code = self._process.wait()
        return code if code >= 0 else _OF_SIGNALS - code

    @contextmanager
    def passing_signals(self) -> Iterator[list[int]]:
        """Pass on SIGINT, SIGTERM and SIGHUP until the program has ended; then they act as before.

        A terminal sends Ctrl-C to the program itself, so that one is not passed on. Yields the
        list of the signals that arrive.
        """
        arrived: list[int] = []
        before = {int(number): signal.getsignal(number) for number in _END_SIGNALS}

        def receive(number: int, _frame: FrameType | None) -> None:
            # The first one may have been what ended the program.
            if arrived and self.has_ended:
                signal.signal(number, before[number])
                signal.raise_signal(number)
                return
            arrived.append(number)
            if number != signal.SIGINT or not _is_foreground():
                self.send(number)

        changed = [number for number in before if before[number] not in (signal.SIG_IGN, None)]
        for number in changed:
            signal.signal(number, receive)
        try:
            yield arrived
        finally:
            for number in changed:
                signal.signal(number, before[number])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.has_ended:
            self.send(signal.SIGKILL)
            self._process.wait()


_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


def _is_foreground() -> bool:
    """Return whether the controlling terminal sends Ctrl-C to this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _check_rights(program: str) -> None:
    """Check that a program loses no rights by being traced (execve(2)).

    Raises:
        TargetAccessError: it does.
    """
    path = shutil.which(program)
    if path is None or os.geteuid() == 0 or sys.platform != "linux":
        return
    status = os.stat(path)  # noqa: PTH116 - pathlib comes later
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return
    changed = ""
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        changed = f"the rights of user {status.st_uid}"
    elif status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP:
        changed = f"the rights of group {status.st_gid}"
    else:
        with suppress(OSError):
            os.getxattr(path, "security.capability")
            changed = "capabilities"
    if changed:
        raise TargetAccessError(
            f"{path} runs with {changed}, which a traced program does not get",
            pid=0,
            errno=errno.EPERM,
            remedy="run machtrace as root",
        )


def _not_started(program: str, error: OSError) -> FileAccessError:
    reason = (error.strerror or "cannot be executed").lower()
    if isinstance(error, FileNotFoundError):
        path = shutil.which(program)
        remedy = "pass a program in PATH, or the path of one"
        if path is not None:
            reason, remedy = "its interpreter does not exist", "check the first line of the file"
        elif program.isdecimal() and os.path.exists(f"/proc/{program}"):  # noqa: PTH110 - as above
            remedy = f"to capture process {program}, leave out --"
        elif "/" not in program and os.path.exists(program):  # noqa: PTH110
            remedy = f"to run the file in this folder, pass ./{program}"
    elif error.errno == errno.ENOEXEC:
        remedy = "pass a program for this machine; a script begins with #! and its interpreter"
    else:
        remedy = "pass a program; chmod +x makes a file executable"
    refused = FileAccessError(program, reason)
    refused.remedy = remedy
    return refused


_TRIAL = """\
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
    command = [sys.executable, "-I", "-S", "-c", _TRIAL]
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
