"""debugserver's profile packets: processor time and memory of a process while it runs.

After ``QSetEnableAsyncProfiling`` debugserver sends packets that begin with ``A`` while the process
runs. A profile is text, ``name:value;`` each, that ends with ``--end--;`` and may be cut into
several packets at any byte. Numbers are decimal, ids of threads hexadecimal, names of threads text
in hex. Sources: lldb's debugserver, ``MachTask::GetProfileData`` and
``RNBRemote::SendAsyncProfileData``; lldb's ``docs/resources/lldbgdbremote.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from machtrace.errors import RemoteProtocolError
from machtrace.targets.gdbremote.replies import hex_text, shortened

_REQUEST = b"QSetEnableAsyncProfiling"
_SCAN = 0x814E
"""``DNBProfileDataScanType``: time of the process and of its threads, their names, memory,
anonymous memory and its limit."""
_END = b"--end--;"
_MOST_BYTES = 1 << 20
_MOST_THREADS = 1 << 14
_DECIMAL = re.compile(r"[0-9]{1,20}")
_HEX = re.compile(r"[0-9a-fA-F]{1,16}")
_LARGEST = 1 << 62
_LARGEST_LIMIT_MIB = 1 << 20
_MIB = 20


def profile_request(interval_us: int, *, is_enabled: bool = True) -> bytes:
    """Return the request for profiles at an interval, or for their end."""
    return b"%s;enable:%d;interval_usec:%d;scan_type:0x%x;" % (
        _REQUEST,
        is_enabled,
        interval_us,
        _SCAN,
    )


class ProfiledThread(NamedTuple):
    """A thread in a profile."""

    used_us: int
    """The processor time that it has used, in microseconds."""
    name: str | None = None


class ProcessProfile(NamedTuple):
    """A process at one time."""

    threads: Mapping[int, ProfiledThread]
    """By the system's id."""
    ended_us: int = 0
    """The processor time of threads that have exited."""
    footprint: int | None = None
    """Bytes of memory as the system counts them against the limit (``phys_footprint``)."""
    anonymous: int | None = None
    """Bytes of anonymous memory."""
    limit: int | None = None
    """Bytes that the process may use; None without a limit."""

    @property
    def used_us(self) -> int:
        """The processor time of all threads, also those that have exited."""
        return self.ended_us + sum(thread.used_us for thread in self.threads.values())


class ProfileStream:
    """Joins the parts of profiles."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, packet: bytes) -> ProcessProfile | None:
        """Take a packet that begins with ``A``; return the profile that it completes, if any.

        Raises:
            RemoteProtocolError: what has come is no profile. The next packet begins another one.
        """
        self._held += packet[1:]
        data = bytes(self._held)
        if not data.endswith(_END):
            if len(data) > _MOST_BYTES:
                self._held.clear()
                raise _wrong("a profile that does not end", data)
            return None
        self._held.clear()
        return parse_profile(data)


def parse_profile(data: bytes) -> ProcessProfile:
    """Parse a whole profile; names that are not known here are skipped.

    Raises:
        RemoteProtocolError: it is none.
    """
    if not data.endswith(_END):
        raise _wrong("a profile without an end", data)
    # A profile whose end was lost with the connection's first packets precedes the last one.
    text = data[: -len(_END)].rpartition(_END)[2].decode("ascii", "replace")
    threads: dict[int, ProfiledThread] = {}
    numbers: dict[str, int] = {}
    thread: int | None = None
    for word in text.split(";"):
        name, colon, value = word.partition(":")
        if not colon:
            if word:
                raise _wrong("a word without a value in a profile", data)
            continue
        if name == "thread_used_id":
            thread = _number(value, _HEX, 16, data)
            if len(threads) >= _MOST_THREADS:
                raise _wrong("a profile with too many threads", data)
        elif name == "thread_used_usec" and thread is not None:
            threads[thread] = ProfiledThread(_number(value, _DECIMAL, 10, data))
        elif name == "thread_used_name" and thread in threads:
            threads[thread] = threads[thread]._replace(name=hex_text(value) or None)
        elif name in _NUMBERS:
            numbers[name] = _number(value, _DECIMAL, 10, data)
    limit = numbers.get("mem_cap", 0)
    return ProcessProfile(
        threads,
        numbers.get("task_used_usec", 0),
        numbers.get("phys_footprint"),
        numbers.get("anonymous"),
        # In MiB; without a limit it is 0, or -1 as an unsigned number.
        limit << _MIB if 0 < limit < _LARGEST_LIMIT_MIB else None,
    )


_NUMBERS = frozenset({"task_used_usec", "phys_footprint", "anonymous", "mem_cap"})


def _number(value: str, form: re.Pattern[str], base: int, data: bytes) -> int:
    if not form.fullmatch(value):
        raise _wrong(f"{value[:40]!r} is no number in a profile", data)
    number = int(value, base)
    return number if number < _LARGEST else 0


def _wrong(fact: str, data: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(fact, request=_REQUEST.decode(), reply=shortened(data))
