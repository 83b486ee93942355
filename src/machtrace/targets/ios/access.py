"""The interface to iOS devices, independent of the library that reaches them.

Only :mod:`machtrace.targets.ios.pymobiledevice3` knows the library that does; all else of this
package knows these protocols, and tests stand in for them.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass

EXTRA = "device"
"""The extra of this package that brings the library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that can be reached."""

    udid: str
    connection: str
    """``USB``, ``Network``, or ``tunnel`` where only a tunnel to it is known."""
    name: str = ""
    """The owner's name for it; empty if unknown, as are the others."""
    product: str = ""
    """Its model, such as iPhone15,2."""
    version: str = ""
    """The version of its system."""
    problem: MachtraceError | None = None
    """Why its facts are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledApp:
    """An app on a device."""

    bundle_id: str
    name: str
    version: str
    path: str
    """The path of its bundle on the device."""
    is_users: bool
    """Whether a user installed it; else it is the system's."""
    is_debuggable: bool
    """Whether its signature has ``get-task-allow``, without which debugserver may not attach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A file among a device's crash reports."""

    path: str
    """Path below the folder of reports, with slashes, as the device states it: untrusted."""
    size: int
    """In bytes."""
    modified: float
    """Seconds since 1970."""


class DeviceSession(AbstractContextManager["DeviceSession"], Protocol):
    """One device, connected to.

    Everything raises :class:`~machtrace.errors.DeviceError` where the device refuses, and
    :class:`~machtrace.errors.ConnectionLostError` where it went away.
    """

    @property
    def device(self) -> Device:
        """Which one."""
        ...

    def apps(self, bundle_ids: Collection[str] | None = None, /) -> tuple[InstalledApp, ...]:
        """List the installed apps of these ids; None for all."""
        ...

    def running_pid(self, bundle_id: str, /) -> int | None:
        """Return the process id of an app; None if it is not running."""
        ...

    def launch(self, bundle_id: str, /, *, is_suspended: bool, ends_running: bool) -> int:
        """Start an app; its process.

        Args:
            bundle_id: which.
            is_suspended: whether it is to wait before its first instruction for a debugger.
            ends_running: whether a process of it that runs is ended; else that one is given.
        """
        ...

    def resume(self, pid: int, /) -> None:
        """Let a process run that was launched suspended and has no debugger."""
        ...

    def debugserver(self) -> socket.socket:
        """Connect to a debugserver that has no process; the caller closes the connection."""
        ...

    def report_files(self) -> Iterator[DeviceFile]:
        """List the files among its crash reports, in all folders."""
        ...

    def read_report(self, path: str, /) -> Iterator[bytes]:
        """Read the bytes of one of :meth:`report_files`, in parts."""
        ...

    def close(self) -> None:
        """Release the device; a second call does nothing."""
        ...


class DeviceAccess(Protocol):
    """The devices that this machine can reach."""

    def devices(self) -> tuple[Device, ...]:
        """Return all of them.

        Raises:
            DeviceError: the service that lists devices does not run.
        """
        ...

    def open(self, udid: str | None, /) -> DeviceSession:
        """Connect to one; None is for the only one there is.

        Raises:
            DeviceError: it is not there, is not paired, or there are several.
        """
        ...
