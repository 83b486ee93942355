"""The library's devices for callers that wait: each call in time, each failure one of ours."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from machtrace.errors import ConnectionLostError, DeviceError, MachtraceError, MissingExtraError
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.ios.access import EXTRA, Device, DeviceFile, InstalledApp
from machtrace.targets.ios.event_loop import DeviceLoop

if TYPE_CHECKING:
    from machtrace.targets.ios.pymobiledevice3 import LibraryDevice, Place

# --- Our errors for the device library's exceptions, by the names of their classes ---
#
# By name, so that nothing here needs the library. The first known class of an exception's ancestry
# has the remedy. Sources: pymobiledevice3's ``exceptions.py``, and its ``lockdown.py`` for the
# replies of lockdown behind them.

_TUNNEL = (
    "developer services need a tunnel since iOS 17: connect by USB, which suffices from 17.4 on, "
    "or open one with: sudo pymobiledevice3 remote tunneld (it creates a network interface, which "
    "takes an administrator)"
)
_PAIR = "run: pymobiledevice3 lockdown pair, with the device unlocked, and tap Trust on it"
_UNLOCK = "unlock the device with its passcode, and keep it unlocked"
_USBMUXD = (
    "connect the device by USB, and check that usbmuxd runs: on Linux the package usbmuxd, on "
    "Windows Apple Devices or iTunes"
)
_DEVELOPER_MODE = (
    "enable it in Settings, Privacy & Security, Developer Mode; or run: pymobiledevice3 amfi "
    "enable-developer-mode"
)
_MOUNT = "run: pymobiledevice3 mounter auto-mount"
REFUSED = f"unlock the device; if that does not help, {_MOUNT}"
"""Remedy if a device refuses a developer service for an unknown reason."""
_SEEN = "check the cable and that the device is on: machtrace device list shows connected devices"

REMEDIES = {
    "AccessDeniedError": "run it again as an administrator, with sudo",
    "AppNotInstalledError": "list the installed apps with machtrace device apps",
    "BadDevError": _SEEN,
    "ConnectionFailedToUsbmuxdError": _USBMUXD,
    "ConnectionFailedError": _SEEN,
    "DeveloperModeIsNotEnabledError": _DEVELOPER_MODE,
    "DeviceAlreadyInUseError": "disconnect the device from the other computer",
    "DeviceNotFoundError": _SEEN,
    "DeviceVersionNotSupportedError": "use a device with a newer system",
    "FatalPairingError": _PAIR,
    "IncorrectModeError": "restart the device: it is not in its normal mode",
    "InvalidHostIDError": _PAIR,
    "InvalidServiceError": "unlock the device; otherwise its system lacks the service",
    "MCProtectedError": "remove the configuration profile, or contact the device's administrator",
    "MuxException": _USBMUXD,
    "NoDeviceConnectedError": "connect a device by USB, unlock it and trust this computer",
    "NotMountedError": _MOUNT,
    "NotPairedError": _PAIR,
    "NotTrustedError": _PAIR,
    "PairingDialogResponsePendingError": "tap Trust on the device, and try again",
    "PasscodeRequiredError": _UNLOCK,
    "PasswordRequiredError": _UNLOCK,
    "PairingError": _PAIR,
    "ProcessInspectionError": "choose an app that is signed for development (get-task-allow)",
    "PskCipherNotSupportedError": "use Python 3.13 or later, or a tunnel by tunneld",
    "RSDRequiredError": _TUNNEL,
    "RemoteXPCHandshakeTimeoutError": "restart the device",
    "SessionActiveError": "try again",
    "StartServiceError": "unlock the device, and try again",
    "TunneldConnectionError": _TUNNEL,
    "UserDeniedPairingError": "unplug the device, connect it again and tap Trust on it",
    "UserspaceTunnelUnavailableError": _TUNNEL,
}
"""Remedy by the name of the library's class."""

_LOST = frozenset({"ConnectionTerminatedError", "StreamClosedError", "ChannelClosedError"})
_UNKNOWN = "check whether pymobiledevice3 itself can do it, and update it"


_NEEDS = {
    "DeveloperModeIsNotEnabledError": "developer mode is off",
    "NotMountedError": "no developer disk image is mounted",
}
_MESSAGE_MAX = 400


def names_of(error: BaseException) -> list[str]:
    """Return the names of the error's class and its bases, the narrowest first."""
    return [kind.__name__ for kind in type(error).__mro__]


def needs_of(lacking: Sequence[str], doing: str, udid: str) -> DeviceError:
    """Return the error for a device that is not prepared for developer services.

    Args:
        lacking: one or more of the library's classes: developer mode, the disk image.
        doing: the attempted action, as in "cannot ... device".
        udid: the device's.
    """
    needs = ", and ".join(_NEEDS[name] for name in lacking)
    return DeviceError(
        f"cannot {doing} device {udid}: {needs}",
        udid=udid,
        remedy="; then ".join(REMEDIES[name] for name in lacking),
    )


def device_error(error: BaseException, doing: str, udid: str | None) -> MachtraceError:
    """Return our error for an exception raised while ``doing``.

    Args:
        error: the library's, the system's, or a time limit's.
        doing: the attempted action, as in "cannot ... device".
        udid: the device's; None before one was chosen.
    """
    if isinstance(error, MachtraceError):
        return error
    words = " ".join(str(error).split()).rstrip(".")[:_MESSAGE_MAX]
    names = names_of(error)
    to = "" if udid is None else f" device {udid}"
    if not _LOST.isdisjoint(names) or (isinstance(error, OSError | EOFError) and _is_plain(error)):
        return ConnectionLostError(
            f"the connection broke: cannot {doing}{to}" + (f" ({words})" if words else ""),
            remedy=_SEEN,
        )
    if isinstance(error, TimeoutError):
        words = words or "it does not respond"
    remedy = next((REMEDIES[name] for name in names if name in REMEDIES), _UNKNOWN)
    message = f"cannot {doing}{to}: {words or type(error).__name__}"
    return DeviceError(message, udid=udid, remedy=remedy)


def _is_plain(error: BaseException) -> bool:
    """Whether the error is the system's, not one that the library derived from a reply."""
    return type(error).__module__ in ("builtins", "asyncio.exceptions", "ssl") and not isinstance(
        error, TimeoutError
    )


# --- The library's devices for callers that wait: each call in time, each failure one of ours ---

_Result = TypeVar("_Result")
_TIMEOUT = 30.0
"""Seconds that one call may take: the longest opens a tunnel."""
_CLOSING = 3.0
_MAX_DEPTH = 8
"""Folders in folders of reports."""
_MAX_FILES = 1 << 17
_PIECE = 1 << 20
_REFUSALS = frozenset({"InvalidServiceError", "StartServiceError"})
"""Classes of the library for services that a device does not have, or does not start."""


class LibraryAccess:
    """See :class:`~machtrace.targets.ios.access.DeviceAccess`.

    Raises:
        MissingExtraError: the library is not installed.
    """

    def __init__(self) -> None:
        try:
            import pymobiledevice3  # type: ignore[import-not-found, unused-ignore] # noqa: F401
        except ImportError as error:
            raise MissingExtraError("device://", extra=EXTRA) from error
        # Its failures come as errors; its log would mix with our output.
        logging.getLogger("pymobiledevice3").addHandler(logging.NullHandler())

    def devices(self) -> tuple[Device, ...]:
        """See :meth:`~machtrace.targets.ios.access.DeviceAccess.devices`."""
        loop = DeviceLoop()
        try:
            return _run(loop, _all_devices(), "look for devices", None)
        finally:
            loop.close()

    def open(self, udid: str | None, /) -> LibrarySession:
        """See :meth:`~machtrace.targets.ios.access.DeviceAccess.open`."""
        from machtrace.targets.ios.pymobiledevice3 import LibraryDevice, find_places

        loop = DeviceLoop()
        try:
            place = _chosen(_run(loop, find_places(), "look for devices", None), udid)
        except BaseException:
            loop.close()
            raise
        session = LibrarySession(loop, LibraryDevice(place), place.udid)
        try:
            session.connect()
        except BaseException:
            session.close()
            raise
        return session


class LibrarySession(ClosedWhenLeft):
    """See :class:`~machtrace.targets.ios.access.DeviceSession`."""

    def __init__(self, loop: DeviceLoop, device: LibraryDevice, udid: str) -> None:
        self._loop = loop
        self._library = device
        self._udid = udid
        self._device = Device(udid=udid, connection="")
        self._is_closed = False

    def connect(self) -> None:
        """Talk to the device.

        Raises:
            DeviceError, ConnectionLostError: it does not, or is not paired.
        """
        self._do(_connected(self._library), "connect to")
        self._device = self._library.describe()

    @property
    def device(self) -> Device:
        """Which one."""
        return self._device

    def apps(self, bundle_ids: Collection[str] | None = None, /) -> tuple[InstalledApp, ...]:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.apps`."""
        return self._do(self._library.apps(bundle_ids), "list the apps of")

    def running_pid(self, bundle_id: str, /) -> int | None:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.running_pid`."""
        return self._developer(
            self._library.running_pid(bundle_id), f"look for the process of {bundle_id} on"
        )

    def launch(self, bundle_id: str, /, *, is_suspended: bool, ends_running: bool) -> int:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.launch`."""
        work = self._library.launch(bundle_id, is_suspended=is_suspended, ends_running=ends_running)
        return self._developer(work, f"launch {bundle_id} on")

    def resume(self, pid: int, /) -> None:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.resume`."""
        self._developer(self._library.resume(pid), f"resume process {pid} of")

    def debugserver(self) -> socket.socket:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.debugserver`."""
        stream = self._developer(self._library.debugserver(), "start debugserver on")
        return self._loop.socket_to(stream)

    def report_files(self) -> Iterator[DeviceFile]:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.report_files`."""
        doing = "list the reports of"
        self._do(self._library.open_reports(), "open the reports of")
        folders: list[tuple[str, int]] = [("", 0)]
        count = 0
        while folders:
            folder, depth = folders.pop()
            for name in self._do(self._library.report_names(folder or "/"), doing):
                count += 1
                if count > _MAX_FILES:
                    raise DeviceError(
                        f"device {self._udid} lists reports without end", udid=self._udid
                    )
                path = f"{folder}/{name}"
                found = self._do(self._library.report_entry(path), doing)
                if isinstance(found, DeviceFile):
                    yield found
                elif found and depth < _MAX_DEPTH:
                    folders.append((path, depth + 1))

    def read_report(self, path: str, /) -> Iterator[bytes]:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.read_report`."""
        doing = f"read the report {path} of"
        handle = self._do(self._library.open_report(path), doing)
        try:
            while data := self._do(self._library.read_report(handle, _PIECE), doing):
                yield data
        finally:
            with suppress(Exception):
                self._loop.run(self._library.close_report(handle), _CLOSING)

    def close(self) -> None:
        """See :meth:`~machtrace.targets.ios.access.DeviceSession.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._loop.drain()
            with suppress(Exception):
                self._loop.run(self._library.close(), _CLOSING)
        finally:
            self._loop.close()

    # --- calls ---

    def _do(self, work: Coroutine[Any, Any, _Result], doing: str) -> _Result:
        return _run(self._loop, work, doing, self._udid)

    def _developer(self, work: Coroutine[Any, Any, _Result], doing: str) -> _Result:
        """Call a developer service; if the device has none, raise what it lacks for it."""
        try:
            return self._loop.run(work, _TIMEOUT)
        except Exception as error:
            failure = device_error(error, doing, self._udid)
            if not _REFUSALS.isdisjoint(names_of(error)):
                failure.remedy = REFUSED
                lacking: Sequence[str] = ()
                with suppress(Exception):
                    lacking = self._loop.run(self._library.lacks(), _TIMEOUT)
                if lacking:
                    failure = needs_of(lacking, doing, self._udid)
            raise failure from error


def _run(
    loop: DeviceLoop, work: Coroutine[Any, Any, _Result], doing: str, udid: str | None
) -> _Result:
    try:
        return loop.run(work, _TIMEOUT)
    except Exception as error:  # whatever a library of another's may raise
        raise device_error(error, doing, udid) from error


async def _connected(device: LibraryDevice) -> None:
    await device.connect()
    device.check_paired()


async def _all_devices() -> tuple[Device, ...]:
    from machtrace.targets.ios.pymobiledevice3 import find_places

    return tuple(await asyncio.gather(*map(_described, await find_places())))


async def _described(place: Place) -> Device:
    """Read a device's facts about itself, or why it has none."""
    from machtrace.targets.ios.pymobiledevice3 import LibraryDevice

    device = LibraryDevice(place)
    device_facts = Device(udid=place.udid, connection=place.connection)
    try:
        try:
            await device.connect()
            device_facts = device.describe()
            device.check_paired()
        finally:
            await device.close()
    except Exception as error:  # noqa: BLE001 - whatever a library of another's may raise
        from dataclasses import replace

        return replace(device_facts, problem=device_error(error, "use", place.udid))
    return device_facts


def _chosen(places: Sequence[Place], udid: str | None) -> Place:
    from machtrace.targets.ios.pymobiledevice3 import plain

    matching = [place for place in places if udid is None or plain(place.udid) == plain(udid)]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(place.udid for place in places) or "none"
    if matching:
        raise DeviceError(
            f"{len(matching)} devices are connected: {there}",
            udid=None,
            remedy="choose one: device://UDID/bundle-id",
        )
    if udid is not None and places:
        raise DeviceError(
            f"device {udid} is not connected; connected are: {there}",
            udid=udid,
            remedy="connect it by USB, or pass the UDID of one of these",
        )
    raise DeviceError("no device is connected", udid=udid)
