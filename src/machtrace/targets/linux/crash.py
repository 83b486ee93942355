"""A process that is traced until it crashes or ends.

All of its threads are seized (ptrace(2)) and run. A signal stops the thread that it is delivered
to; it is passed on, unless it is one that the process does not handle and whose default action
writes a core: then all threads are stopped, captured, and released with that signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Event, Thread
from typing import Generic, TypeVar

from machtrace._native import _ptrace
from machtrace.errors import FormatError, TargetError
from machtrace.formats.elf.core.notes import read_signal_information
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.frozen import dataclass
from machtrace.model.cause import Cause, linux_cause
from machtrace.targets.linux.access import access_error
from machtrace.targets.linux.crashed_process import CrashedProcess
from machtrace.targets.linux.identity import check_host, identify
from machtrace.targets.linux.process_polls import wait_status
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory
from machtrace.targets.shared.thread_copy import SLEEP_LIMIT_NS, STOP_LIMIT_NS

_TRACE_CLONE, _TRACE_EXEC = 1 << 3, 1 << 4
_EVENT_EXEC, _EVENT_STOP = 4, 128
"""``PTRACE_O_*`` and ``PTRACE_EVENT_*``."""
_JOB_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NATIVE = LAYOUTS[2, 1]
"""The kernel gives a 64-bit tracer the 64-bit ``siginfo_t``, also of 32-bit processes."""
_POLL_S = 0.0005
_WALL, _WNOTHREAD = 0x40000000, 0x20000000
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
_RELEASES = 8
"""Signals that are passed on before a thread is released."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CrashWatch(Generic[_T]):
    """The end of a traced process."""

    captured: _T | None
    """The capture of its crash; None if it did not crash."""
    status: int | None
    """Its wait status, if the tracer collected it."""
    signal: int = 0
    """The number of the signal that it was released with."""


def await_crash(
    pid: int,
    capture: Callable[[CrashedProcess], _T],
    on_traced: Callable[[], None] = lambda: None,
) -> CrashWatch[_T]:
    """Trace a process until it crashes or ends.

    Tracing is done by a thread of its own, so that signal handlers of this process run meanwhile.
    If this function is left by an exception, the process is released when this one ends.

    Args:
        pid: its id.
        capture: is called in that thread when the process has crashed, with all threads stopped.
        on_traced: is called when the process is traced.

    Raises:
        TargetSpecError, TargetGoneError, TargetAccessError, FormatError: see
            :class:`LinuxProcessTarget`.
    """
    results: list[CrashWatch[_T] | BaseException] = []
    began, traced = Event(), Event()

    def is_traced() -> None:
        traced.set()
        began.set()

    def trace() -> None:
        try:
            results.append(_Tracer(pid).run(capture, is_traced))
        except BaseException as error:  # noqa: BLE001 - raised again below
            results.append(error)
        finally:
            began.set()

    thread = Thread(target=trace, name="machtrace-tracer", daemon=True)
    thread.start()
    began.wait()
    if traced.is_set():
        # Not in that thread: an interpreter that exits meanwhile aborts if it holds a stream.
        on_traced()
    thread.join()
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


class _Tracer:
    """The thread that traces a process: every call of ``_ptrace`` is its own."""

    def __init__(self, pid: int) -> None:
        check_host()
        self._pid = pid
        self._threads: set[int] = set()
        """Seized threads that have not exited."""
        self._stopped: dict[int, int] = {}
        """Stopped threads, and the signal that each is released with."""
        self.job_stopped: set[int] = set()
        """Threads that a signal of job control has stopped."""
        self.status: int | None = None
        """The process's wait status when it has ended."""

    def run(
        self, capture: Callable[[CrashedProcess], _T], on_traced: Callable[[], None]
    ) -> CrashWatch[_T]:
        with ProcessDirectory(self._pid) as directory:
            identify(directory)
            try:
                self._seize(directory)
                on_traced()
                while not self._stopped and self.status is None:
                    self._handle(directory, *self._event(directory, waits=True))
                if self.status is not None:
                    return CrashWatch(None, self.status)
                (number, *_) = self._stopped.values()
                return CrashWatch(self._captured(directory, capture), None, number)
            finally:
                # The crashed thread first: its signal ends the process before others run.
                for thread, number in self._stopped.items():
                    with suppress(OSError):
                        _ptrace.detach(thread, number)

    def _captured(self, directory: ProcessDirectory, capture: Callable[[CrashedProcess], _T]) -> _T:
        (crashed, number), *_ = self._stopped.items()
        causes = {crashed: self._cause(crashed, number)}
        self._stop_others(directory, causes)
        with CrashedProcess(self._pid, self._stopped, causes) as target:
            return capture(target)

    def _seize(self, directory: ProcessDirectory) -> None:
        """Seize all threads; those that they start afterwards are seized by the kernel.

        Raises:
            TargetGoneError, TargetAccessError: it cannot be traced.
        """
        while new := set(directory.thread_ids()) - self._threads:
            for thread in new:
                try:
                    _ptrace.seize(thread, _TRACE_CLONE | _TRACE_EXEC)
                except ProcessLookupError:
                    continue
                except OSError as error:
                    if directory.state(thread) in EXITED_STATES:
                        continue
                    raise access_error(directory, error, thread) from None
                finally:
                    self._threads.add(thread)

    def _event(self, directory: ProcessDirectory, *, waits: bool) -> tuple[int, int]:
        """Return a thread and its wait status; 0 and 0 if there is none."""
        try:
            return _ptrace.await_event(waits)
        except ChildProcessError:
            raise directory.gone() from None

    def _handle(self, directory: ProcessDirectory, thread: int, status: int) -> None:
        """Continue a thread, but for a crash: its thread stays in ``_stopped``."""
        self.job_stopped.discard(thread)
        if not os.WIFSTOPPED(status):
            self._threads.discard(thread)
            if thread == self._pid:  # reported after those of all other threads
                self.status = status
            return
        number, event = os.WSTOPSIG(status), status >> 16
        with suppress(ProcessLookupError):
            if thread not in self._threads and directory.state(thread) in EXITED_STATES:
                _ptrace.detach(thread, 0)  # a process that clone(2) created
                return
            self._threads.add(thread)
            if event == _EVENT_EXEC:
                self._threads = {self._pid}  # the others have ended, unreported
            if event == _EVENT_STOP and number in _JOB_STOPS:
                _ptrace.listen(thread)
                self.job_stopped.add(thread)
            elif event:
                _ptrace.resume(thread, 0)
            elif self._is_fatal(directory, thread, number):
                self._stopped[thread] = number
            else:
                _ptrace.resume(thread, number)

    def _is_fatal(self, directory: ProcessDirectory, thread: int, number: int) -> bool:
        if not linux_cause(number).is_fatal:
            return False
        status = directory.status(thread)
        handled = int(status.get("SigCgt", "0"), 16) | int(status.get("SigIgn", "0"), 16)
        return not handled >> (number - 1) & 1

    def _cause(self, thread: int, number: int) -> Cause:
        try:
            stated = read_signal_information(
                _ptrace.signal_information(thread), _NATIVE, f"thread {thread}"
            )
        except (OSError, FormatError):
            stated = None
        return linux_cause(number) if stated is None else stated

    def _stop_others(self, directory: ProcessDirectory, causes: dict[int, Cause]) -> None:
        """Stop all other threads; those that do not stop in time continue."""
        self._threads |= set(directory.thread_ids())
        for thread in self._threads - set(self._stopped):
            try:
                _ptrace.interrupt(thread)
            except ProcessLookupError:
                self._threads.discard(thread)  # it exits
        began = time.monotonic_ns()
        while running := self._threads - set(self._stopped):
            thread, status = _ptrace.await_event(False)  # noqa: FBT003
            if not thread:
                waited = time.monotonic_ns() - began
                sleeping = waited > SLEEP_LIMIT_NS and all(
                    directory.state(thread) in "D" + EXITED_STATES for thread in running
                )
                if sleeping or waited > STOP_LIMIT_NS:
                    return
                time.sleep(_POLL_S)
            elif not os.WIFSTOPPED(status):
                self._threads.discard(thread)
            else:
                self._threads.add(thread)
                number = 0 if status >> 16 else os.WSTOPSIG(status)
                self._stopped[thread] = number
                if number and linux_cause(number).is_fatal:
                    causes[thread] = self._cause(thread, number)


class CrashTracer(_Tracer):
    """Traces a process among other work of one OS thread, which makes all calls.

    Args:
        pid: its id.

    Raises:
        TargetGoneError: it has exited.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self._directory = ProcessDirectory(pid)
        self.is_child = self._directory.status(pid).get("PPid") == str(os.getpid())
        """Whether this process started it."""
        self._mask: set[int] | None = None

    def begin(self) -> None:
        """Trace all threads.

        Raises:
            TargetGoneError, TargetAccessError: they cannot be traced.
        """
        # Blocked, so that wait() receives it; each event of a traced thread sends it.
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]))
        self._seize(self._directory)

    @property
    def has_crashed(self) -> bool:
        """Whether the process is about to end by a signal: its thread is stopped."""
        return bool(self._stopped)

    def poll(self) -> None:
        """Pass on the signals that have arrived, up to one that ends the process."""
        while not self.has_crashed and self.status is None and self._threads:
            if self.is_child and self._peek():
                return
            thread, status = self._event(self._directory, waits=False)
            if not thread:
                return
            self._handle(self._directory, thread, status)

    def _peek(self) -> bool:
        """Leave the exit status of our own child to the code that started it; True if none else."""
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _WALL | _WNOTHREAD
        try:
            event = os.waitid(os.P_ALL, 0, options)
        except ChildProcessError:
            raise self._directory.gone() from None
        if event is None:
            return True
        if event.si_pid != self._pid or event.si_code not in _ENDS:
            return False
        self.status = wait_status(event)
        return True

    def wait(self, time_ns: int) -> None:
        """Wait for that time, or until something happened to a traced thread."""
        self.poll()
        if not self.has_crashed and self.status is None:
            signal.sigtimedwait([signal.SIGCHLD], max(0, time_ns) / 1e9)
            self.poll()

    def capture(self, capture: Callable[[CrashedProcess], _T]) -> _T:
        """Return what ``capture`` makes of the crashed process, which then ends."""
        try:
            return self._captured(self._directory, capture)
        finally:
            stopped, self._stopped = self._stopped, {}
            for thread, number in stopped.items():  # see _Tracer.run
                with suppress(OSError):
                    _ptrace.resume(thread, number)

    def pass_on(self, copied: Collection[int]) -> None:
        """Handle what happened to threads while some were copied."""
        with suppress(TargetError):
            # The first stop of a new thread may be the one of its copy, which is not reported.
            self._threads.update(set(copied) & set(self._directory.thread_ids()))
            self.poll()

    def _release(self, thread: int) -> None:
        for _ in range(_RELEASES):
            if self.has_crashed or thread not in self._threads:
                return
            try:
                number = _ptrace.unseize(thread, STOP_LIMIT_NS)
            except ProcessLookupError:
                return  # it exits, which is reported
            except TimeoutError:
                return
            if not number:
                self._threads.discard(thread)
                return
            with suppress(ProcessLookupError):
                if self._is_fatal(self._directory, thread, number):
                    self._stopped[thread] = number
                else:
                    _ptrace.resume(thread, number)

    def close(self) -> None:
        """Release all threads; a second call does nothing."""
        if self._mask is None:
            self._directory.close()
            return
        for thread, number in self._stopped.items():
            with suppress(OSError):
                _ptrace.detach(thread, number)
        self._stopped = {}
        with suppress(TargetError):
            self.poll()
        for thread in [*self._threads]:
            self._release(thread)
        self._directory.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._mask = None
