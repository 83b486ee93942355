"""From the words that name a target to the target.

It also chooses the targets for this system's processes, the only module that checks the system.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from machtrace.errors import CoreFileError, FileAccessError, TargetSpecError
from machtrace.extension_imports import libraries_first
from machtrace.targets.base import Target

if TYPE_CHECKING:
    from machtrace.targets.inprocess.threads import OwnTarget
    from machtrace.targets.linux.crash import CrashWatch

_T = TypeVar("_T")


class System(Enum):
    """A system whose processes can be captured."""

    LINUX = "linux"
    DARWIN = "darwin"


def this_system() -> System:
    """Return the system this runs on; on others Linux's target raises."""
    return System.DARWIN if sys.platform == "darwin" else System.LINUX


def process_target(pid: int) -> Target:
    """Open a process by its id; see :func:`machtrace.open_target`."""
    if this_system() is System.DARWIN:
        from machtrace.targets.darwin.task import DarwinTaskTarget

        return DarwinTaskTarget(pid)
    from machtrace.targets.linux.process import LinuxProcessTarget

    return LinuxProcessTarget(pid)


def traced_until_crash(
    pid: int, capture: Callable[[Target], _T], on_traced: Callable[[], None]
) -> CrashWatch[_T]:
    """Trace a process until it crashes or ends; see ``await_crash()`` of ``targets.linux.crash``.

    Raises:
        TargetSpecError: this system is not Linux.
    """
    if this_system() is not System.LINUX:
        raise TargetSpecError(
            "waiting for a crash requires Linux",
            remedy="read the system's crash report: machtrace convert FILE.ips",
        )
    from machtrace.targets.linux.crash import await_crash

    return await_crash(pid, capture, on_traced)


def own_target() -> OwnTarget:
    """This process; see :func:`machtrace.open_target`."""
    with libraries_first():
        if this_system() is System.DARWIN:
            from machtrace.targets.inprocess.darwin import DarwinSelfTarget

            return DarwinSelfTarget()
        from machtrace.targets.inprocess.linux import SelfTarget

        return SelfTarget()


EMULATED = "emulated:"
SELF = "self"
_ID = re.compile("[0-9]+")
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_ID_LENGTH = 20
_IDS = 3


def _gdb_remote(spec: str) -> Target:
    from machtrace.targets.gdbremote.process import GdbRemoteTarget

    return GdbRemoteTarget(spec)


def _device(spec: str) -> Target:
    from machtrace.targets.ios.target import DeviceTarget

    return DeviceTarget(spec)


def _frida(spec: str) -> Target:
    from machtrace.targets.frida.process import FridaTarget

    return FridaTarget(spec)


def _emulated(spec: str) -> Target:
    from machtrace.targets.emulator.target import EmulatedTarget

    return EmulatedTarget(spec.removeprefix(EMULATED))


class TargetScheme(NamedTuple):
    """A kind of target whose specs begin with a prefix."""

    prefix: str
    example: str
    """A spec, as hints and the commands' help show it."""
    open: Callable[[str], Target]
    """Opens the target of a spec."""
    can_run: bool = True
    """Whether it runs, so that it can be sampled."""


# Those of running targets first: the forms that sampling takes are a prefix of all forms.
SCHEMES = (
    TargetScheme("gdb://", "gdb://host:port", _gdb_remote),
    TargetScheme("device://", "device://UDID/bundle-id", _device),
    TargetScheme("frida://", "frida://local/PID", _frida),
    TargetScheme(EMULATED, "emulated:demo", _emulated, can_run=False),
)


def spec_forms(*, of_running: bool = False) -> str:
    """Return the forms of specs in words, except ``self``; optionally of running targets only."""
    forms = ["a process id or name"] if of_running else ["a process id or name", "a core file"]
    forms += [scheme.example for scheme in SCHEMES if scheme.can_run or not of_running]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def invalid_spec(reason: str) -> TargetSpecError:
    """Return the error for a value that is not a spec; its hint lists the forms of specs."""
    return TargetSpecError(reason, remedy=f"pass {spec_forms()}; in Python also '{SELF}'")


def open_target(spec: int | str | Path | None) -> Target:
    """Open the process, core or emulated process that ``spec`` names.

    Args:
        spec: a process id; ``self``, which is this process; the path of a core file; a text with
            the prefix of one of :data:`SCHEMES`, such as ``gdb://host:port``; or the name of a
            running process, unless a file has it. None raises.

    Raises:
        TargetSpecError: it names nothing that can be opened.
        TargetGoneError: there is no such process.
        TargetAccessError: the kernel denies access.
        FileAccessError, FormatError: the file cannot be read, or is no core.
        MissingExtraError: an optional library is needed and not there.
        ConnectionLostError, RemoteProtocolError: no stub answers, or it makes no sense.
        DeviceError: an iOS device is not there, or refuses.
    """
    if isinstance(spec, str) and len(spec) < _MAX_ID_LENGTH and _ID.fullmatch(spec.strip()):
        spec = int(spec)
    if isinstance(spec, int):
        return process_target(spec)
    if spec == SELF:
        return own_target()
    if isinstance(spec, str):
        for scheme in SCHEMES:
            if spec.startswith(scheme.prefix):
                return scheme.open(spec)
    if spec is None or spec == "":
        raise invalid_spec("missing target")
    if not isinstance(spec, str | Path):
        raise invalid_spec(f"a {type(spec).__name__} is not a target")
    path = _existing(spec)
    if path is None:
        return process_target(process_named(str(spec)))
    return _core(path, spec)


def _core(path: Path, spec: str | Path) -> Target:
    """Open a core; if it is none, the hint has the ids of processes with the file's name."""
    from machtrace.targets.core.macho import open_corefile

    try:
        return open_corefile(path)
    except CoreFileError as error:
        # In the folder where it was built, a program's file has the name of its process.
        if ids := _ids_of_name(spec):
            error.remedy = f"for the running process of this name pass its id: {ids}"
        raise


def _ids_of_name(name: str | Path) -> str:
    """Return the ids of at most three processes of a name; empty for a path, or without any."""
    if isinstance(name, Path) or "/" in name or this_system() is not System.LINUX:
        return ""
    from machtrace.targets.linux.identity import running_processes

    matches = sorted(process.pid for process in running_processes() if name in process.names)
    return ", ".join(map(str, matches[:_IDS]))


def process_named(name: str) -> int:
    """Return the id of the only process of a name: its own, its program's or its script's.

    Raises:
        TargetSpecError: no process has it, or several have; or this system's are not listed.
    """
    if this_system() is System.DARWIN:
        raise invalid_spec(f"unknown target {name!r}; no such file")
    from machtrace.targets.base import choose_process
    from machtrace.targets.linux.identity import running_processes

    return choose_process(running_processes(), name, spec_forms())


def _existing(spec: str | Path) -> Path | None:
    """Return the path of an existing file; None for the name of a process."""
    path = Path(spec)
    is_name = isinstance(spec, str) and "/" not in spec
    try:
        if is_name and path.is_dir():
            return None
        path.stat()
    except ValueError as error:
        raise FileAccessError(str(path), str(error)) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            if isinstance(spec, str) and (scheme := _SCHEME.match(spec)):
                raise invalid_spec(f"unknown scheme {scheme[0]}") from None
            if is_name:
                return None
        reason = (error.strerror or "cannot be read").lower()
        raise FileAccessError(str(path), reason) from error
    return path
