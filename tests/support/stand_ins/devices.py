"""Devices that are made up: what is on them, what fails of them, what was asked of them.

No phone was recorded for this: what they say is what the library's documentation and source say
that devices do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.stand_ins.device_exceptions import EXCEPTIONS


@dataclass(slots=True, kw_only=True)
class MadeUpDevice:
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
    """Of this machine, where its debugserver is."""
    reports: Mapping[str, bytes | None] = field(default_factory=dict)
    """Contents by path, from the folder of reports; None for a link."""
    failures: dict[str, str] = field(default_factory=dict)
    """Which exception of the library a call of this name raises."""
    calls: list[str] = field(default_factory=list)
    """What was asked of it."""

    def note(self, call: str) -> None:
        """Keep that ``call`` was made; fail if it is to."""
        self.calls.append(call)
        if call in self.failures:
            raise EXCEPTIONS[self.failures[call]](f"made to fail: {call}")


@dataclass(slots=True, kw_only=True)
class MadeUpDevices:
    """All devices, and what of the host reaches them."""

    devices: list[MadeUpDevice] = field(default_factory=list)
    has_usbmuxd: bool = True
    has_tunneld: bool = False

    def find(self, udid: str | None) -> MadeUpDevice:
        """One of them."""
        return next(one for one in self.devices if udid in (None, one.udid))
