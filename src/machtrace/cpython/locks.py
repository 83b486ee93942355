"""Locks of Python in a process that runs: the interpreter lock, ``threading.RLock`` and ``Lock``.

``rlockobject`` and ``lockobject`` of ``Modules/_threadmodule.c`` lead to a semaphore, in whose word
a thread waits; the waiting thread's frames lead to the object. From 3.14 on a thread waits in an
entry of its own that has the lock's address (``Python/parking_lot.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from machtrace.cpython.threads import Gil, ThreadReader
from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.model.address import Avma

_RLOCK, _LOCK = b"_thread.RLock", b"_thread.lock"
_HEAD = 16
"""Bytes of ``PyObject``."""
_OBJECT = Struct("<5Q")
"""References, type, then of an ``RLock`` its semaphore, owner and count."""
_SELF_OFFSET = 24
"""``PyCFunctionObject.m_self``, ``PyMethodObject.im_self``."""
_PARKED_SINCE = 14
_ENTRY_OFFSET = 8
"""Bytes from ``wait_entry.addr`` to its semaphore."""
_EXAMINED_FRAMES = 4
_FRAME_SIZES = (1024, 256, 64)
"""Bytes of locals and stack that are examined, as far as they are readable."""
_LOWEST, _ALIGNMENT, _TAGS = 1 << 12, 8, 3


class PythonLock(NamedTuple):
    """A lock that a thread waits for."""

    address: int
    """The object's address (Avma)."""
    is_recursive: bool
    """Whether it is an ``RLock``, which alone has an owner."""
    owner: int | None = None
    """The id of its owner, as the process itself knows it."""


class LockReader(ThreadReader):
    """Reads locks while other threads run; the waiting thread must wait meanwhile."""

    def gils(self) -> tuple[Gil, ...]:
        """Return the interpreter locks that can be read."""
        layout, gils = self._layout, dict[int, Gil]()
        with suppress(MachtraceError):
            for interpreter in self._interpreters():
                address, holder, is_locked = self._gil(interpreter)
                if not address:
                    continue
                thread: int | None = None
                with suppress(MachtraceError):
                    if holder and is_locked:
                        thread = self._objects.pointer(holder + layout.thread_native_id)
                gils[address] = Gil(address, thread or None)
        return tuple(gils.values())

    def waited(self, thread: int, word: int, known: int | None = None) -> PythonLock | None:
        """Return the lock that a thread waits for; None if it is none of Python's.

        Args:
            thread: its id, as the process itself knows it.
            word: the address of its futex word (Avma).
            known: the address of the lock that it waited for in the same word before.
        """
        if self._layout.version[1] >= _PARKED_SINCE:
            with suppress(MemoryReadError):
                mutex = self._objects.pointer(word - _ENTRY_OFFSET)
                return self._lock(mutex - _HEAD, mutex) if mutex > _LOWEST else None
            return None
        if known is not None and (lock := self._lock(known, word)) is not None:
            return lock
        with suppress(MachtraceError):
            for interpreter in self._interpreters():
                for native, _, data in self._thread_states(interpreter):
                    if native == thread:
                        start = self._layout.thread_frame
                        first = int.from_bytes(data[start : start + _ALIGNMENT], "little")
                        return self._found(first, word)
        return None

    def _found(self, first: int, word: int) -> PythonLock | None:
        seen: set[int] = set()
        for frame in self._frames(first):
            for address in self._values(frame):
                # A method that is called has its lock in turn.
                for candidate in (address, self._word(address + _SELF_OFFSET)):
                    if candidate in seen or not _may_be_object(candidate):
                        continue
                    seen.add(candidate)
                    if lock := self._lock(candidate, word):
                        return lock
        return None

    def _frames(self, first: int) -> Iterator[int]:
        """Yield the addresses of the innermost frames."""
        frame = next((frame for _, frame in self._links(first) if frame), 0)
        for _ in range(_EXAMINED_FRAMES):
            if not frame:
                return
            yield frame
            frame = self._objects.pointer(frame + self._layout.frame_previous)

    def _values(self, frame: int) -> Iterator[int]:
        for size in _FRAME_SIZES:
            try:
                data = self._memory.read(Avma(frame + self._layout.frame_locals), size)
            except MemoryReadError:
                continue
            for (value,) in Struct("<Q").iter_unpack(data):
                if _may_be_object(value & ~_TAGS):
                    yield value & ~_TAGS
            return

    def _word(self, address: int) -> int:
        """Return the pointer at ``address``; 0 if it cannot be read."""
        with suppress(MemoryReadError):
            return self._objects.pointer(address)
        return 0

    def _lock(self, address: int, word: int) -> PythonLock | None:
        """Return the lock at ``address`` if its waiters wait in ``word``."""
        is_parked = self._layout.version[1] >= _PARKED_SINCE
        try:
            data = self._memory.read(Avma(address), _OBJECT.size)
            references, _, semaphore, owner, count = _OBJECT.unpack(data)
            if not references or (semaphore != word and not is_parked):
                return None
            if self._objects.is_of_type(address, _LOCK):
                return PythonLock(address, is_recursive=False)
            if not self._objects.is_of_type(address, _RLOCK):
                return None
        except MemoryReadError:
            return None
        is_owned = owner and (count or is_parked)
        return PythonLock(address, True, self._native(owner) if is_owned else None)  # noqa: FBT003

    def _native(self, identifier: int) -> int | None:
        """Return the system's id of the thread with an ``ident``, as the process knows it."""
        start = self._layout.thread_ident
        with suppress(MachtraceError):
            for interpreter in self._interpreters():
                for native, _, data in self._thread_states(interpreter):
                    if int.from_bytes(data[start : start + _ALIGNMENT], "little") == identifier:
                        return native
        return None


def _may_be_object(value: int) -> bool:
    return value > _LOWEST and value % _ALIGNMENT == 0
