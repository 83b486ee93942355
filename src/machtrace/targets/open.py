"""From the words that name a target to the target.

It also chooses the targets for this system's processes, the only module that checks the system.
"""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.errors import FileAccessError, TargetSpecError
from machtrace.targets.base import Target

if TYPE_CHECKING:
    from machtrace.targets.inprocess.threads import OwnTarget


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


def own_target() -> OwnTarget:
    """This process; see :func:`machtrace.open_target`."""
    if this_system() is System.DARWIN:
        from machtrace.targets.inprocess.darwin import DarwinSelfTarget

        return DarwinSelfTarget()
    from machtrace.targets.inprocess.linux import SelfTarget

    return SelfTarget()


EMULATED = "emulated:"
SELF = "self"
GDB = "gdb://"
FRIDA = "frida://"
DEVICE = "device://"
_ID = re.compile("[0-9]+")
_LONGEST_ID = 20


def open_target(spec: int | str | Path | None) -> Target:
    """Open the process, core or emulated process that ``spec`` names.

    Args:
        spec: a process id; ``self``, which is this process; the path of a core file;
            ``gdb://host:port`` of a gdb-remote stub; ``device://UDID/bundle-id`` of an iOS
            device; ``frida://local/PID`` and other ``frida://`` forms; or ``emulated:demo``. None
            raises.

    Raises:
        TargetSpecError: it names nothing that can be opened.
        TargetGoneError: there is no such process.
        TargetAccessError: the kernel denies access.
        FileAccessError, FormatError: the file cannot be read, or is no core.
        MissingExtraError: an optional library is needed and not there.
        ConnectionLostError, RemoteProtocolError: no stub answers, or it makes no sense.
        DeviceError: an iOS device is not there, or refuses.
    """
    if isinstance(spec, str) and len(spec) < _LONGEST_ID and _ID.fullmatch(spec.strip()):
        spec = int(spec)
    if isinstance(spec, int):
        return process_target(spec)
    if spec == SELF:
        return own_target()
    found = _by_scheme(spec) if isinstance(spec, str) else None
    if found is not None:
        return found
    if spec is None or spec == "":
        raise TargetSpecError("missing target")
    if not isinstance(spec, str | Path):
        raise TargetSpecError(f"a {type(spec).__name__} is not a target")
    path = _existing(spec)
    from machtrace.targets.core.macho import open_corefile

    return open_corefile(path)


def _by_scheme(spec: str) -> Target | None:
    """Open the target that the prefix of ``spec`` names; None for an unknown prefix."""
    if spec.startswith(EMULATED):
        from machtrace.targets.emulator.target import EmulatedTarget

        return EmulatedTarget(spec.removeprefix(EMULATED))
    if spec.startswith(GDB):
        from machtrace.targets.gdbremote.process import GdbRemoteTarget

        return GdbRemoteTarget(spec)
    if spec.startswith(DEVICE):
        from machtrace.targets.ios.target import DeviceTarget

        return DeviceTarget(spec)
    if spec.startswith(FRIDA):
        from machtrace.targets.frida.process import FridaTarget

        return FridaTarget(spec)
    return None


def _existing(spec: str | Path) -> Path:
    path = Path(spec)
    try:
        path.stat()
    except ValueError as error:
        raise FileAccessError(str(path), str(error)) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and "/" not in str(spec):
            raise TargetSpecError(f"unknown target {str(spec)!r}; no such file") from None
        reason = (error.strerror or "cannot be read").lower()
        raise FileAccessError(str(path), reason) from error
    return path
