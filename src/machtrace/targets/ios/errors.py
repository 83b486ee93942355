"""What a failure of the device library means to people: from the names of its classes.

By name, so that nothing here needs the library. The first class of an exception's ancestry that is
known says what to do. Source: pymobiledevice3's ``exceptions.py``; which of lockdown's answers
stand behind them, its ``lockdown.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import ConnectionLostError, DeviceError, MachtraceError

_TUNNEL = (
    "services for developers need a tunnel since iOS 17: connect by USB, which is enough from 17.4 "
    "on; or keep one open with: sudo pymobiledevice3 remote tunneld (it makes a network interface, "
    "which only an administrator may)"
)
_PAIR = "run: pymobiledevice3 lockdown pair, with the device unlocked, and tap Trust on it"
_UNLOCK = "unlock the device with its passcode, and keep it unlocked"
_USBMUXD = (
    "connect the device by USB, and see that usbmuxd runs: on Linux the package usbmuxd, on "
    "Windows Apple Devices or iTunes"
)
_DEVELOPER_MODE = (
    "turn it on at Settings, Privacy & Security, Developer Mode; or run: pymobiledevice3 amfi "
    "enable-developer-mode"
)
_MOUNT = "run: pymobiledevice3 mounter auto-mount"
REFUSED = f"unlock the device; if that is not it, {_MOUNT}"
"""What to do where a device refuses a service for developers, and it cannot be told why."""
_SEEN = "see that the cable holds and the device is on: machtrace device list shows those there are"

REMEDIES = {
    "AccessDeniedError": "run it again as an administrator, with sudo",
    "AppNotInstalledError": "see machtrace device apps for those that are",
    "BadDevError": _SEEN,
    "ConnectionFailedToUsbmuxdError": _USBMUXD,
    "ConnectionFailedError": _SEEN,
    "DeveloperModeIsNotEnabledError": _DEVELOPER_MODE,
    "DeviceAlreadyInUseError": "let the other computer give the device back",
    "DeviceNotFoundError": _SEEN,
    "DeviceVersionNotSupportedError": "use a device with a newer system",
    "FatalPairingError": _PAIR,
    "IncorrectModeError": "restart the device: it is not in its normal mode",
    "InvalidHostIDError": _PAIR,
    "InvalidServiceError": "unlock the device; else its system has no such service",
    "MCProtectedError": "remove the configuration profile, or ask who manages the device",
    "MuxException": _USBMUXD,
    "NoDeviceConnectedError": "connect a device by USB, unlock it and trust this computer",
    "NotMountedError": _MOUNT,
    "NotPairedError": _PAIR,
    "NotTrustedError": _PAIR,
    "PairingDialogResponsePendingError": "tap Trust on the device, and try again",
    "PasscodeRequiredError": _UNLOCK,
    "PasswordRequiredError": _UNLOCK,
    "PairingError": _PAIR,
    "ProcessInspectionError": "give an app that is signed for development (get-task-allow)",
    "PskCipherNotSupportedError": "use Python 3.13 or later, or a tunnel of tunneld",
    "RSDRequiredError": _TUNNEL,
    "RemoteXPCHandshakeTimeoutError": "restart the device",
    "SessionActiveError": "try again",
    "StartServiceError": "unlock the device, and try again",
    "TunneldConnectionError": _TUNNEL,
    "UserDeniedPairingError": "unplug the device, connect it again and tap Trust on it",
    "UserspaceTunnelUnavailableError": _TUNNEL,
}
"""By class of the library: what to do."""

_LOST = frozenset({"ConnectionTerminatedError", "StreamClosedError", "ChannelClosedError"})
_UNKNOWN = "see whether pymobiledevice3 itself can do it, and update it"


_NEEDS = {
    "DeveloperModeIsNotEnabledError": "developer mode is off",
    "NotMountedError": "no disk image for developers is mounted",
}
_LONGEST = 400


def names_of(error: BaseException) -> list[str]:
    """The names of its class and of those that this is derived from, the narrowest first."""
    return [kind.__name__ for kind in type(error).__mro__]


def needs_of(lacking: Sequence[str], doing: str, udid: str) -> DeviceError:
    """What a device lacks for services for developers.

    Args:
        lacking: classes of the library, one at least: developer mode, the disk image.
        doing: what was tried, as in "cannot ... device".
        udid: which device.
    """
    what = ", and ".join(_NEEDS[name] for name in lacking)
    return DeviceError(
        f"cannot {doing} device {udid}: {what}",
        udid=udid,
        remedy="; then ".join(REMEDIES[name] for name in lacking),
    )


def device_error(error: BaseException, doing: str, udid: str | None) -> MachtraceError:
    """What ``error``, which came while ``doing``, is to the callers of this package.

    Args:
        error: of the library, of the system, or of a time limit.
        doing: what was tried, as in "cannot ... device".
        udid: which device; None where none was chosen yet.
    """
    if isinstance(error, MachtraceError):
        return error
    words = " ".join(str(error).split()).rstrip(".")[:_LONGEST]
    names = names_of(error)
    to = "" if udid is None else f" device {udid}"
    if not _LOST.isdisjoint(names) or (isinstance(error, OSError | EOFError) and _is_plain(error)):
        return ConnectionLostError(
            f"the connection broke: cannot {doing}{to}" + (f" ({words})" if words else ""),
            remedy=_SEEN,
        )
    if isinstance(error, TimeoutError):
        words = words or "it does not answer"
    remedy = next((REMEDIES[name] for name in names if name in REMEDIES), _UNKNOWN)
    told = f"cannot {doing}{to}: {words or type(error).__name__}"
    return DeviceError(told, udid=udid, remedy=remedy)


def _is_plain(error: BaseException) -> bool:
    """Whether it is the system's own, and not one that the library made of an answer."""
    return type(error).__module__ in ("builtins", "asyncio.exceptions", "ssl") and not isinstance(
        error, TimeoutError
    )
