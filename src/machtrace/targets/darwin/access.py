"""Why macOS denies one process the task port of another, and the remedy.

The rules are in xnu, ``bsd/kern/kern_proc.c``: ``task_for_pid_posix_check``, which also queries the
code signing policy (``mac_proc_check_get_task``) and taskgated; flags are those of
``osfmk/kern/cs_blobs.h`` and ``bsd/sys/csr.h``. :func:`refusal` is a function of facts.
"""

from __future__ import annotations

from errno import EPERM, ESRCH, errorcode

from machtrace.errors import TargetAccessError, TargetGoneError
from machtrace.frozen import dataclass
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
    """The results of the three calls that open a task port."""

    read_errno: int
    """``task_read_for_pid``'s; ENOSYS before macOS 11."""
    control_result: int
    """``task_for_pid``'s."""
    name_result: int
    """``task_name_for_pid``'s, which takes fewer rights; 0 if it returned a port."""

    def __str__(self) -> str:
        """Return the results as text for the end of a message."""
        read = errorcode.get(self.read_errno, str(self.read_errno))
        return f"task_read_for_pid: {read}, task_for_pid: {result_name(self.control_result)}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A rule that denies access."""

    what: str
    remedy: str
    """The user's next step."""


def refusal(pid: int, process: ProcessFacts, rights: Rights) -> Obstacle:
    """Return the first rule that denies access."""
    named = f"process {pid} ({process.name})" if process.name else f"process {pid}"
    is_root = rights.user == _ROOT
    if not is_root and process.users != {rights.user}:
        users = "/".join(str(user) for user in sorted(process.users))
        return Obstacle(
            f"{named} belongs to user {users}, not {rights.user}", f"{_AS_ROOT}, or as that user"
        )
    if not is_root and process.has_changed_user:
        return Obstacle(f"{named} has changed its user or group since it started", _AS_ROOT)
    return _protected(named, process, rights) or _unprivileged(named, process, rights)


def _protected(named: str, process: ProcessFacts, rights: Rights) -> Obstacle | None:
    """Return the rule that denies access to root, too."""
    if rights.integrity is not None and rights.integrity & _CSR_ALLOW_TASK_FOR_PID:
        return None
    signing = process.code_signing
    if signing & _CS_GET_TASK_ALLOW:
        return None
    if signing & _CS_PLATFORM_BINARY:
        return Obstacle(
            f"{named} is a part of macOS, which System Integrity Protection guards against root",
            "capture a program of your own (a Python from python.org or Homebrew, not "
            "/usr/bin/python3), or disable the protection where that can be justified "
            "(csrutil disable, in recovery)",
        )
    if signing & (_CS_RUNTIME | _CS_RESTRICT):
        return Obstacle(
            f"{named} is signed with the hardened runtime and without {_ALLOW}",
            "build it for debugging, or sign it again: codesign --force --sign - --entitlements "
            f"FILE PROGRAM, where FILE sets {_ALLOW} to true",
        )
    return None


def _unprivileged(named: str, process: ProcessFacts, rights: Rights) -> Obstacle:
    if rights.user == _ROOT or rights.has_debugger_entitlement:
        return Obstacle(
            f"the kernel denies access to {named}",
            "check for a sandbox that this process runs in, or for a security product that guards "
            "task ports; if it has only a debugger's entitlement, enable developer mode: "
            "sudo DevToolsSecurity -enable",
        )
    allowed = " that are not built for debugging" if process.code_signing else ""
    return Obstacle(
        f"this user may not access {named}: macOS gives the task ports of "
        f"programs{allowed} to root and to debuggers",
        f"{_AS_ROOT}; or sign this Python with the entitlement {_DEBUGGER}; or sign the "
        f"program with {_ALLOW}",
    )


def access_error(
    pid: int, process: ProcessFacts, rights: Rights, refused: PortRefusal
) -> TargetAccessError | TargetGoneError:
    """Return the error for a process whose task port was refused."""
    if refused.read_errno == ESRCH:
        return TargetGoneError(f"process {pid} has exited", pid=pid)
    obstacle = refusal(pid, process, rights)
    message = f"{obstacle.what} ({refused})"
    return TargetAccessError(message, pid=pid, errno=EPERM, remedy=obstacle.remedy)
