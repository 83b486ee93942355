"""The exceptions of pymobiledevice3 that are met here, by name and derivation."""

from __future__ import annotations

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
