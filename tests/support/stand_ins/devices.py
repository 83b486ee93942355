"""Synthetic devices: their files, failures and recorded calls, and services by pymobiledevice3.

No phone was recorded for this: answers follow the library's documentation and source. Services and
exceptions have the library's names, parameters and derivation. The debugserver of such a device is
any gdb-remote stub that listens at a port of this machine, such as lldb-server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

_BASES = {
    "PyMobileDevice3Exception": "Exception",
    "AfcException": "PyMobileDevice3Exception",
    "ConnectionTerminatedError": "PyMobileDevice3Exception",
    "DeveloperModeIsNotEnabledError": "PyMobileDevice3Exception",
    "InvalidServiceError": "LockdownError",
    "LockdownError": "PyMobileDevice3Exception",
    "MuxException": "PyMobileDevice3Exception",
    "ConnectionFailedError": "MuxException",
    "ConnectionFailedToUsbmuxdError": "ConnectionFailedError",
    "NotPairedError": "PyMobileDevice3Exception",
    "PairingError": "PyMobileDevice3Exception",
    "PasswordRequiredError": "PairingError",
    "StartServiceError": "PyMobileDevice3Exception",
    "TunneldConnectionError": "PyMobileDevice3Exception",
    "UserspaceTunnelUnavailableError": "PyMobileDevice3Exception",
}
"""Exceptions and what they are derived from."""


def _exceptions() -> dict[str, type[Exception]]:
    made: dict[str, type[Exception]] = {"Exception": Exception}

    def make(name: str) -> type[Exception]:
        if name not in made:
            made[name] = type(name, (make(_BASES[name]),), {})
        return made[name]

    return {name: make(name) for name in _BASES}


EXCEPTIONS = _exceptions()


@dataclass(slots=True, kw_only=True)
class SyntheticDevice:
    """A device and what is on it."""

    udid: str = "00008110-001C2D3E4F50601A"
    connection: str = "USB"
    version: str = "16.7"
    is_paired: bool = True
    has_tunnel: bool = False
    """Whether tunneld keeps one to it."""
    allows_own_tunnel: bool = True
    """Whether one can be opened without an administrator."""
    developer_mode: bool = True
    is_image_mounted: bool = True
    apps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    """Processes by bundle id."""
    launch: Callable[[str, bool], int] | None = None
    """Starts an app, suspended or not; its process."""
    port: int = 0
    """The port of this machine at which its debugserver listens."""
    reports: Mapping[str, bytes | None] = field(default_factory=dict)
    """Contents by path, from the folder of reports; None for a link."""
    failures: dict[str, str] = field(default_factory=dict)
    """Which exception of the library a call of this name raises."""
    calls: list[str] = field(default_factory=list)
    """The calls that it received."""

    def note(self, call: str) -> None:
        """Keep that ``call`` was made; fail if it is to."""
        self.calls.append(call)
        if call in self.failures:
            raise EXCEPTIONS[self.failures[call]](f"made to fail: {call}")


@dataclass(slots=True, kw_only=True)
class SyntheticDevices:
    """All devices, and what of the host reaches them."""

    devices: list[SyntheticDevice] = field(default_factory=list)
    has_usbmuxd: bool = True
    has_tunneld: bool = False

    def find(self, udid: str | None) -> SyntheticDevice:
        """Return the device with this UDID, or the first."""
        return next(device for device in self.devices if udid in (None, device.udid))


class Stream:
    """``service_connection.ServiceConnection``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def recv_any(self, length: int = 4096) -> bytes:
        """Return received bytes; none at the end."""
        try:
            return await self._reader.read(length)
        except OSError as error:
            raise EXCEPTIONS["ConnectionTerminatedError"] from error

    async def sendall(self, payload: bytes) -> None:
        """Send all."""
        self._writer.write(payload)
        await self._writer.drain()

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Provider:
    """Shared by lockdown clients and tunnels."""

    def __init__(self, device: SyntheticDevice) -> None:
        self.device = device
        self.product_type = "iPhone14,5"
        self.all_values = {"DeviceName": "Made up", "ProductVersion": device.version}

    @property
    def product_version(self) -> str:
        """The system's version."""
        return self.device.version

    @property
    def has_developer_mode(self) -> bool:
        """Whether there is one to turn on."""
        return int(self.device.version.partition(".")[0]) >= 16

    async def get_developer_mode_status(self) -> bool:
        """Return whether developer mode is on."""
        return self.device.developer_mode

    async def close(self) -> None:
        """Let go."""
        self.device.calls.append("close")

    async def started(self, name: str) -> Stream:
        """Open a stream to a service."""
        self.device.note(name)
        if not (self.device.developer_mode and self.device.is_image_mounted):
            raise EXCEPTIONS["InvalidServiceError"](f"the device does not offer {name}")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.device.port)
        return Stream(reader, writer)


class Lockdown(Provider):
    """``lockdown.UsbmuxLockdownClient``."""

    def __init__(self, device: SyntheticDevice) -> None:
        super().__init__(device)
        self.paired = device.is_paired

    async def start_lockdown_service(self, name: str) -> Stream:
        """Start a service of iOS before 17."""
        return await self.started(name)


class Tunnel(Provider):
    """``remote.remote_service_discovery.RemoteServiceDiscoveryService``."""

    async def start_lockdown_service_without_checkin(self, name: str) -> Stream:
        """Since iOS 17."""
        return await self.started(name)


class _Service:
    """An asynchronous context."""

    def __init__(self, lockdown: Provider) -> None:
        self.device = lockdown.device

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class InstallationProxy(_Service):
    """``services.installation_proxy.InstallationProxyService``."""

    async def get_apps(self, *, bundle_identifiers: list[str] | None = None) -> dict[str, Any]:
        """Apps by bundle id."""
        self.device.note("get_apps")
        apps = self.device.apps
        return {
            key: dict(apps[key])
            for key in apps
            if bundle_identifiers is None or key in bundle_identifiers
        }


class ImageMounter(_Service):
    """``services.mobile_image_mounter.MobileImageMounterService``."""

    async def is_image_mounted(self, image_type: str) -> bool:
        """Return whether an image of this kind is mounted."""
        del image_type
        return self.device.is_image_mounted


class Instruments(_Service):
    """``services.dvt.instruments.dvt_provider.DvtProvider``."""


class ProcessControl(_Service):
    """``services.dvt.instruments.process_control.ProcessControl``."""

    def __init__(self, provider: Instruments) -> None:
        self.device = provider.device

    async def process_identifier_for_bundle_identifier(self, app_bundle_identifier: str) -> int:
        """Return the id of the process, or 0."""
        self.device.note("process_identifier_for_bundle_identifier")
        return self.device.running.get(app_bundle_identifier, 0)

    async def launch(
        self,
        bundle_id: str,
        *,
        kill_existing: bool = True,
        start_suspended: bool = False,
    ) -> int:
        """Start an app; its process."""
        self.device.note(f"launch {bundle_id} {kill_existing=} {start_suspended=}")
        self.device.note("launch")
        assert self.device.launch is not None
        return self.device.launch(bundle_id, start_suspended)

    async def resume(self, pid: int) -> None:
        """Let it run."""
        self.device.note(f"resume {pid}")


class Files:
    """``services.afc.AfcService``."""

    def __init__(self, device: SyntheticDevice) -> None:
        self.device = device
        self._open: dict[int, tuple[bytes, int]] = {}

    async def listdir(self, filename: str) -> list[str]:
        """Names in a folder."""
        self.device.note("listdir")
        folder = filename.strip("/")
        start = f"{folder}/" if folder else ""
        paths = [path.removeprefix(start) for path in self.device.reports if path.startswith(start)]
        # A name with a trick in it, such as an absolute path, is given as it is.
        return list(
            dict.fromkeys(p if p.startswith(("/", "..")) else p.split("/")[0] for p in paths)
        )

    async def stat(self, filename: str) -> dict[str, Any]:
        """Return a file's attributes."""
        path = filename[1:]
        data = self.device.reports.get(path, b"folder")
        kind = "S_IFREG" if path in self.device.reports else "S_IFDIR"
        return {
            "st_ifmt": "S_IFLNK" if data is None else kind,
            "st_size": len(data or b""),
            "st_mtime": datetime.fromtimestamp(1_700_000_000 + len(path), UTC),
        }

    async def fopen(self, filename: str, mode: str = "r") -> int:
        """Open a file; return its handle."""
        self.device.note(f"fopen {filename} {mode}")
        handle = len(self._open) + 1
        self._open[handle] = (self.device.reports[filename[1:]] or b"", 0)
        return handle

    async def fread(self, handle: int, sz: int) -> bytes:
        """Read the next bytes."""
        self.device.note("fread")
        data, at = self._open[handle]
        self._open[handle] = data, at + sz
        return data[at : at + sz]

    async def fclose(self, handle: int) -> None:
        """Give a handle back."""
        self.device.note(f"fclose {handle}")


class CrashReports:
    """``services.crash_reports.CrashReportsManager``."""

    def __init__(self, lockdown: Provider) -> None:
        self.afc = Files(lockdown.device)
        self._device = lockdown.device

    async def flush(self) -> None:
        """Have the newest put where they can be read."""
        self._device.note("flush")

    async def aclose(self) -> None:
        """Let go."""
        self._device.calls.append("aclose")
