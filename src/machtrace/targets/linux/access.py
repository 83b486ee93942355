"""Why the kernel does not let one process look at another.

The rules are in ptrace(2), "Ptrace access mode checking".
:func:`refusal` is a function of what ``/proc`` says; :func:`access_error` reads it.

What Linux lets this process do to others, as far as it says so beforehand.

The rules are those of :mod:`machtrace.targets.linux.access`; here they are read without a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import EPERM
from os import strerror

from machtrace.errors import TargetAccessError, TargetGoneError
from machtrace.targets.linux.procfs import ProcessDirectory, parse_status

_CAP_SYS_PTRACE = 1 << 19
_SECCOMP_FILTER = "2"

YAMA_CHILDREN, YAMA_PRIVILEGED, YAMA_NOBODY = 1, 2, 3
"""``Documentation/admin-guide/LSM/Yama.rst``."""

_NOBODY = (
    f"no process may trace another here (yama ptrace_scope {YAMA_NOBODY})",
    "boot with another kernel.yama.ptrace_scope; it cannot be lowered while running",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFacts:
    """What decides it."""

    pid: int
    own: Mapping[str, str]
    """``/proc/self/status``."""
    target: Mapping[str, str]
    """``/proc/PID/status``."""
    tracer_name: str | None
    """Of the process that traces it already."""
    is_dumpable: bool
    ptrace_scope: int | None
    """Yama's; None where it is not in force."""


def refusal(facts: AccessFacts) -> tuple[str, str]:
    """What stands in the way, and what the user can do about it."""
    own, target, pid = facts.own, facts.target, facts.pid
    tracer = target.get("TracerPid", "0")
    if tracer != "0":
        name = f" ({facts.tracer_name})" if facts.tracer_name else ""
        return (
            f"process {pid} is traced already, by process {tracer}{name}",
            f"end or detach process {tracer}{name} first",
        )
    capable = bool(int(own.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE)
    if not capable:
        return _unprivileged(facts)
    if facts.ptrace_scope == YAMA_NOBODY:
        return _NOBODY
    if own.get("Seccomp") == _SECCOMP_FILTER:
        return (
            f"a seccomp filter of this process may forbid to trace process {pid}",
            "run outside the sandbox, or in a container with a seccomp profile that has ptrace",
        )
    return (
        f"the kernel does not let process {pid} be traced",
        "look for a security module (SELinux, AppArmor) or another user namespace in the way",
    )


def _unprivileged(facts: AccessFacts) -> tuple[str, str]:
    """Without CAP_SYS_PTRACE: the first rule that is broken."""
    pid, privilege = facts.pid, "run as root, or with CAP_SYS_PTRACE"
    mine, theirs = facts.own.get("Uid", "").split()[:1], facts.target.get("Uid", "").split()[:3]
    if set(theirs) != set(mine):
        users = "/".join(dict.fromkeys(theirs))
        if mine == ["0"]:
            return (
                f"process {pid} is of user {users}, and root has no CAP_SYS_PTRACE here",
                "add the capability; with docker: --cap-add=SYS_PTRACE",
            )
        return (
            f"process {pid} is of user {users}, not {''.join(mine)}",
            "run as that user, or as root",
        )
    lacking = int(facts.target.get("CapPrm", "0"), 16) & ~int(facts.own.get("CapPrm", "0"), 16)
    scope = facts.ptrace_scope or 0
    if not facts.is_dumpable:
        obstacle = f"process {pid} is not dumpable: it has changed its user, or asked for it"
    elif lacking:
        obstacle = f"process {pid} has capabilities that this one lacks"
    elif scope == YAMA_CHILDREN:
        obstacle = f"only its ancestors may trace process {pid} (yama ptrace_scope {scope})"
        privilege = "run as root, or allow it: sysctl kernel.yama.ptrace_scope=0"
    elif scope == YAMA_PRIVILEGED:
        obstacle = f"only the privileged may trace here (yama ptrace_scope {scope})"
    elif scope >= YAMA_NOBODY:
        return _NOBODY
    else:
        obstacle = f"the kernel does not let process {pid} be traced"
        privilege = f"{privilege}; in a container: --cap-add=SYS_PTRACE"
    return obstacle, privilege


def access_error(
    directory: ProcessDirectory, error: OSError, thread: int | None = None
) -> TargetAccessError | TargetGoneError:
    """What stands in the way where the kernel said ``error``; to be raised by the caller.

    Args:
        directory: of the process.
        error: what the kernel answered, or that the process is gone.
        thread: the one that it was about; None for the process.
    """
    if isinstance(error, TargetGoneError):
        return error
    errno = error.errno or EPERM
    try:
        target = directory.status(thread)
        facts = AccessFacts(
            pid=directory.pid,
            own=parse_status(_text("/proc/self/status") or ""),
            target=target,
            tracer_name=_text(f"/proc/{target.get('TracerPid', '0')}/comm"),
            is_dumpable=_is_dumpable(directory, target),
            ptrace_scope=_number("/proc/sys/kernel/yama/ptrace_scope"),
        )
    except TargetGoneError as gone:
        return gone
    message, remedy = refusal(facts)
    if errno != EPERM:
        message = f"{message} ({strerror(errno)})"
    return TargetAccessError(message, pid=directory.pid, errno=errno, remedy=remedy)


def _is_dumpable(directory: ProcessDirectory, target: Mapping[str, str]) -> bool:
    """Files of a process that is not belong to root (proc(5))."""
    try:
        owner = directory.owner("maps")
    except OSError:
        return False
    return str(owner) == target.get("Uid", "").split()[1]


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            return file.read().removesuffix("\n")
    except OSError:
        return None


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.strip().isdecimal() else None


_TRACE_CAPABILITY = 1 << 19
_WHOLE_RANGE = 4294967295
"""Ids in the map of a user namespace that is the machine's own (user_namespaces(7))."""
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")

Reading = Callable[[str], str | None]
"""The text of a file by its path; None where it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxRights:
    """What decides which processes can be captured."""

    user: int
    """Effective user id."""
    can_trace_all: bool
    """Whether CAP_SYS_PTRACE is effective."""
    ptrace_scope: int | None
    """Yama's; None where it is not in force."""
    seccomp: int
    """0 no filter, 1 strict, 2 a filter (``Seccomp`` in proc(5))."""
    denies_ptrace: bool
    """SELinux's boolean ``deny_ptrace``."""
    is_own_namespace: bool
    """Whether users are those of the whole machine, and no namespace's."""
    container: str | None
    """The file that tells of a container."""


def read_rights(read: Reading) -> LinuxRights:
    """From what ``read`` finds under ``/proc`` and ``/sys``; what is not there is not set."""
    status = parse_status(read("/proc/self/status") or "")
    return LinuxRights(
        user=_status_number(status, "Uid", word=1),
        can_trace_all=bool(int(status.get("CapEff", "0"), 16) & _TRACE_CAPABILITY),
        ptrace_scope=_integer(read("/proc/sys/kernel/yama/ptrace_scope")),
        seccomp=_status_number(status, "Seccomp"),
        # Its value, and the one that it is about to have.
        denies_ptrace=(read("/sys/fs/selinux/booleans/deny_ptrace") or "").startswith("1"),
        is_own_namespace=_is_whole(read("/proc/self/uid_map")),
        container=next((path for path in _CONTAINER_FILES if read(path) is not None), None),
    )


def read_text(path: str) -> str | None:
    """A :data:`Reading` of this machine."""
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
