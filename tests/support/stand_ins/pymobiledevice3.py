"""The modules of pymobiledevice3 that are used here, for synthetic devices.

They have the library's names and parameters and none of its code; a test compares the two where
the library is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.support.stand_ins.devices import (
    EXCEPTIONS,
    CrashReports,
    Files,
    ImageMounter,
    InstallationProxy,
    Instruments,
    Lockdown,
    ProcessControl,
    Stream,
    SyntheticDevices,
    Tunnel,
)

PACKAGE = "pymobiledevice3"


@contextmanager
def installed(host: SyntheticDevices) -> Iterator[None]:
    """Import as if the library were installed, and had these devices."""
    made = library(host)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def library(host: SyntheticDevices) -> dict[str, ModuleType]:  # noqa: C901 - one a function
    """Return the library's modules by name, with the devices of ``host``."""

    @dataclass
    class MuxDevice:
        serial: str
        connection_type: str

    async def list_devices() -> list[MuxDevice]:
        if not host.has_usbmuxd:
            raise EXCEPTIONS["ConnectionFailedToUsbmuxdError"]
        return [
            MuxDevice(device.udid, device.connection)
            for device in host.devices
            if device.connection != "tunnel"
        ]

    async def create_using_usbmux(serial: str | None = None, *, autopair: bool = True) -> Lockdown:
        device = host.find(serial)
        device.note(f"create_using_usbmux {autopair=}")
        device.note("create_using_usbmux")
        return Lockdown(device)

    async def get_tunneld_tunnels() -> dict[str, Any]:
        if not host.has_tunneld:
            raise EXCEPTIONS["TunneldConnectionError"]
        return {device.udid: [] for device in host.devices if device.has_tunnel}

    async def get_tunneld_device_by_udid(udid: str) -> Tunnel | None:
        device = host.find(udid)
        device.note("get_tunneld_device_by_udid")
        return Tunnel(device) if device.has_tunnel else None

    class UserspaceRsdTunnel:
        def __init__(self, serial: str | None = None, *, autopair: bool = True) -> None:
            del autopair
            self._device = host.find(serial)

        async def aopen(self) -> Tunnel:
            self._device.note("aopen")
            if not self._device.allows_own_tunnel:
                raise EXCEPTIONS["UserspaceTunnelUnavailableError"]("no service for a tunnel")
            return Tunnel(self._device)

        async def aclose(self) -> None:
            self._device.calls.append("aclose tunnel")

    return _modules(
        {
            "exceptions": EXCEPTIONS,
            "usbmux": {"list_devices": list_devices, "MuxDevice": MuxDevice},
            "lockdown": {
                "create_using_usbmux": create_using_usbmux,
                "UsbmuxLockdownClient": Lockdown,
            },
            "service_connection": {"ServiceConnection": Stream},
            "tunneld": {},
            "tunneld.api": {
                "get_tunneld_tunnels": get_tunneld_tunnels,
                "get_tunneld_device_by_udid": get_tunneld_device_by_udid,
            },
            "remote": {},
            "remote.remote_service_discovery": {"RemoteServiceDiscoveryService": Tunnel},
            "remote.userspace_tunnel": {"UserspaceRsdTunnel": UserspaceRsdTunnel},
            "services": {},
            "services.afc": {"AfcService": Files},
            "services.crash_reports": {"CrashReportsManager": CrashReports},
            "services.dvt": {},
            "services.dvt.instruments": {},
            "services.dvt.instruments.dvt_provider": {"DvtProvider": Instruments},
            "services.dvt.instruments.process_control": {"ProcessControl": ProcessControl},
            "services.installation_proxy": {"InstallationProxyService": InstallationProxy},
            "services.mobile_image_mounter": {"MobileImageMounterService": ImageMounter},
        }
    )


def _modules(contents: Mapping[str, Mapping[str, object]]) -> dict[str, ModuleType]:
    made = {PACKAGE: ModuleType(PACKAGE)}
    for name, values in contents.items():
        module = ModuleType(f"{PACKAGE}.{name}")
        vars(module).update(values)
        made[module.__name__] = module
    for name, module in made.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(made[above], last, module)
        module.__path__ = []
    return made
