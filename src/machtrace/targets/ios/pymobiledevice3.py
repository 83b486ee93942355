"""The device interface by the library pymobiledevice3: the only module that imports it.

Before iOS 17 all services are started by lockdown, over usbmux. Since then those for developers are
behind a tunnel: one that a tunneld of this machine keeps, or else one of this process, which by USB
and from iOS 17.4 on takes no administrator. Whatever the library raises leaves here as it is.

Written to version 11.45 of the library, which is asynchronous throughout.
"""

# The library comes with an extra, which is not installed where types are checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

from machtrace.targets.ios.access import Device, DeviceFile, InstalledApp
from machtrace.targets.ios.event_loop import ServiceStream

_FIRST_WITH_TUNNELS = 17
_DEBUGSERVER = "com.apple.debugserver.DVTSecureSocketProxy"
_DEBUGSERVER_BY_TUNNEL = "com.apple.internal.dt.remote.debugproxy"
_IMAGES = ("Personalized", "Developer")
"""Kinds of disk images for developers: since iOS 17, and before."""
TUNNEL = "tunnel"
"""The connection of a device that only tunneld knows."""


class Place(NamedTuple):
    """Where a device was seen."""

    udid: str
    """The UDID as the library writes it."""
    connection: str
    has_tunnel: bool
    """Whether tunneld keeps one to it."""


async def find_places() -> list[Place]:
    """Find the devices that usbmuxd or tunneld knows, each once, by USB if possible."""
    from pymobiledevice3.exceptions import ConnectionFailedToUsbmuxdError, TunneldConnectionError
    from pymobiledevice3.tunneld.api import get_tunneld_tunnels
    from pymobiledevice3.usbmux import list_devices

    tunnels: list[str] = []
    with suppress(TunneldConnectionError):
        tunnels = list(await get_tunneld_tunnels())
    tunnelled = {plain(udid): udid for udid in tunnels}
    places: dict[str, Place] = {}
    try:
        for listed in await list_devices():
            key = plain(listed.serial)
            if key not in places or listed.connection_type == "USB":
                places[key] = Place(listed.serial, listed.connection_type, key in tunnelled)
    except ConnectionFailedToUsbmuxdError:
        if not tunnelled:
            raise
    for key, udid in tunnelled.items():
        places.setdefault(key, Place(udid, TUNNEL, has_tunnel=True))
    return list(places.values())


def plain(udid: str) -> str:
    """Normalise a UDID for comparison: some are written without the dash."""
    return udid.replace("-", "").upper()


class LibraryDevice:
    """One device, connected to; closed by :meth:`close`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._held = AsyncExitStack()
        self._lockdown: Any = None
        """Over usbmux; None where only tunneld knows the device."""
        self._developer: Any = None
        """The provider of developer services, once known."""
        self._reports: Any = None

    async def connect(self) -> None:
        """Connect without pairing, which would prompt the device's user."""
        if self._place.connection == TUNNEL:
            await self._provider()
            return
        from pymobiledevice3.lockdown import create_using_usbmux

        self._lockdown = await create_using_usbmux(serial=self._place.udid, autopair=False)
        self._held.push_async_callback(self._lockdown.close)

    async def close(self) -> None:
        """Release it."""
        await self._held.aclose()

    def describe(self) -> Device:
        """Read the device's facts about itself."""
        provider = self._lockdown or self._developer
        values = provider.all_values
        return Device(
            udid=self._place.udid,
            connection=self._place.connection,
            name=_text(values.get("DeviceName")),
            product=_text(provider.product_type),
            version=_text(provider.product_version),
        )

    def check_paired(self) -> None:
        """Fail as the library does where this computer is not trusted."""
        from pymobiledevice3.exceptions import NotPairedError

        if self._lockdown is not None and not self._lockdown.paired:
            raise NotPairedError

    # --- apps ---

    async def apps(self, bundle_ids: Collection[str] | None) -> tuple[InstalledApp, ...]:
        """List the installed apps of these ids; None for all."""
        from pymobiledevice3.services.installation_proxy import InstallationProxyService

        wanted = None if bundle_ids is None else list(bundle_ids)
        async with InstallationProxyService(self._ordinary) as proxy:
            found = await proxy.get_apps(bundle_identifiers=wanted)
        return tuple(_app(key, row) for key, row in found.items())

    async def running_pid(self, bundle_id: str) -> int | None:
        """Return the process id of an app; None if it is not running."""
        async with self._process_control() as control:
            pid: int = await control.process_identifier_for_bundle_identifier(bundle_id)
        return pid if pid > 0 else None

    async def launch(self, bundle_id: str, *, is_suspended: bool, ends_running: bool) -> int:
        """Start an app; its process."""
        async with self._process_control() as control:
            pid: int = await control.launch(
                bundle_id, kill_existing=ends_running, start_suspended=is_suspended
            )
        return pid

    async def resume(self, pid: int) -> None:
        """Let a process run that was launched suspended."""
        async with self._process_control() as control:
            await control.resume(pid)

    # --- services for developers ---

    async def debugserver(self) -> ServiceStream:
        """Connect to a debugserver without a process."""
        provider = await self._provider()
        stream: ServiceStream
        if provider is self._lockdown:
            stream = await provider.start_lockdown_service(_DEBUGSERVER)
        else:
            stream = await provider.start_lockdown_service_without_checkin(_DEBUGSERVER_BY_TUNNEL)
        return stream

    @asynccontextmanager
    async def _process_control(self) -> AsyncIterator[Any]:
        from pymobiledevice3.services.dvt.instruments.dvt_provider import DvtProvider
        from pymobiledevice3.services.dvt.instruments.process_control import ProcessControl

        async with (
            DvtProvider(await self._provider()) as instruments,
            ProcessControl(instruments) as control,
        ):
            yield control

    async def _provider(self) -> Any:  # noqa: ANN401 - the library's
        if self._developer is None:
            self._developer = await self._found_provider()
        return self._developer

    async def _found_provider(self) -> Any:  # noqa: ANN401 - the library's
        lockdown = self._lockdown
        if lockdown is not None and _major(lockdown.product_version) < _FIRST_WITH_TUNNELS:
            return lockdown
        if self._place.has_tunnel:
            from pymobiledevice3.tunneld.api import get_tunneld_device_by_udid

            with suppress(IndexError):  # the library's sign that no tunnel works
                found = await get_tunneld_device_by_udid(self._place.udid)
                if found is not None:
                    self._held.push_async_callback(found.close)
                    return found
        from pymobiledevice3.remote.userspace_tunnel import UserspaceRsdTunnel

        tunnel = UserspaceRsdTunnel(serial=self._place.udid, autopair=False)
        opened = await tunnel.aopen()
        self._held.push_async_callback(tunnel.aclose)
        return opened

    async def lacks(self) -> tuple[str, ...]:
        """Classes of the library for what services for developers need and the device lacks."""
        from pymobiledevice3.services.mobile_image_mounter import MobileImageMounterService

        provider, lacking = self._ordinary, []
        with suppress(Exception):
            if provider.has_developer_mode and not await provider.get_developer_mode_status():
                lacking.append("DeveloperModeIsNotEnabledError")
        with suppress(Exception):
            async with MobileImageMounterService(provider) as mounter:
                if not any([await mounter.is_image_mounted(kind) for kind in _IMAGES]):
                    lacking.append("NotMountedError")
        return tuple(lacking)

    # --- crash reports ---

    async def open_reports(self) -> None:
        """Have the device put its newest reports where they can be read."""
        from pymobiledevice3.services.crash_reports import CrashReportsManager

        manager = CrashReportsManager(self._ordinary)
        with suppress(Exception):  # what is there already can be read all the same
            await manager.flush()
        self._reports = manager.afc
        self._held.push_async_callback(manager.aclose)

    async def report_names(self, folder: str) -> list[str]:
        """List a folder of reports."""
        names: list[str] = await self._reports.listdir(folder)
        return names

    async def report_entry(self, path: str) -> DeviceFile | bool:
        """Return a file among the reports; else whether it is a folder, not a link to one."""
        facts = await self._reports.stat(path)
        if facts.get("st_ifmt") != "S_IFREG":
            return bool(facts.get("st_ifmt") == "S_IFDIR")
        return DeviceFile(
            path=path, size=int(facts["st_size"]), modified=facts["st_mtime"].timestamp()
        )

    async def open_report(self, path: str) -> int:
        """Open a handle of a report."""
        handle: int = await self._reports.fopen(path, "r")
        return handle

    async def read_report(self, handle: int, size: int) -> bytes:
        """Read the next bytes; none at the end."""
        data: bytes = await self._reports.fread(handle, size)
        return data

    async def close_report(self, handle: int) -> None:
        """Give a handle back."""
        await self._reports.fclose(handle)

    @property
    def _ordinary(self) -> Any:  # noqa: ANN401 - the library's
        """The provider of other than developer services."""
        return self._lockdown or self._developer


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else _FIRST_WITH_TUNNELS


def _app(bundle_id: str, row: dict[str, Any]) -> InstalledApp:
    entitlements = row.get("Entitlements")
    allowed = entitlements.get("get-task-allow") if isinstance(entitlements, dict) else None
    return InstalledApp(
        bundle_id=bundle_id,
        name=_text(row.get("CFBundleDisplayName") or row.get("CFBundleName")),
        version=_text(row.get("CFBundleShortVersionString") or row.get("CFBundleVersion")),
        path=_text(row.get("Path")),
        is_users=row.get("ApplicationType") == "User",
        is_debuggable=allowed is True,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
