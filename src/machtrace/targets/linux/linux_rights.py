"""What Linux lets this process do to others, as far as it says so beforehand.

The rules are those of :mod:`machtrace.targets.linux.access`; here they are read without a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from machtrace.targets.linux.procfs import parse_status

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
