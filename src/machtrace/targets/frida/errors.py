"""Frida's exceptions as ours."""

from __future__ import annotations

from collections.abc import Callable
from errno import EPERM

from machtrace.errors import (
    ConnectionLostError,
    MachtraceError,
    RemoteProtocolError,
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
)
from machtrace.targets.frida.spec import FridaSpec, Reach

_MESSAGE_MAX = 400


def error_of(error: Exception, spec: FridaSpec) -> MachtraceError:
    """Return our error for an exception of Frida's, which is recognised by its name."""
    reason = " ".join(str(error).split())[:_MESSAGE_MAX] or type(error).__name__
    make = _KINDS.get(type(error).__name__, _other)
    return make(reason, spec)


def _no_process(reason: str, spec: FridaSpec) -> MachtraceError:
    if spec.pid is not None:
        return TargetGoneError(f"no {spec.process} on {spec.place} ({reason})", pid=spec.pid)
    return TargetSpecError(
        f"no process {spec.process} on {spec.place} ({reason})",
        remedy="pass its id, its name or its bundle identifier; frida-ps lists them",
    )


def _no_server(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"no frida-server responds: {spec.place} ({reason})",
        remedy="start frida-server there, of this machine's version of Frida, listening on that "
        "address",
    )


def _refused(reason: str, spec: FridaSpec) -> MachtraceError:
    if spec.reach is Reach.LOCAL:
        remedy = (
            "run as the process' user or as root; on Linux see kernel.yama.ptrace_scope, on macOS "
            "the process must be debuggable (get-task-allow)"
        )
    else:
        remedy = "run frida-server as root, or attach to an application that is debuggable"
    return TargetAccessError(
        f"Frida may not attach to {spec.process} on {spec.place} ({reason})",
        pid=spec.pid or 0,
        errno=EPERM,
        remedy=remedy,
    )


def _silent(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"{spec.process} on {spec.place} does not respond to Frida ({reason})",
        remedy="check whether the process is stopped, is suspended in the background, or has a "
        "debugger",
    )


def _broken(reason: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"the connection broke: {spec.place} ({reason})",
        remedy="check whether frida-server still runs and has this machine's version of Frida",
    )


def _odd(reason: str, spec: FridaSpec) -> MachtraceError:
    return RemoteProtocolError(
        f"{spec.place} does not use Frida's protocol",
        request="Frida",
        reply=reason,
        remedy="install the same version of Frida on both sides",
    )


def _not_supported(reason: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida cannot be loaded into {spec.process} on {spec.place} ({reason})",
        remedy="choose a process of that machine's architecture; check whether frida-trace can "
        "attach to it",
    )


def _other(reason: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida failed on {spec.process} on {spec.place} ({reason})",
        remedy="check whether frida-trace can attach to it, with the same version of Frida on both "
        "sides",
    )


_KINDS: dict[str, Callable[[str, FridaSpec], MachtraceError]] = {
    "ProcessNotFoundError": _no_process,
    "ServerNotRunningError": _no_server,
    "PermissionDeniedError": _refused,
    "ProcessNotRespondingError": _silent,
    "TimedOutError": _silent,
    "OperationCancelledError": _silent,
    "TransportError": _broken,
    "InvalidOperationError": _broken,
    "ProtocolError": _odd,
    "NotSupportedError": _not_supported,
    "ExecutableNotSupportedError": _not_supported,
    "ExecutableNotFoundError": _not_supported,
}
