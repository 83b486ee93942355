"""Checks of the rights that macOS grants; none of them was run on a Mac yet."""

from __future__ import annotations

import os
import shutil
import subprocess

from machtrace.cli.doctor.findings import Check, Finding, State

_TOPIC = "rights"
_PATIENCE_S = 10


def _printed(*command: str) -> str:
    """Return the output of a system program; empty if it is missing or fails."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - programs of the system, by name
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def tasks() -> Finding:
    """Check who may get task ports (``task_for_pid``) of other processes."""
    return tasks_of(os.geteuid(), _printed("DevToolsSecurity", "-status"), _printed("id", "-Gn"))


def tasks_of(user: int, developer_mode: str, groups: str) -> Finding:
    """:func:`tasks` for a user id, and output of ``DevToolsSecurity -status`` and ``id -Gn``."""
    if user == 0:
        return Finding(
            State.OK, "root may have those of programs that System Integrity Protection leaves"
        )
    entitled = "sign the interpreter with com.apple.security.cs.debugger, or run with sudo"
    if "enabled" not in developer_mode:
        return Finding(
            State.LIMITED,
            "developer mode is off: the system requires a password, or refuses",
            f"sudo DevToolsSecurity -enable; then {entitled}",
        )
    if "_developer" not in groups.split():
        return Finding(
            State.LIMITED,
            "this user is not of the group _developer",
            f"sudo dseditgroup -o edit -t group -a staff _developer; then {entitled}",
        )
    return Finding(State.LIMITED, "given to programs that are signed for it, and to root", entitled)


def integrity() -> Finding:
    """Check System Integrity Protection, which prevents captures of the system's programs."""
    return integrity_of(_printed("csrutil", "status"))


def integrity_of(status: str) -> Finding:
    """:func:`integrity` for the output of ``csrutil status``."""
    if not status.strip():
        return Finding(State.LIMITED, "csrutil reports no status", "see: csrutil status")
    if "disabled" in status:
        return Finding(State.OK, "disabled: the system's programs can be captured, too")
    return Finding(
        State.LIMITED,
        "enabled: even root cannot capture the system's programs, and hardened ones without "
        "get-task-allow",
        "build the program with com.apple.security.get-task-allow, as Xcode does for debugging",
    )


CHECKS = (
    Check(_TOPIC, "task_for_pid", tasks, targets="process"),
    Check(_TOPIC, "System Integrity Protection", integrity, targets="process"),
)
