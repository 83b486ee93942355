"""Requests to the script in the target and its replies, independent of the transport.

Memory of a process, through the script in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from machtrace.errors import MemoryReadError, RemoteProtocolError
from machtrace.model.address import Avma

REMEDY = "install the same version of Frida on both sides, and check whether the program interferes"
_MAX_LENGTH = 120


class Part(NamedTuple):
    """Bytes that came before an answer."""

    name: str
    data: bytes


class Answer(NamedTuple):
    """To one request."""

    value: object
    """Made from JSON; nothing of it has been checked."""
    parts: tuple[Part, ...] = ()


class FridaAgent(Protocol):
    """The script that runs in a target; ``agent.js`` has its requests."""

    def ask(self, call: str, *arguments: object) -> Answer:
        """Send one request and return the reply.

        Raises:
            TargetGoneError: the process has ended.
            ConnectionLostError: nothing came in time, or the connection broke.
            RemoteProtocolError: it failed, or what came is no answer.
        """
        ...

    def close(self) -> None:
        """Unload it, and detach; calling it twice does nothing more. Raises nothing."""
        ...


class Fields:
    """A JSON object of an answer, of which each field is checked when it is taken."""

    __slots__ = ("_asked", "_values")

    def __init__(self, value: object, asked: str) -> None:
        """Take ``value``, which answers the request ``asked``.

        Raises:
            RemoteProtocolError: it is no object; so of every method where it is another type.
        """
        if not isinstance(value, Mapping):
            raise wrong("no object", asked, value)
        self._values: Mapping[object, object] = value
        self._asked = asked

    def has(self, name: str) -> bool:
        """Whether there is such a field."""
        return name in self._values

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise wrong(f"no text {name!r}", self._asked, value)
        return value

    def flag(self, name: str) -> bool:
        """Whether something is so."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise wrong(f"no flag {name!r}", self._asked, value)
        return value

    def number(self, name: str, most: int) -> int:
        """Return an integer from 0 to ``most``."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise wrong(f"no number {name!r}", self._asked, value)
        return value

    def address(self, name: str) -> int:
        """Return an address, sent as hexadecimal text."""
        text = self.text(name)
        digits = text.removeprefix("0x")
        if not 0 < len(digits) <= 16 or not set(digits) <= set("0123456789abcdefABCDEF"):  # noqa: PLR2004 (digits)
            raise wrong(f"no address {name!r}", self._asked, text)
        return int(digits, 16)

    def rows(self, name: str, most: int) -> list[Fields]:
        """Return at most ``most`` objects."""
        value = self._values.get(name)
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > most:
            raise wrong(f"no list {name!r}", self._asked, value)
        return [Fields(one, self._asked) for one in value]


def wrong(message: str, asked: str, came: object) -> RemoteProtocolError:
    """Return the error for an invalid reply."""
    return RemoteProtocolError(
        f"the script in the process returned {message}",
        request=asked,
        reply=repr(came)[:_MAX_LENGTH],
        remedy=REMEDY,
    )


_MAX_BYTES = 1 << 24
"""Bytes of one request."""
_MAX_RANGES = 1 << 12
_ADDRESSES = 1 << 64


class FridaMemory:
    """The memory of a process; it runs meanwhile, so data that changes may be inconsistent."""

    def __init__(self, agent: FridaAgent) -> None:
        self._agent = agent

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`.

        Raises:
            ConnectionLostError, RemoteProtocolError: the request failed.
        """
        data = self.read_many([(address, size)])[0] if size > 0 else b""
        if len(data) != size:
            raise MemoryReadError(address, size)
        return data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See :meth:`~machtrace.targets.shared.paged_memory.MemoryOfRanges.read_many`."""
        parts = [bytearray() for _ in ranges]
        group: list[tuple[int, int, int]] = []
        size_of_group = 0
        for index, (address, size) in enumerate(ranges):
            end = min(address + size, _ADDRESSES)
            while address < end:
                step = min(end - address, _MAX_BYTES - size_of_group)
                group.append((index, address, step))
                address += step  # noqa: PLW2901 (what is left of the range)
                size_of_group += step
                if size_of_group == _MAX_BYTES or len(group) == _MAX_RANGES:
                    self._read_group(group, parts, ranges)
                    group, size_of_group = [], 0
        if group:
            self._read_group(group, parts, ranges)
        return [bytes(data) for data in parts]

    def _read_group(
        self,
        group: Sequence[tuple[int, int, int]],
        results: Sequence[bytearray],
        ranges: Sequence[tuple[int, int]],
    ) -> None:
        value, parts = self._agent.ask("read", [[f"{a:#x}", size] for _, a, size in group])
        sizes = value if isinstance(value, list) else []
        data = b"".join(part.data for part in parts if part.name == "memory")
        fits = len(sizes) == len(group) and all(
            isinstance(got, int) and 0 <= got <= size
            for got, (_, _, size) in zip(sizes, group, strict=True)
        )
        if not fits or sum(sizes) != len(data):
            raise wrong("memory of other sizes", "read", value)
        at = 0
        for got, (index, address, _) in zip(sizes, group, strict=True):
            # Data behind a gap is dropped.
            if address == ranges[index][0] + len(results[index]):
                results[index] += data[at : at + got]
            at += got
