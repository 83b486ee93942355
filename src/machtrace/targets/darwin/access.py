"""Why macOS does not let one process look at another, and what to do about it.

The rules are in xnu, ``bsd/kern/kern_proc.c``: ``task_for_pid_posix_check``, and what it asks of
the code signing policy (``mac_proc_check_get_task``) and of taskgated; flags are those of
``osfmk/kern/cs_blobs.h`` and ``bsd/sys/csr.h``. :func:`refusal` is a function of facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EPERM, ESRCH, errorcode

from machtrace.errors import TargetAccessError, TargetGoneError
from machtrace.targets.darwin.extension import result_name
from machtrace.targets.darwin.process import ProcessFacts, Rights

_CS_GET_TASK_ALLOW = 0x4
_CS_RESTRICT = 0x800
_CS_RUNTIME = 0x10000
_CS_PLATFORM_BINARY = 0x4000000
_CSR_ALLOW_TASK_FOR_PID = 0x4

_ROOT = 0
_AS_ROOT = "run as root (sudo)"
_DEBUGGER = "com.apple.security.cs.debugger"
_ALLOW = "com.apple.security.get-task-allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRefusal:
    """What the three ways to a task port answered."""

    read_errno: int
    """``task_read_for_pid``'s; ENOSYS before macOS 11."""
    control_result: int
    """``task_for_pid``'s."""
    name_result: int
    """``task_name_for_pid``'s, which takes fewer rights; 0 where it gave a port."""

    def __str__(self) -> str:
        """For the end of a message."""
        read = errorcode.get(self.read_errno, str(self.read_errno))
        return f"task_read_for_pid: {read}, task_for_pid: {result_name(self.control_result)}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way."""

    what: str
    remedy: str
    """What the user can do about it."""


def refusal(pid: int, process: ProcessFacts, rights: Rights) -> Obstacle:
    """What stands in the way: the first rule that is broken."""
    named = f"process {pid} ({process.name})" if process.name else f"process {pid}"
    is_root = rights.user == _ROOT
    if not is_root and process.users != {rights.user}:
        users = "/".join(str(user) for user in sorted(process.users))
        return Obstacle(
            f"{named} is of user {users}, not {rights.user}", f"{_AS_ROOT}, or as that user"
        )
    if not is_root and process.has_changed_user:
        return Obstacle(f"{named} has changed its user or group since it started", _AS_ROOT)
    return _protected(named, process, rights) or _unprivileged(named, process, rights)


def _protected(named: str, process: ProcessFacts, rights: Rights) -> Obstacle | None:
    """What keeps root out, too."""
    if rights.integrity is not None and rights.integrity & _CSR_ALLOW_TASK_FOR_PID:
        return None
    signing = process.code_signing
    if signing & _CS_GET_TASK_ALLOW:
        return None
    if signing & _CS_PLATFORM_BINARY:
        return Obstacle(
            f"{named} is a part of macOS, which System Integrity Protection keeps even from root",
            "capture a program of your own (a Python from python.org or Homebrew, not "
            "/usr/bin/python3), or switch the protection off where that can be justified "
            "(csrutil disable, in recovery)",
        )
    if signing & (_CS_RUNTIME | _CS_RESTRICT):
        return Obstacle(
            f"{named} is signed with the hardened runtime and without {_ALLOW}",
            "build it for debugging, or sign it anew: codesign --force --sign - --entitlements "
            f"FILE PROGRAM, where FILE sets {_ALLOW} to true",
        )
    return None


def _unprivileged(named: str, process: ProcessFacts, rights: Rights) -> Obstacle:
    if rights.user == _ROOT or rights.has_debugger_entitlement:
        return Obstacle(
            f"the kernel does not let {named} be looked at",
            "look for a sandbox that this process runs in, or for a security product that guards "
            "task ports; for one that has a debugger's entitlement only, enable developer mode: "
            "sudo DevToolsSecurity -enable",
        )
    allowed = " that are not built for debugging" if process.code_signing else ""
    return Obstacle(
        f"this user's right does not reach {named}: macOS gives the task ports of "
        f"programs{allowed} to root and to debuggers",
        f"{_AS_ROOT}; or sign this Python with the entitlement {_DEBUGGER}; or give the program "
        f"{_ALLOW}",
    )


def access_error(
    pid: int, process: ProcessFacts, rights: Rights, refused: PortRefusal
) -> TargetAccessError | TargetGoneError:
    """The error for a process whose port was refused; to be raised by the caller."""
    if refused.read_errno == ESRCH:
        return TargetGoneError(f"process {pid} exited", pid=pid)
    obstacle = refusal(pid, process, rights)
    message = f"{obstacle.what} ({refused})"
    return TargetAccessError(message, pid=pid, errno=EPERM, remedy=obstacle.remedy)
