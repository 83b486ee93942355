"""The words that name a process of an iOS device: ``device://UDID/bundle-id``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from machtrace.errors import TargetSpecError
from machtrace.targets.gdbremote.spec import DEFAULT_TIMEOUT, parse_options

DEVICE = "device://"

_PLACE = re.compile(r"([0-9A-Za-z-]{0,64})/([0-9A-Za-z._-]{1,255})/?")
_LARGEST_PID = (1 << 31) - 1
_REMEDY = (
    "give device://UDID/bundle-id or device://UDID/PID, without the UDID for the only device; "
    "machtrace device list shows UDIDs, machtrace device apps bundle ids"
)


class Launch(StrEnum):
    """Whether an app is started to be looked at."""

    IF_NEEDED = "if-needed"
    """Attached to where it runs, else started."""
    ALWAYS = "always"
    """Started anew; one that runs is ended by the device."""
    NEVER = "never"
    """Attached to, or an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """Which process of which device, and what to do there."""

    udid: str | None = None
    """None for the only device there is."""
    bundle_id: str | None = None
    """Of the app; None where there is a process id."""
    pid: int | None = None
    launch: Launch = Launch.IF_NEEDED
    runs_to_stop: bool = False
    """Whether the process is to run until it stops by itself, before anything is copied."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that debugserver may take for one answer."""


def parse_device_spec(text: str) -> DeviceSpec:
    """What ``text``, which begins with ``device://``, names.

    ``?launch=if-needed``, ``always`` or ``never`` says whether the app is started;
    ``?until=stop`` and ``?timeout=SECONDS`` are those of ``gdb://``.

    Raises:
        TargetSpecError: it names no process of a device.
    """

    def wrong(reason: str) -> TargetSpecError:
        return TargetSpecError(
            f"{text!r} names no process of a device: {reason}",
            remedy=_REMEDY,
        )

    place, _, query = text.removeprefix(DEVICE).partition("?")
    timeout, runs, others = parse_options(query, wrong, {"launch": tuple(Launch)})
    found = _PLACE.fullmatch(place)
    if found is None:
        raise wrong("no UDID, slash and bundle id")
    udid, what = found[1] or None, found[2]
    launch = Launch(others.get("launch", Launch.IF_NEEDED))
    if not what.isdecimal():
        return DeviceSpec(
            udid=udid, bundle_id=what, launch=launch, runs_to_stop=runs, timeout=timeout
        )
    if not 0 < int(what) <= _LARGEST_PID:
        raise wrong(f"no process id {what}")
    if "launch" in others:
        raise wrong("a process id is of what runs already, and cannot be launched")
    return DeviceSpec(udid=udid, pid=int(what), runs_to_stop=runs, timeout=timeout)
