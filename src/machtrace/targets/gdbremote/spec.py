"""Target specs of gdb-remote stubs: ``gdb://host:port`` and similar."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote

from machtrace.errors import TargetSpecError
from machtrace.frozen import dataclass

GDB = "gdb://"

DEFAULT_TIMEOUT = 10.0
"""Seconds that a stub may take for one answer."""

_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\[\]:/?]*)):([0-9]{1,5})(?:/([0-9]{1,10})?)?")
_MAX_PORT = 65535
_OPTIONS = frozenset({"timeout", "until"})
_REMEDY = (
    "give gdb://host:port, gdb://[address]:port or gdb:///path/of/a/socket; "
    "gdb://host:port/PID attaches to a process"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSpec:
    """Where a stub is, and what to do there."""

    host: str = ""
    port: int = 0
    path: str | None = None
    """The path of a Unix socket; then the host is empty."""
    given: str = ""
    """The name of the peer of a connection that was opened by the caller, who alone can
    make another; empty for a place to connect to."""
    pid: int | None = None
    """The process to attach to; None for the stub's own."""
    runs_to_stop: bool = False
    """Whether the process is to run until it stops by itself, before anything is copied."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds for one answer."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        if self.given or self.path is not None:
            return self.given or self.path or ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_spec(text: str) -> RemoteSpec:
    """Parse ``text``, which begins with ``gdb://``.

    ``?timeout=SECONDS`` sets how long one answer may take; ``?until=stop`` lets the process run
    first, until a signal or a breakpoint instruction stops it.

    Raises:
        TargetSpecError: it names no stub.
    """
    place, _, query = text.removeprefix(GDB).partition("?")
    timeout, runs, _ = parse_options(query, lambda reason: _wrong(text, reason))
    if place.startswith("/"):
        path = unquote(place)
        if "\0" in path:
            raise _wrong(text, "the path contains a null byte")
        return RemoteSpec(path=path, runs_to_stop=runs, timeout=timeout)
    match = _PLACE.fullmatch(place)
    if match is None:
        raise _wrong(text, "host and port are missing")
    port = int(match[3])
    if not 0 < port <= _MAX_PORT:
        raise _wrong(text, f"invalid port {port}")
    return RemoteSpec(
        host=match[1] or match[2] or "127.0.0.1",
        port=port,
        pid=int(match[4]) if match[4] else None,
        runs_to_stop=runs,
        timeout=timeout,
    )


class Options(NamedTuple):
    """The options after the question mark."""

    timeout: float
    runs_to_stop: bool
    others: dict[str, str]
    """Options for the caller to interpret."""


def parse_options(
    query: str,
    wrong: Callable[[str], TargetSpecError],
    others: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Options:
    """``name=value&name=value``.

    Args:
        query: without the question mark; empty for no options.
        wrong: makes the error of a reason.
        others: more options than every stub takes, with their values.

    Raises:
        TargetSpecError: an option is not known, or cannot have the value.
    """
    words = [word.partition("=") for word in query.split("&") if word]
    options = {name: value for name, _, value in words}
    unknown = options.keys() - _OPTIONS - others.keys()
    if unknown:
        raise wrong(f"no option {min(unknown)!r}")
    for name, values in ({"until": ("stop",)} | dict(others)).items():
        if name in options and options[name] not in values:
            raise wrong(f"{name} can only be {' or '.join(values)}")
    timeout = options.get("timeout", str(DEFAULT_TIMEOUT))
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", timeout) or not float(timeout):
        raise wrong(f"{timeout!r} is no number of seconds")
    rest = {name: options[name] for name in others if name in options}
    return Options(float(timeout), "until" in options, rest)


def _wrong(text: str, reason: str) -> TargetSpecError:
    return TargetSpecError(f"invalid gdb:// target {text!r}: {reason}", remedy=_REMEDY)
