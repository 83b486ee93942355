"""Target specs for processes reached by Frida: ``frida://local/PID`` and similar."""

from __future__ import annotations

import re
from enum import Enum
from urllib.parse import unquote

from machtrace.errors import TargetSpecError
from machtrace.frozen import dataclass

FRIDA = "frida://"

DEFAULT_TIMEOUT = 20.0
"""Seconds that Frida may take for one thing: to connect, to attach, to copy all threads."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\[\]:@]+)(?::([0-9]{1,5}))?")
_MAX_PORT = 65535
_MAX_ID = (1 << 31) - 1
_REMEDY = (
    "give frida://local/PID, frida://usb/NAME, frida://usb:DEVICE-ID/NAME or "
    "frida://host:port/NAME, where a process is named by its id, its name or its bundle identifier"
)


class Reach(Enum):
    """Where the process runs, as Frida sees it."""

    LOCAL = "local"
    USB = "usb"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class FridaSpec:
    """A device, and a process of it."""

    reach: Reach
    address: str = ""
    """A frida-server's ``host:port``, or the id of a USB device, empty for the only one."""
    pid: int | None = None
    name: str = ""
    """The process's name or the application's identifier; empty if a process id is given."""
    token: str | None = None
    """The token that a frida-server requires."""
    timeout: float = DEFAULT_TIMEOUT

    @property
    def place(self) -> str:
        """The device, for messages."""
        if self.reach is Reach.LOCAL:
            return "this machine"
        if self.reach is Reach.USB:
            return f"the USB device {self.address}".rstrip()
        return f"the frida-server at {self.address}"

    @property
    def process(self) -> str:
        """The process, for messages."""
        return f"process {self.pid}" if self.pid is not None else repr(self.name)


def parse_spec(text: str) -> FridaSpec:
    """Parse ``text``, which begins with ``frida://``.

    ``?timeout=SECONDS`` sets how long one thing may take; ``?token=WORDS`` is what a frida-server
    requires. Both, and names, may be percent-encoded.

    Raises:
        TargetSpecError: it names no process.
    """
    place, _, query = text.removeprefix(FRIDA).partition("?")
    device, slash, process = place.partition("/")
    if not device:
        raise _wrong(text, "the device is missing")
    process = unquote(process)
    if not slash or not process.strip():
        raise _wrong(text, "the process is missing")
    if "\0" in process or "\n" in process:
        raise _wrong(text, "the name contains a null byte or a line break")
    reach, address = _device(text, device)
    options = _options(text, query)
    is_id = process.isascii() and process.isdigit()
    if is_id and not 0 < int(process[:20]) <= _MAX_ID:
        raise _wrong(text, f"invalid process id {process[:20]}")
    return FridaSpec(
        reach=reach,
        address=address,
        pid=int(process) if is_id else None,
        name="" if is_id else process,
        token=options.get("token"),
        timeout=_seconds(text, options.get("timeout", str(DEFAULT_TIMEOUT))),
    )


def _device(text: str, device: str) -> tuple[Reach, str]:
    if device == Reach.LOCAL.value:
        return Reach.LOCAL, ""
    kind, colon, identifier = device.partition(":")
    if kind == Reach.USB.value:
        if colon and not identifier:
            raise _wrong(text, "the device id is missing")
        return Reach.USB, unquote(identifier)
    match = _ADDRESS.fullmatch(device)
    if match is None:
        raise _wrong(text, "host and port are missing")
    if match[2] is not None and not 0 < int(match[2]) <= _MAX_PORT:
        raise _wrong(text, f"invalid port {match[2]}")
    return Reach.REMOTE, device


def _options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if name not in ("timeout", "token") or not value:
            raise _wrong(text, f"unknown option {option!r}")
        options[name] = unquote(value)
    return options


def _seconds(text: str, words: str) -> float:
    longest = 3600.0
    try:
        seconds = float(words)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= longest:
        raise _wrong(text, f"invalid time limit {words!r}")
    return seconds


def _wrong(text: str, reason: str) -> TargetSpecError:
    return TargetSpecError(f"invalid frida:// target {text!r}: {reason}", remedy=_REMEDY)
