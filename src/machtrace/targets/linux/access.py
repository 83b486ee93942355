"""Why the kernel denies one process access to another, and what it allows in general.

The rules are in ptrace(2), "Ptrace access mode checking". :func:`refusal` is a function of facts
that :func:`access_error` reads from ``/proc``; :func:`read_rights` needs no target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import EPERM
from os import strerror

from machtrace.errors import TargetAccessError, TargetGoneError
from machtrace.frozen import dataclass
from machtrace.targets.linux.procfs import ProcessDirectory, parse_status

_CAP_SYS_PTRACE = 1 << 19
_SECCOMP_FILTER = "2"

YAMA_CHILDREN, YAMA_PRIVILEGED, YAMA_NOBODY = 1, 2, 3
"""``Documentation/admin-guide/LSM/Yama.rst``."""

_TRACER_LIMIT_S = 1.0
"""A debugger holds a process for longer, and is then named in the error."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.016

_NOBODY = (
    f"no process may trace another (yama ptrace_scope {YAMA_NOBODY})",
    "boot with another kernel.yama.ptrace_scope; it cannot be lowered at run time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFacts:
    """The facts that decide access to one process."""

    pid: int
    own: Mapping[str, str]
    """``/proc/self/status``."""
    target: Mapping[str, str]
    """``/proc/PID/status``."""
    tracer_name: str | None
    """The name of the process that traces it already."""
    is_dumpable: bool
    ptrace_scope: int | None
    """Yama's setting; None without Yama."""


def refusal(facts: AccessFacts) -> tuple[str, str]:
    """Return the reason for a refusal, and a remedy."""
    pid = facts.pid
    tracer = facts.target.get("TracerPid", "0")
    if tracer != "0":
        name = f" ({facts.tracer_name})" if facts.tracer_name else ""
        return (
            f"process {pid} is traced already, by process {tracer}{name}",
            f"end or detach process {tracer}{name} first",
        )
    rule = _denial(facts)
    if rule is not None:
        return rule
    if facts.own.get("Seccomp") == _SECCOMP_FILTER:
        return (
            f"a seccomp filter of this process may forbid tracing process {pid}",
            "run outside the sandbox, or in a container whose seccomp profile allows ptrace",
        )
    return (
        f"the kernel denies tracing process {pid}",
        "check for a security module (SELinux, AppArmor) or another user namespace"
        if _is_capable(facts)
        else "run as root, or with CAP_SYS_PTRACE; in a container: --cap-add=SYS_PTRACE",
    )


def is_transient(facts: AccessFacts) -> bool:
    """Whether the refusal may pass: another tracer has the thread, or had it until just now.

    A tracer that copies a stack detaches within a millisecond, usually before ``TracerPid`` is
    read; then no rule explains the refusal.
    """
    return facts.target.get("TracerPid", "0") != "0" or _denial(facts) is None


def _is_capable(facts: AccessFacts) -> bool:
    return bool(int(facts.own.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE)


class OtherTracer:
    """Waits until another tracer detaches from the threads of a process.

    A tracer that was waited for in vain is not waited for again, until a capture succeeds.
    """

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._limit_s = _TRACER_LIMIT_S

    def pauses(self, refused: Callable[[], Sequence[int]]) -> Iterator[None]:
        """Yield after each pause, as long as another attempt may succeed.

        Args:
            refused: returns the ids of existing threads that the last attempt was refused.
        """
        pause = _FIRST_PAUSE_S
        deadline = time.monotonic() + self._limit_s
        while threads := refused():
            if not self._limit_s or not self._is_transient(threads):
                return
            if time.monotonic() > deadline:
                self._limit_s = 0.0
                return
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
            yield
        self._limit_s = _TRACER_LIMIT_S

    def _is_transient(self, threads: Sequence[int]) -> bool:
        try:
            return any(is_transient(_read_facts(self._directory, thread)) for thread in threads)
        except TargetGoneError:
            return False


def _denial(facts: AccessFacts) -> tuple[str, str] | None:
    """Return the first rule that denies access, and a remedy; None if no known one does."""
    if _is_capable(facts):
        return _NOBODY if facts.ptrace_scope == YAMA_NOBODY else None
    pid, privilege = facts.pid, "run as root, or with CAP_SYS_PTRACE"
    mine, theirs = facts.own.get("Uid", "").split()[:1], facts.target.get("Uid", "").split()[:3]
    if set(theirs) != set(mine):
        users = "/".join(dict.fromkeys(theirs))
        if mine == ["0"]:
            return (
                f"process {pid} belongs to user {users}, and root lacks CAP_SYS_PTRACE",
                "add the capability; with docker: --cap-add=SYS_PTRACE",
            )
        return (
            f"process {pid} belongs to user {users}, not {''.join(mine)}",
            "run as that user, or as root",
        )
    lacking = int(facts.target.get("CapPrm", "0"), 16) & ~int(facts.own.get("CapPrm", "0"), 16)
    scope = facts.ptrace_scope or 0
    if not facts.is_dumpable:
        obstacle = f"process {pid} is not dumpable: it changed its user, or requested this"
    elif lacking:
        obstacle = f"process {pid} has capabilities that this one lacks"
    elif scope == YAMA_CHILDREN:
        obstacle = f"only its ancestors may trace process {pid} (yama ptrace_scope {scope})"
        privilege = "run as root, or allow it: sysctl kernel.yama.ptrace_scope=0"
    elif scope == YAMA_PRIVILEGED:
        obstacle = f"only privileged processes may trace (yama ptrace_scope {scope})"
    elif scope >= YAMA_NOBODY:
        return _NOBODY
    else:
        return None
    return obstacle, privilege


def access_error(
    directory: ProcessDirectory, error: OSError, thread: int | None = None
) -> TargetAccessError | TargetGoneError:
    """Return the error for a process or thread that the kernel denied access to."""
    if isinstance(error, TargetGoneError):
        return error
    errno = error.errno or EPERM
    try:
        message, remedy = refusal(_read_facts(directory, thread))
    except TargetGoneError as gone:
        return gone
    if errno != EPERM:
        message = f"{message} ({strerror(errno)})"
    return TargetAccessError(message, pid=directory.pid, errno=errno, remedy=remedy)


def _read_facts(directory: ProcessDirectory, thread: int | None) -> AccessFacts:
    target = directory.status(thread)
    return AccessFacts(
        pid=directory.pid,
        own=parse_status(_text("/proc/self/status") or ""),
        target=target,
        tracer_name=_text(f"/proc/{target.get('TracerPid', '0')}/comm"),
        is_dumpable=_is_dumpable(directory, target),
        ptrace_scope=_number("/proc/sys/kernel/yama/ptrace_scope"),
    )


def _is_dumpable(directory: ProcessDirectory, target: Mapping[str, str]) -> bool:
    """Whether the process is dumpable: files of others belong to root (proc(5))."""
    try:
        owner = directory.owner("maps")
    except OSError:
        return False
    return target.get("Uid", "").split()[1:2] == [str(owner)]


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            return file.read().removesuffix("\n")
    except OSError:
        return None


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.strip().isdecimal() else None


_WHOLE_RANGE = 4294967295
"""Ids mapped by the machine's initial user namespace (user_namespaces(7))."""
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")

Reading = Callable[[str], str | None]
"""Returns the text of a file by its path; None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxRights:
    """The facts that decide which processes can be captured."""

    user: int
    """Effective user id."""
    can_trace_all: bool
    """Whether CAP_SYS_PTRACE is effective."""
    ptrace_scope: int | None
    """Yama's setting; None without Yama."""
    seccomp: int
    """0 no filter, 1 strict, 2 a filter (``Seccomp`` in proc(5))."""
    denies_ptrace: bool
    """SELinux's boolean ``deny_ptrace``."""
    is_own_namespace: bool
    """Whether this is the machine's initial user namespace."""
    container: str | None
    """The file that indicates a container; None outside of one."""


def read_rights(read: Reading) -> LinuxRights:
    """Read the rights from files under ``/proc`` and ``/sys``; missing ones have defaults."""
    status = parse_status(read("/proc/self/status") or "")
    return LinuxRights(
        user=_status_number(status, "Uid", word=1),
        can_trace_all=bool(int(status.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE),
        ptrace_scope=_integer(read("/proc/sys/kernel/yama/ptrace_scope")),
        seccomp=_status_number(status, "Seccomp"),
        # The file has the current and the pending value.
        denies_ptrace=(read("/sys/fs/selinux/booleans/deny_ptrace") or "").startswith("1"),
        is_own_namespace=_is_whole(read("/proc/self/uid_map")),
        container=next((path for path in _CONTAINER_FILES if read(path) is not None), None),
    )


def read_text(path: str) -> str | None:
    """Read a file of this machine: a :data:`Reading`."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return None


def _status_number(status: Mapping[str, str], key: str, *, word: int = 0) -> int:
    words = status.get(key, "").split()
    return int(words[word]) if len(words) > word and words[word].isdecimal() else 0


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None


def _is_whole(text: str | None) -> bool:
    return text is None or text.split() == ["0", "0", str(_WHOLE_RANGE)]
