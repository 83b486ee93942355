"""A stand-in for Frida's script in an arm64 Darwin process, which serves a snapshot.

It answers as ``frida_agent.js`` does. Its answers are written from that script and from the
kernel's headers, not recorded from a phone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, RegionMemory
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadSnapshot
from machtrace.targets.frida.agent import Answer, Part

_THREAD = Struct("<14Q512s")
_PAGE = 4096
_SIGNATURE = 0x25 << 55
"""Bits as pointer authentication leaves above an address."""
_OWN = 9999

Fault = Callable[[str, Answer], Answer]
"""From a request and its answer to what is answered instead."""


@dataclass(slots=True)
class SnapshotAgent:
    """Answers requests out of a snapshot; a :class:`~machtrace.targets.frida.agent.FridaAgent`."""

    snapshot: Snapshot
    fault: Fault | None = None
    signs: bool = False
    """Whether pc and sp are signed, as the kernel gives those of arm64e processes."""
    gone: frozenset[ThreadId] = frozenset()
    """Threads that end before they are copied."""
    requests: list[str] = field(default_factory=list)
    is_closed: bool = False

    def ask(self, call: str, *arguments: object) -> Answer:
        """See :meth:`~machtrace.targets.frida.agent.FridaAgent.ask`."""
        self.requests.append(call)
        answer: Answer = getattr(self, f"_{call}")(*arguments)
        return answer if self.fault is None else self.fault(call, answer)

    def close(self) -> None:
        """See :meth:`~machtrace.targets.frida.agent.FridaAgent.close`."""
        self.is_closed = True

    def _begin(self, _sources: object) -> Answer:
        process = self.snapshot.process
        return Answer(
            {
                "platform": "darwin",
                "arch": "arm64",
                "pid": process.pid or 1,
                "version": "17.25.2",
                "program": process.path,
                "signedOnly": False,
            }
        )

    def _images(self) -> list[dict[str, str]]:
        return [
            {"base": f"{image.load_address:#x}", "path": image.path}
            for image in self.snapshot.images
        ]

    def _facts(self) -> Answer:
        path = self.snapshot.process.path
        main = next((image for image in self.snapshot.images if image.path == path), None)
        base = 0 if main is None else main.load_address
        return Answer({"addressBits": 47, "main": f"{base:#x}", "images": self._images()})

    def _listed(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [
            {
                "id": thread.info.id,
                "name": thread.info.name or "",
                "queue": thread.info.queue or "",
                "isOwn": False,
                "isNew": False,
            }
            for thread in self.snapshot.threads
        ]
        own = {"id": _OWN, "name": "gum-js-loop", "queue": "", "isOwn": True, "isNew": False}
        return [*rows, own]

    def _threads(self) -> Answer:
        return Answer(self._listed())

    def _capture(self, options: dict[str, object]) -> Answer:
        wanted = options["ids"]
        limit = options["stackLimit"]
        mask = int(str(options["pointerMask"]), 16)
        parts: list[Part] = []
        for thread in self.snapshot.threads:
            if isinstance(wanted, list) and thread.info.id not in wanted:
                continue
            row, stacks = self._copied(thread, limit if isinstance(limit, int) else 0, mask)
            parts += [Part("threads", row), Part("stacks", stacks), Part("copied", b"")]
        value = {"threads": self._listed(), "error": 0, "images": self._images()}
        return Answer(value, tuple(parts))

    def _copied(self, thread: ThreadSnapshot, limit: int, mask: int) -> tuple[bytes, bytes]:
        number, registers = thread.info.id, thread.registers
        if number in self.gone:
            return _THREAD.pack(number, 1, *[0] * 12, b""), b""
        sign = _SIGNATURE if self.signs else 0
        words = [registers.get(one) or 0 for one in range(31)]
        state = Struct("<33Q2I").pack(*words, (registers.sp or 0) | sign, registers.pc | sign, 0, 0)
        start = thread.stack.start
        stack = bytes(thread.stack.data)[: limit + 128]
        contexts = self._contexts(stack, start, registers.get(22) or 0, mask)
        room = stack + bytes(-len(stack) % 16) + contexts
        places = (start, 0, len(stack), len(contexts), 0, len(room) - len(contexts))
        times = (1000, 2000, 5000)
        return _THREAD.pack(number, 0, 0, 0, *times, len(state), *places, state), room

    def _contexts(self, stack: bytes, start: int, register: int, mask: int) -> bytes:
        """Read contexts as ``copy_contexts`` of frida_darwin.c does."""
        contexts: dict[int, bytes] = {}
        skipped = -start % 8
        words = [
            int.from_bytes(stack[at : at + 8], "little") for at in range(skipped, len(stack) - 7, 8)
        ]
        heads = [register]
        heads += [words[place - 1] for place in range(1, len(words)) if words[place] >> 60 == 1]
        for head in heads:
            at = head & mask
            while at and at not in contexts:
                data = self._read_some(at, 16)
                if len(data) < 16:
                    break
                contexts[at] = data
                at = int.from_bytes(data[:8], "little") & mask
        return b"".join(at.to_bytes(8, "little") + data for at, data in contexts.items())

    def _read(self, ranges: list[list[object]]) -> Answer:
        found = [self._read_some(int(str(range_[0]), 16), int(str(range_[1]))) for range_ in ranges]
        return Answer([len(data) for data in found], (Part("memory", b"".join(found)),))

    def _read_some(self, address: int, size: int) -> bytes:
        """Up to the first page that cannot be read."""
        stacks = RegionMemory(thread.stack for thread in self.snapshot.threads)
        memory = LayeredMemory((stacks, self.snapshot.memory))
        data = bytearray()
        while len(data) < size:
            at = address + len(data)
            step = min(size - len(data), _PAGE - at % _PAGE)
            try:
                data += memory.read(Avma(at), step)
            except MemoryReadError:
                break
        return bytes(data)
