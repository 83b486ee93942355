"""Stubs' replies in plain text, parsed: functions of a reply's bytes.

Sources: *Debugging with GDB*, sections "Packets", "Stop Reply Packets" and "General Query
Packets"; lldb's ``docs/resources/lldbgdbremote.md`` for ``qHostInfo``, ``qProcessInfo`` and
``qMemoryRegionInfo``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from machtrace.errors import RemoteProtocolError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion

_MAX_CODES = 8
_ERROR = re.compile(rb"E([0-9a-fA-F]{2})(?:;.*)?|E\..*", re.DOTALL)
_THREAD = re.compile(r"(?:p(-?[0-9a-fA-F]{1,16})\.)?(-?[0-9a-fA-F]{1,16})")
_STOP = re.compile(rb"([TS])([0-9a-fA-F]{2})(.*)", re.DOTALL)
_GONE = re.compile(rb"[WX]([0-9a-fA-F]{1,2})")
_REGION_RANGE = re.compile(r"[0-9a-fA-F]{1,16}")
_EXCEPTION_CODE = re.compile(rb"(?:^|;)medata:([0-9a-fA-F]{1,16})(?=;|$)")
_MEMORY = re.compile(rb"(?:^|;)memory:(?:0x)?([0-9a-fA-F]{1,16})=([0-9a-fA-F]{2,4096})(?=;|$)")
_SHOWN = 80
_SHOWN_WORDS = 400
_ADDRESSES = 1 << 64
_MAX_THREADS = 1 << 16


def shortened(data: bytes) -> str:
    """``data`` for people: the beginning, and how much there is."""
    if len(data) <= _SHOWN:
        return repr(data)[1:]
    return f"{data[:_SHOWN]!r}…"[1:] + f" ({len(data)} bytes)"


def refused(message: str, asked: bytes, came: bytes) -> RemoteProtocolError:
    """Return the error for an invalid or negative reply, in the stub's words if it has any."""
    words = " ".join(error_words(came).split())[:_SHOWN_WORDS]
    text = f"{message} ({words})" if words else message
    return RemoteProtocolError(text, request=shortened(asked), reply=shortened(came))


def is_error(reply: bytes) -> bool:
    """Whether the reply is an error: ``E`` and two digits, or ``E.`` and words."""
    return _ERROR.fullmatch(reply) is not None


def error_words(reply: bytes) -> str:
    """Return an error's text: ``E08;`` and text in hex as lldb has it, or ``E.`` and text."""
    if not is_error(reply):
        return ""
    if reply.startswith(b"E."):
        return reply[2:].decode("utf-8", "replace")
    return hex_text(reply.partition(b";")[2].decode("ascii", "replace"))


class ThreadName(NamedTuple):
    """A thread as a stub calls it."""

    text: str
    """As it came, and as it is to be sent."""
    pid: int | None
    """None if the stub does not state it."""
    id: int


def parse_thread(text: str) -> ThreadName | None:
    """``p1f.2a`` or ``2a``; None for anything else, and for "all" and "any"."""
    match = _THREAD.fullmatch(text)
    if match is None:
        return None
    pid = None if match[1] is None else int(match[1], 16)
    number = int(match[2], 16)
    if number <= 0 or (pid is not None and pid <= 0):
        return None
    return ThreadName(text, pid, number)


def parse_thread_list(reply: bytes) -> tuple[ThreadName, ...]:
    """Parse the threads of a reply to ``qfThreadInfo``, ``m1,2,3``; none for ``l``.

    Raises:
        RemoteProtocolError: it is neither.
    """
    if reply == b"l":
        return ()
    asked = b"qfThreadInfo"
    if not reply.startswith(b"m"):
        raise refused("expected a list of threads", asked, reply)
    words = reply[1:].decode("ascii", "replace").split(",")
    threads = [parse_thread(word) for word in words[:_MAX_THREADS]]
    found = tuple(thread for thread in threads if thread is not None)
    if len(found) != len(words):
        raise refused("not all in a list of threads are threads", asked, reply)
    return found


def parse_pairs(reply: bytes) -> dict[str, str]:
    """``key:value;key:value;``; a word without a colon is a key without a value. Raises nothing."""
    pairs: dict[str, str] = {}
    for word in reply.decode("utf-8", "replace").split(";"):
        key, _, value = word.partition(":")
        if key:
            pairs.setdefault(key, value)
    return pairs


def hex_text(value: str) -> str:
    """Decode hexadecimal text; empty if it is not hex."""
    try:
        return bytes.fromhex(value).decode("utf-8", "surrogateescape")
    except ValueError:
        return ""


class MachException(NamedTuple):
    """A Mach exception that a stop is for."""

    kind: int
    """A constant of ``mach/exception_types.h``."""
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopReply:
    """``T`` or ``S``: the process is stopped, and the reason."""

    signal: int
    """As gdb numbers them, or the system itself; 0 for none."""
    thread: ThreadName | None
    details: Mapping[str, str] = field(default_factory=dict)
    """Its other fields, by name."""
    exception: MachException | None = None
    """None if the stub states none."""
    memory: tuple[MemoryRegion, ...] = ()
    """Frame records that the stub states, two with debugserver."""


@dataclass(frozen=True, slots=True)
class ProcessGone:
    """``W`` or ``X``: it exited, or was ended by a signal; or there never was one."""

    was_killed: bool
    code: int

    @property
    def how(self) -> str:
        """For people: by which signal, or with which status."""
        return f"by signal {self.code}" if self.was_killed else f"with status {self.code}"


def parse_stop(reply: bytes) -> StopReply | ProcessGone | None:
    """Parse a reply to ``?``; None if it is not one."""
    gone = _GONE.match(reply)
    if gone is not None:
        return ProcessGone(was_killed=reply.startswith(b"X"), code=int(gone[1], 16))
    match = _STOP.fullmatch(reply)
    if match is None:
        return None
    pairs = parse_pairs(match[3]) if match[1] == b"T" else {}
    return StopReply(
        int(match[2], 16),
        parse_thread(pairs.get("thread", "")),
        pairs,
        _parse_exception(pairs.get("metype", ""), match[3]),
        tuple(
            MemoryRegion(Avma(int(at, 16)), bytes.fromhex(text.decode()))
            for at, text in _MEMORY.findall(match[3])
            if len(text) % 2 == 0
        ),
    )


def _parse_exception(kind: str, fields: bytes) -> MachException | None:
    """Parse ``metype:1;mecount:2;medata:1;medata:10;``, all in hex; None without ``metype``."""
    if not _REGION_RANGE.fullmatch(kind):
        return None
    codes = _EXCEPTION_CODE.findall(fields)[:_MAX_CODES]
    return MachException(int(kind, 16), tuple(int(code, 16) for code in codes))


def parse_supported(reply: bytes) -> dict[str, str]:
    """Parse a reply to ``qSupported``: values by feature, ``+``, ``-`` and ``?`` among them."""
    features: dict[str, str] = {}
    for word in reply.decode("ascii", "replace").split(";"):
        name, equals, value = word.partition("=")
        if equals:
            features[name] = value
        elif word[-1:] in ("+", "-", "?"):
            features[word[:-1]] = word[-1]
    return features


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRegion:
    """A range of pages, as ``qMemoryRegionInfo`` and memory maps have it."""

    start: Avma
    end: Avma
    permissions: str
    """Some of ``rwx``; empty where nothing is mapped."""
    name: str = ""
    """The mapped file's path, or the system's name of the region."""
    is_stack: bool = False
    """Whether the system marks it as a part of a thread's stack."""

    @property
    def is_readable(self) -> bool:
        """Whether its bytes can be read."""
        return "r" in self.permissions


def parse_region(reply: bytes) -> RemoteRegion | None:
    """Parse a reply to ``qMemoryRegionInfo``, in hex; None if it is not one."""
    pairs = parse_pairs(reply)
    start, size = pairs.get("start", ""), pairs.get("size", "")
    if not _REGION_RANGE.fullmatch(start) or not _REGION_RANGE.fullmatch(size):
        return None
    begin = int(start, 16)
    return RemoteRegion(
        start=Avma(begin),
        end=Avma(min(begin + int(size, 16), _ADDRESSES)),
        permissions=pairs.get("permissions", ""),
        name=hex_text(pairs.get("name", "")),
        is_stack="stack" in pairs.get("type", "").split(","),
    )


def parse_chunk(request: bytes, reply: bytes) -> tuple[bytes, bool] | None:
    """Parse a reply to ``qXfer:…:read``: its bytes, and whether more follow; None if empty.

    Raises:
        RemoteProtocolError: it is neither ``m`` nor ``l`` with bytes, or more follow nothing.
    """
    if not reply:
        return None
    kind, data = reply[:1], reply[1:]
    if kind == b"l":
        return data, False
    if kind != b"m" or not data:
        raise refused("no part of a document", request, reply)
    return data, True


def parse_file_result(reply: bytes) -> tuple[int, bytes] | None:
    """Parse a reply to ``vFile``: its result, in hex, and its data; None if it is not one.

    A negative result is an error.
    """
    found = re.match(rb"F(-?[0-9a-fA-F]{1,16})(?:[,;](.*))?", reply, re.DOTALL)
    if found is None:
        return None
    return int(found[1], 16), found[2] or b""
