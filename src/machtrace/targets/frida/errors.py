"""What Frida's exceptions mean here."""

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

_LONGEST = 400


def error_of(error: Exception, spec: FridaSpec) -> MachtraceError:
    """What the user should read for an exception of Frida's, which is known by its name.

    Args:
        error: raised by the library.
        spec: what was being reached.
    """
    said = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
    make = _KINDS.get(type(error).__name__, _other)
    return make(said, spec)


def _no_process(said: str, spec: FridaSpec) -> MachtraceError:
    if spec.pid is not None:
        return TargetGoneError(f"no {spec.process} on {spec.place} ({said})", pid=spec.pid)
    return TargetSpecError(
        f"no process {spec.process} on {spec.place} ({said})",
        remedy="give its id, its name or its bundle identifier; frida-ps lists them",
    )


def _no_server(said: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"no frida-server answers: {spec.place} ({said})",
        remedy="start frida-server there, of this machine's version of Frida, listening on that "
        "address",
    )


def _refused(said: str, spec: FridaSpec) -> MachtraceError:
    if spec.reach is Reach.LOCAL:
        remedy = (
            "run as the process' user or as root; on Linux see kernel.yama.ptrace_scope, on macOS "
            "the process must be debuggable (get-task-allow)"
        )
    else:
        remedy = "run frida-server as root, or attach to an application that is debuggable"
    return TargetAccessError(
        f"Frida may not look into {spec.process} on {spec.place} ({said})",
        pid=spec.pid or 0,
        errno=EPERM,
        remedy=remedy,
    )


def _silent(said: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"{spec.process} on {spec.place} does not answer Frida ({said})",
        remedy="look whether the process is stopped, is suspended in the background, or has a "
        "debugger",
    )


def _broken(said: str, spec: FridaSpec) -> MachtraceError:
    return ConnectionLostError(
        f"the connection broke: {spec.place} ({said})",
        remedy="look whether frida-server still runs and is of this machine's version of Frida",
    )


def _odd(said: str, spec: FridaSpec) -> MachtraceError:
    return RemoteProtocolError(
        f"{spec.place} does not speak as Frida does",
        request="Frida",
        reply=said,
        remedy="install the same version of Frida on both sides",
    )


def _not_supported(said: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida cannot be loaded into {spec.process} on {spec.place} ({said})",
        remedy="choose a process that runs a program of that machine; see whether frida-trace can "
        "attach to it",
    )


def _other(said: str, spec: FridaSpec) -> MachtraceError:
    return TargetError(
        f"Frida failed on {spec.process} on {spec.place} ({said})",
        remedy="see whether frida-trace can attach to it, with the same version of Frida on both "
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
