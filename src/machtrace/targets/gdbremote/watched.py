"""A stub's process that is watched: it runs, and is stopped only on suspicion or for hangs.

debugserver reports processor time and memory of a running process (:mod:`.profile_data`). Whether a
thread hangs is in none of its packets: for that the process is interrupted at each poll.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from machtrace.clocks import boot_ns
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import RemoteProtocolError, ThreadGoneError
from machtrace.model.address import Avma
from machtrace.model.cause import Cause
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.polls import (
    UNKNOWN_CALL,
    IdleRequest,
    MemoryLimit,
    ProcessPoll,
    SystemCall,
    ThreadCount,
    ThreadPoll,
)
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.targets.gdbremote.detach import Connect
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.gdbremote.replies import hex_text, shortened
from machtrace.targets.gdbremote.spec import RemoteSpec, parse_spec
from machtrace.targets.gdbremote.stream import connect as connect_by_socket

# --- debugserver's profile packets: processor time and memory of a process while it runs ---
#
# After ``QSetEnableAsyncProfiling`` debugserver sends packets that begin with ``A`` while the
# process runs. A profile is text, ``name:value;`` each, that ends with ``--end--;`` and may be cut
# into several packets at any byte. Numbers are decimal, ids of threads hexadecimal, names of
# threads text in hex. Sources: lldb's debugserver, ``MachTask::GetProfileData`` and
# ``RNBRemote::SendAsyncProfileData``; lldb's ``docs/resources/lldbgdbremote.md``.

_REQUEST = b"QSetEnableAsyncProfiling"
_SCAN = 0x814E
"""``DNBProfileDataScanType``: time of the process and of its threads, their names, memory,
anonymous memory and its limit."""
_END = b"--end--;"
_MAX_BYTES = 1 << 20
_MAX_THREADS = 1 << 14
_DECIMAL = re.compile(r"[0-9]{1,20}")
_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_MAX_VALUE = 1 << 62
_MAX_LIMIT_MIB = 1 << 20
_MIB = 20


def profile_request(interval_us: int, *, is_enabled: bool = True) -> bytes:
    """Return the request for profiles at an interval, or for their end."""
    return b"%s;enable:%d;interval_usec:%d;scan_type:0x%x;" % (
        _REQUEST,
        is_enabled,
        interval_us,
        _SCAN,
    )


class ProfiledThread(NamedTuple):
    """A thread in a profile."""

    used_us: int
    """The processor time that it has used, in microseconds."""
    name: str | None = None


class ProcessProfile(NamedTuple):
    """A process at one time."""

    threads: Mapping[int, ProfiledThread]
    """By the system's id."""
    ended_us: int = 0
    """The processor time of threads that have exited."""
    footprint: int | None = None
    """Bytes of memory as the system counts them against the limit (``phys_footprint``)."""
    anonymous: int | None = None
    """Bytes of anonymous memory."""
    limit: int | None = None
    """Bytes that the process may use; None without a limit."""

    @property
    def used_us(self) -> int:
        """The processor time of all threads, also those that have exited."""
        return self.ended_us + sum(thread.used_us for thread in self.threads.values())


class ProfileStream:
    """Joins the parts of profiles."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, packet: bytes) -> ProcessProfile | None:
        """Take a packet that begins with ``A``; return the profile that it completes, if any.

        Raises:
            RemoteProtocolError: what has come is no profile. The next packet begins another one.
        """
        self._held += packet[1:]
        data = bytes(self._held)
        if not data.endswith(_END):
            if len(data) > _MAX_BYTES:
                self._held.clear()
                raise _wrong("a profile that does not end", data)
            return None
        self._held.clear()
        return parse_profile(data)


def parse_profile(data: bytes) -> ProcessProfile:
    """Parse a whole profile; names that are not known here are skipped.

    Raises:
        RemoteProtocolError: it is none.
    """
    if not data.endswith(_END):
        raise _wrong("a profile without an end", data)
    # A profile whose end was lost with the connection's first packets precedes the last one.
    text = data[: -len(_END)].rpartition(_END)[2].decode("ascii", "replace")
    threads: dict[int, ProfiledThread] = {}
    numbers: dict[str, int] = {}
    thread: int | None = None
    for word in text.split(";"):
        name, colon, value = word.partition(":")
        if not colon:
            if word:
                raise _wrong("a word without a value in a profile", data)
            continue
        if name == "thread_used_id":
            thread = _number(value, _HEX, 16, data)
            if len(threads) >= _MAX_THREADS:
                raise _wrong("a profile with too many threads", data)
        elif name == "thread_used_usec" and thread is not None:
            threads[thread] = ProfiledThread(_number(value, _DECIMAL, 10, data))
        elif name == "thread_used_name" and thread in threads:
            threads[thread] = threads[thread]._replace(name=hex_text(value) or None)
        elif name in _NUMBERS:
            numbers[name] = _number(value, _DECIMAL, 10, data)
    limit = numbers.get("mem_cap", 0)
    return ProcessProfile(
        threads,
        numbers.get("task_used_usec", 0),
        numbers.get("phys_footprint"),
        numbers.get("anonymous"),
        # In MiB; without a limit it is 0, or -1 as an unsigned number.
        limit << _MIB if 0 < limit < _MAX_LIMIT_MIB else None,
    )


_NUMBERS = frozenset({"task_used_usec", "phys_footprint", "anonymous", "mem_cap"})


def _number(value: str, form: re.Pattern[str], base: int, data: bytes) -> int:
    if not form.fullmatch(value):
        raise _wrong(f"{value[:40]!r} is no number in a profile", data)
    number = int(value, base)
    return number if number < _MAX_VALUE else 0


def _wrong(fact: str, data: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(fact, request=_REQUEST.decode(), reply=shortened(data))


# --- A stub's process that is watched: it runs, and is stopped only on suspicion or for hangs ---

INTERRUPT_NS = 250_000_000
"""The least time between two interrupts of a process that is watched for hangs."""
_PROFILE_US = 500_000
_RECENT_NS = 20_000_000
"""Age of a copy that need not be taken again."""
_MAX_PLACES = 4096
_CALL_BYTES = 4
_ARM64_SVC, _ARM64_SVC_MASK = 0xD4000001, 0xFFE0001F
_X86_CALLS = (b"\x0f\x05", b"\x0f\x34", b"\xcd\x80")
"""``syscall``, ``sysenter`` and ``int 0x80``."""


class _Profiled(NamedTuple):
    at_ns: int
    boot_ns: int
    profile: ProcessProfile


class _Observed(NamedTuple):
    """A thread at the last interrupt."""

    at_ns: int
    is_waiting: bool
    run_ns: int
    used_us: int
    copy: Snapshot


class WatchedStub(GdbRemoteTarget):
    """A process of a stub that runs while it is watched.

    Args:
        spec: a ``gdb://`` target.
        connect: makes the stream to the stub; by default a socket's.
        interrupts: whether polls of threads interrupt the process. Otherwise nothing is stopped,
            and the polls have no facts.

    Raises:
        Same as :class:`~machtrace.targets.gdbremote.process.GdbRemoteTarget`.
    """

    has_python = False
    is_local = False

    def __init__(
        self,
        spec: str | RemoteSpec,
        connect: Connect = connect_by_socket,
        *,
        interrupts: bool = False,
    ) -> None:
        spec = parse_spec(spec) if isinstance(spec, str) else spec
        self.on_close: Callable[[], None] = lambda: None
        """Called when it was closed."""
        super().__init__(replace(spec, runs_to_stop=False), connect)
        self._interrupts = interrupts
        self.least_poll_ns = INTERRUPT_NS if interrupts else 0
        self._stream = ProfileStream()
        self._profiles: list[_Profiled] = []
        """The last two."""
        self._calls: dict[int, bool] = {}
        """Whether a program counter is that after a system call."""
        self._observed: dict[int, _Observed] = {}
        self.stops = self.stopped_ns = self.longest_stop_ns = 0
        """Interrupts so far, their time in sum, and the longest of them."""
        self.bad_profiles = 0
        try:
            self._infos = {info.id: info for info in super().threads()}
            self._stub.watch(self._take_packet)
            request = profile_request(_PROFILE_US)
            self.has_profiles = self._stub.session.ask(request) == b"OK"
            self._last = super().snapshot(stack_limit=0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the process run, and hang up; a second call does nothing."""
        super().close()
        on_close, self.on_close = self.on_close, lambda: None
        on_close()

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        sentences = ["deadlocks are not watched: locks are not read through a stub"]
        if not self.has_profiles:
            sentences.append(
                "processor time and memory are not watched: this stub has no profile packets: "
                "only debugserver has them"
            )
        if not self._interrupts:
            sentences.append("hangs are not watched: each poll would interrupt the process")
        else:
            sentences.append(
                f"hangs are seen by interrupts, at most {1_000_000_000 // INTERRUPT_NS} a second; "
                "running times of the thread are estimates"
            )
            if not self._stub.features.has_thread_suffix:
                sentences.append(
                    "gdbserver interrupts by SIGINT to the process group: other processes of the "
                    "group get it, too"
                )
        if self.bad_profiles:
            sentences.append(f"{self.bad_profiles} profiles of the stub could not be read")
        return tuple(sentences)

    # --- polls ---

    def poll_thread(self, thread: int, *, with_status: bool) -> ThreadPoll:  # noqa: ARG002
        """Poll a thread; see :class:`~machtrace.model.polls.PolledTarget`."""
        self.service()
        if not self._interrupts or self.crash is not None:
            return ThreadPoll(time.monotonic_ns(), boot_ns())
        copy = super().snapshot([ThreadId(thread)])
        at_ns, now_ns = time.monotonic_ns(), boot_ns()
        if not copy.threads:
            self._observed.pop(thread, None)
            raise ThreadGoneError(f"thread {thread} does not exist", thread=thread)
        self._count_stop(copy)
        (copied,) = copy.threads
        registers = copied.registers
        is_waiting = self._calls.get(registers.pc, False)
        self._observe(thread, at_ns, copy, is_waiting=is_waiting)
        call = None
        if is_waiting:
            call = SystemCall(UNKNOWN_CALL, (), Avma(registers.sp or 0), registers.pc)
        return ThreadPoll(
            at_ns,
            now_ns,
            is_running=call is None,
            call=call,
            run_ns=self._observed[thread].run_ns,
        )

    def wait_idle(self, idle: dict[int, ThreadPoll], request: IdleRequest) -> None:
        """Return None: there is no wait of this kind."""

    def wake(self) -> None:
        """Do nothing: nothing waits."""

    def forget(self, thread: int) -> None:
        """Drop what is known of a thread that has exited."""
        self._observed.pop(thread, None)

    def service(self) -> None:
        """Take what the stub has sent.

        Raises:
            TargetGoneError: the process has exited.
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        self._stub.pump(0)

    @property
    def crash(self) -> Cause | None:
        """Why the process is stopped for good; None while it has not crashed."""
        return self._stub.cause if self._stub.has_crashed else None

    def process_polls(self) -> ProfilePolls:
        """Return polls of the whole process."""
        return ProfilePolls(self)

    @property
    def profiles(self) -> Sequence[_Profiled]:
        """The last profiles, two at most."""
        return self._profiles

    def _take_packet(self, packet: bytes) -> None:
        try:
            profile = self._stream.feed(packet)
        except RemoteProtocolError:
            self.bad_profiles += 1
            return
        if profile is not None:
            self._profiles = [
                *self._profiles[-1:],
                _Profiled(time.monotonic_ns(), boot_ns(), profile),
            ]

    def _observe(self, thread: int, at_ns: int, copy: Snapshot, *, is_waiting: bool) -> None:
        last = self._observed.get(thread)
        used_us = 0
        if self._profiles and (profiled := self._profiles[-1].profile.threads.get(thread)):
            used_us = profiled.used_us
        run_ns = 0
        if last is not None:
            # Half of the time between a poll that found it running and one that did not.
            share = 1 - (last.is_waiting + is_waiting) / 2
            run_ns = last.run_ns + round(share * (at_ns - last.at_ns))
            if last.is_waiting and is_waiting:
                run_ns += 1000 * max(0, used_us - last.used_us)
        self._observed[thread] = _Observed(at_ns, is_waiting, run_ns, used_us, copy)

    def _count_stop(self, copy: Snapshot) -> None:
        duration = max((thread.stopped_for_ns or 0 for thread in copy.threads), default=0)
        self.stops += 1
        self.stopped_ns += duration
        self.longest_stop_ns = max(self.longest_stop_ns, duration)

    # --- copies ---

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, as far as the last stop and the last profile show them."""
        profiled = self._profiles[-1].profile.threads if self._profiles else {}
        infos = [
            info
            for info in self._infos.values()
            if not profiled or info.id in profiled or info.is_main
        ]
        known = {info.id for info in infos}
        new = [thread for thread in profiled if thread not in known]
        infos += [
            ThreadInfo(id=ThreadId(thread), index=index, name=profiled[thread].name)
            for index, thread in enumerate(new, len(infos) + 1)
        ]
        return tuple(infos)

    def thread_ids(self) -> tuple[int, ...]:
        """Return the ids of its threads, the main thread's first."""
        infos = sorted(self.threads(), key=lambda info: not info.is_main)
        return tuple(info.id for info in infos)

    def thread_info(self, thread: int) -> ThreadInfo:
        """Describe a thread."""
        unknown = ThreadInfo(id=ThreadId(thread), index=0)
        return next((info for info in self.threads() if info.id == thread), unknown)

    def program_start(self) -> bytes:
        """Return what changes when the process executes another program: unknown."""
        return b""

    def started_ns(self) -> int:
        """Return when the process was started: now, as that is unknown."""
        return time.monotonic_ns()

    def locks(self) -> None:
        """Return no source of lock surveys."""

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Copy threads, with one stop unless a poll has copied them right now."""
        recent = self._recent(threads or ())
        if threads is not None and len(recent) == len(threads) == 1:
            return recent[0]
        self.service()
        copy = super().snapshot(threads, stack_limit=stack_limit)
        self._count_stop(copy)
        self._last = copy
        if threads is None or len(copy.threads) > 1:
            self._infos |= {thread.info.id: thread.info for thread in copy.threads}
        return copy

    def copy_stopped(
        self,
        threads: Collection[ThreadId],
        /,
        *,
        is_traced: bool = False,  # noqa: ARG002 - no OS thread does
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Copy threads; Python functions are not read."""
        return self.snapshot(threads), {}

    def copy_waiting(
        self, threads: Iterable[int], /
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Return the copy of a thread that a poll has found waiting right now, without a stop."""
        for copy in self._recent(threads):
            if self._observed[copy.threads[0].info.id].is_waiting:
                return copy, {}
        return replace(self._last, threads=(), problems=()), {}

    def _recent(self, threads: Iterable[int]) -> list[Snapshot]:
        since_ns = time.monotonic_ns() - _RECENT_NS
        observed = (self._observed.get(thread) for thread in threads)
        return [each.copy for each in observed if each is not None and each.at_ns >= since_ns]

    def _examine(self, threads: Sequence[ThreadSnapshot]) -> None:
        """Read the instruction before a thread's program counter: is it a system call?"""
        if len(threads) != 1 or len(self._calls) >= _MAX_PLACES:
            return
        pc = threads[0].registers.pc
        if pc not in self._calls:
            (code,) = self._memory.read_many([(max(0, pc - _CALL_BYTES), _CALL_BYTES)])
            self._calls[pc] = self._is_call(code)

    def _is_call(self, code: bytes) -> bool:
        if self.process.arch.is_arm64:
            return int.from_bytes(code, "little") & _ARM64_SVC_MASK == _ARM64_SVC
        return len(code) == _CALL_BYTES and code.endswith(_X86_CALLS)


class ProfilePolls:
    """Polls of a process by the profiles that come while it runs.

    Args:
        stub: the process's; its owner closes it.
    """

    def __init__(self, stub: WatchedStub) -> None:
        self._stub = stub

    def poll(self, *, with_threads: bool) -> ProcessPoll:  # noqa: ARG002
        """Return the last profile, which has all threads, with the time at which it came.

        Raises:
            TargetGoneError: the process has exited.
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        self._stub.service()
        if not self._stub.profiles:
            return ProcessPoll(time.monotonic_ns(), boot_ns())
        last = self._stub.profiles[-1]
        profile = last.profile
        poll = ProcessPoll(
            last.at_ns, last.boot_ns, profile.footprint, None, 1000 * profile.used_us
        )
        used = profile.threads.items()
        counts = {number: ThreadCount(1000 * thread.used_us, None) for number, thread in used}
        return poll._replace(threads=counts)

    def counts(self, threads: Iterable[int]) -> dict[int, ThreadCount]:
        """Return estimates of now: since the last profile a thread ran as it did before it."""
        profiles = self._stub.profiles
        if not profiles:
            return {}
        first, last = profiles[0], profiles[-1]
        passed = max(1, last.at_ns - first.at_ns)
        since = time.monotonic_ns() - last.at_ns
        counts: dict[int, ThreadCount] = {}
        for thread in threads:
            used = last.profile.threads.get(thread)
            if used is None:
                continue
            before = first.profile.threads.get(thread)
            grown = 0 if before is None else 1000 * max(0, used.used_us - before.used_us)
            share = min(1.0, grown / passed)
            counts[thread] = ThreadCount(1000 * used.used_us + round(share * since), None)
        return counts

    def limit(self) -> MemoryLimit | None:
        """Return the app's limit of memory, if the system has one for it."""
        profiles = self._stub.profiles
        size = profiles[-1].profile.limit if profiles else None
        return None if size is None else MemoryLimit(size, "the system's limit of the app")

    def oom_kills(self) -> int | None:
        """Return None: they are not known."""
        return None

    def memory_details(self) -> dict[str, int]:
        """Return the kinds of memory in bytes."""
        profiles = self._stub.profiles
        size = profiles[-1].profile.anonymous if profiles else None
        return {} if size is None else {"anonymous_bytes": size}

    def close(self) -> None:
        """Do nothing."""
