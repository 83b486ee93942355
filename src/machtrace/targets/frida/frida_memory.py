"""Memory of a process, through the script in it."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.targets.frida.agent import FridaAgent, wrong

_MOST_BYTES = 1 << 24
"""Of one request."""
_MOST_RANGES = 1 << 12
_ADDRESSES = 1 << 64


class FridaMemory:
    """What a process has in memory; it runs meanwhile, so what changes may be torn."""

    def __init__(self, agent: FridaAgent) -> None:
        self._agent = agent

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`.

        Raises:
            ConnectionLostError, RemoteProtocolError: it could not be asked for.
        """
        data = self.read_many([(address, size)])[0] if size > 0 else b""
        if len(data) != size:
            raise MemoryReadError(address, size)
        return data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See :meth:`~machtrace.targets.shared.paged_memory.MemoryOfRanges.read_many`."""
        kept = [bytearray() for _ in ranges]
        group: list[tuple[int, int, int]] = []
        size_of_group = 0
        for index, (address, size) in enumerate(ranges):
            end = min(address + size, _ADDRESSES)
            while address < end:
                step = min(end - address, _MOST_BYTES - size_of_group)
                group.append((index, address, step))
                address += step  # noqa: PLW2901 (what is left of the range)
                size_of_group += step
                if size_of_group == _MOST_BYTES or len(group) == _MOST_RANGES:
                    self._read_group(group, kept, ranges)
                    group, size_of_group = [], 0
        if group:
            self._read_group(group, kept, ranges)
        return [bytes(data) for data in kept]

    def _read_group(
        self,
        group: Sequence[tuple[int, int, int]],
        kept: Sequence[bytearray],
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
            # What lies behind a gap is not kept.
            if address == ranges[index][0] + len(kept[index]):
                kept[index] += data[at : at + got]
            at += got
