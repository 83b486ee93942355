"""Checks of the rights that Linux grants."""

from __future__ import annotations

import os
import signal
from functools import cache

from machtrace.cli.doctor.findings import Check, Finding, State
from machtrace.errors import MachtraceError
from machtrace.targets.linux.access import (
    YAMA_CHILDREN,
    YAMA_NOBODY,
    YAMA_PRIVILEGED,
    LinuxRights,
    read_rights,
    read_text,
)

_TOPIC = "rights"
_SECCOMP_FILTER = 2
_FIRST_SIGNAL = 6
"""Beyond SIGRTMIN; see docs/decisions/0021-threads-of-this-process.md."""


@cache
def _rights() -> LinuxRights:
    return read_rights(read_text)


def others() -> Finding:
    """Check whether processes of other users can be captured."""
    return others_of(_rights())


def others_of(rights: LinuxRights) -> Finding:
    """:func:`others` with given rights."""
    if rights.denies_ptrace:
        return Finding(
            State.MISSING,
            "SELinux forbids every process to trace another (deny_ptrace)",
            "as root: setsebool deny_ptrace off",
        )
    if rights.ptrace_scope == YAMA_NOBODY:
        return Finding(
            State.MISSING,
            f"no process may trace another (yama ptrace_scope {YAMA_NOBODY})",
            "boot with another kernel.yama.ptrace_scope; it cannot be lowered while running",
        )
    if rights.can_trace_all:
        where = "" if rights.is_own_namespace else ", in this user namespace"
        return Finding(State.OK, f"every user's: CAP_SYS_PTRACE is held{where}")
    if rights.user == 0:
        return Finding(
            State.LIMITED,
            "root's own: root has no CAP_SYS_PTRACE here",
            "add the capability; with docker: --cap-add=SYS_PTRACE",
        )
    return Finding(
        State.LIMITED, f"only those of user {rights.user}", "run as root, or with CAP_SYS_PTRACE"
    )


def scope() -> Finding:
    """Check Yama, which many distributions enable."""
    return scope_of(_rights())


def scope_of(rights: LinuxRights) -> Finding:
    """:func:`scope` with given rights."""
    level = rights.ptrace_scope
    if not level:
        return Finding(State.OK, "not in force" if level is None else "0: it forbids nothing")
    if level >= YAMA_NOBODY:
        remedy = "boot with another kernel.yama.ptrace_scope; it cannot be lowered while running"
        return Finding(State.MISSING, f"{level}: no process may trace another", remedy)
    if rights.can_trace_all:
        return Finding(State.OK, f"{level}: does not hold for CAP_SYS_PTRACE")
    who = {
        YAMA_CHILDREN: "processes may trace their descendants only",
        YAMA_PRIVILEGED: "only the privileged may trace",
    }[level]
    return Finding(
        State.LIMITED,
        f"{level}: {who}",
        "run as root, or allow it until the next start: sysctl kernel.yama.ptrace_scope=0",
    )


def sandbox() -> Finding:
    """Check for seccomp filters and containers."""
    return sandbox_of(_rights())


def sandbox_of(rights: LinuxRights) -> Finding:
    """:func:`sandbox` with given rights."""
    layers = [f"a container ({rights.container})"] if rights.container else []
    if not rights.is_own_namespace:
        layers.append("a user namespace")
    if rights.seccomp == _SECCOMP_FILTER:
        layers.append("a seccomp filter")
        return Finding(
            State.LIMITED,
            f"this process is under {', '.join(layers)}, which may forbid system calls",
            "where captures are refused, run outside, or with a profile that has ptrace and "
            "process_vm_readv; with docker: --cap-add=SYS_PTRACE",
        )
    return Finding(State.OK, f"{', '.join(layers)}, without a seccomp filter" if layers else "none")


def memory() -> Finding:
    """Try process_vm_readv(2), which copies stacks, on a child."""
    from machtrace.targets.child_process import memory_refusal, own_child

    try:
        with own_child() as pid:
            error = memory_refusal(pid)
    except MachtraceError as refused:
        return Finding(State.MISSING, str(refused), refused.remedy)
    except OSError as refused:
        error = refused
    if error is None:
        return Finding(State.OK, "reads the memory of a child")
    return Finding(
        State.MISSING,
        f"does not read the memory of a child ({error.strerror})",
        "run outside the sandbox, or with a seccomp profile that has process_vm_readv",
    )


def signals() -> Finding:
    """Check for a real-time signal without a handler, to suspend threads of this process."""
    from machtrace.targets.inprocess.copier import SIGNAL_VARIABLE

    first, last = int(signal.SIGRTMIN) + _FIRST_SIGNAL, int(signal.SIGRTMAX)
    free = sum(signal.getsignal(number) is signal.SIG_DFL for number in range(first, last + 1))
    chosen = os.environ.get(SIGNAL_VARIABLE, "")
    if chosen:
        text = f"{SIGNAL_VARIABLE} chooses {chosen}; {free} are free"
        if chosen.isdecimal() and int(signal.SIGRTMIN) <= int(chosen) <= last:
            return Finding(State.OK, text)
        remedy = f"unset it, or set it to {int(signal.SIGRTMIN)} to {last}"
        return Finding(State.MISSING, f"{text}; it is no real-time signal", remedy)
    if free:
        return Finding(State.OK, f"{free} of {first} to {last} are free")
    return Finding(
        State.MISSING,
        f"none of {first} to {last} is free",
        f"set {SIGNAL_VARIABLE} to the number of one that this program can do without",
    )


def cores() -> Finding:
    """Check where the kernel writes the cores of programs that crash."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
    return cores_of((read_text("/proc/sys/kernel/core_pattern") or "").strip(), limit)


def cores_of(pattern: str, limit: int) -> Finding:
    """:func:`cores` with a given pattern (core(5)) and limit in bytes; -1 means unlimited."""
    if pattern.startswith("|"):
        program = pattern[1:].strip().partition(" ")[0].rpartition("/")[2] or "a program"
        how = {
            "systemd-coredump": "get one with: coredumpctl dump PID -o FILE",
            "apport": "get one from /var/crash with: apport-unpack",
        }.get(program, f"see how {program} hands them out")
        return Finding(State.OK, f"go to {program}", how)
    if limit == 0:
        return Finding(
            State.LIMITED,
            f"would be called {pattern or 'core'}, but their size is limited to 0",
            "allow them in the shell that starts the program: ulimit -c unlimited",
        )
    return Finding(State.OK, f"are called {pattern or 'core'}")


CHECKS = (
    Check(_TOPIC, "processes of others", others, targets="process"),
    Check(_TOPIC, "yama ptrace_scope", scope, targets="process"),
    Check(_TOPIC, "sandbox", sandbox, targets="process"),
    Check(_TOPIC, "process_vm_readv", memory, targets="process"),
    Check(_TOPIC, "real-time signals", signals, targets="self"),
    Check(_TOPIC, "core files", cores, targets=None),
)
