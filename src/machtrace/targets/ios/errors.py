"""Our errors for the device library's exceptions, by the names of their classes.

By name, so that nothing here needs the library. The first known class of an exception's ancestry
has the remedy. Sources: pymobiledevice3's ``exceptions.py``, and its ``lockdown.py`` for the
replies of lockdown behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import ConnectionLostError, DeviceError, MachtraceError

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
