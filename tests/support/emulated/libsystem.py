"""As much of Darwin's C and thread library as capturing code needs, as functions in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.emulated.library import EmulatedMemoryBlock, Function, Steps
from tests.support.emulated.mach import MachThread

_ENOMEM = 12
_WORD = (1 << 64) - 1
SELF = 0x16E000000
"""The calling thread's pthread_self()."""
HANDLE_OFFSET = 0xE0
"""Offset of the thread's own data in its pthread; its handle points there."""


@dataclass(slots=True)
class Libsystem:
    """One thread's view of it."""

    memory: EmulatedMemoryBlock
    allocate: Callable[[int], int]
    release: Callable[[int, int], None]
    caller: MachThread
    refuses: Callable[[str], bool] = lambda _: False
    """Called with the name of a call that can fail: whether it fails."""
    stack_end: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    """Sizes of what malloc gave, by address."""
    locked: set[int] = field(default_factory=set)
    """Mutexes."""
    signals_blocked: int = 0
    fork_handlers: list[int] = field(default_factory=list)
    """To be called in the child."""

    @property
    def functions(self) -> Mapping[str, Function]:
        """By the symbols that they are imported by."""
        return {
            "_malloc": self._malloc,
            "_calloc": self._calloc,
            "_free": self._free,
            "_memcpy": self._memmove,
            "_memmove": self._memmove,
            "_memset": self._memset,
            "___bzero": self._bzero,
            "_bzero": self._bzero,
            "_strlen": self._strlen,
            "_strcmp": self._strcmp,
            "_strncmp": self._strncmp,
            "_strncpy": self._strncpy,
            "_pthread_self": lambda _: SELF,
            "_pthread_mach_thread_np": self._pthread_mach_thread_np,
            "_pthread_threadid_np": self._pthread_threadid_np,
            "_pthread_get_stackaddr_np": lambda _: self.stack_end,
            "_pthread_mutex_lock": self._pthread_mutex_lock,
            "_pthread_mutex_unlock": self._pthread_mutex_unlock,
            "_pthread_atfork": self._pthread_atfork,
            "_pthread_sigmask": self._pthread_sigmask,
        }

    # --- memory ---

    def _malloc(self, arguments: Sequence[int]) -> int:
        if self.refuses("_malloc"):
            return 0
        place = self.allocate(arguments[0])
        self.blocks[place] = arguments[0]
        return place

    def _calloc(self, arguments: Sequence[int]) -> int:
        return self._malloc([arguments[0] * arguments[1]])

    def _free(self, arguments: Sequence[int]) -> int:
        if arguments[0]:
            self.release(arguments[0], self.blocks.pop(arguments[0]))
        return 0

    def _memmove(self, arguments: Sequence[int]) -> int:
        to, source, size = arguments[:3]
        self.memory.write(to, self.memory.read(source, size))
        return to

    def _memset(self, arguments: Sequence[int]) -> int:
        to, value, size = arguments[:3]
        self.memory.write(to, bytes([value % 256]) * size)
        return to

    def _bzero(self, arguments: Sequence[int]) -> int:
        return self._memset([arguments[0], 0, arguments[1]])

    # --- strings ---

    def _strlen(self, arguments: Sequence[int]) -> int:
        return len(self.memory.string(arguments[0]))

    def _strcmp(self, arguments: Sequence[int]) -> int:
        return self._strncmp([*arguments[:2], _WORD])

    def _strncmp(self, arguments: Sequence[int]) -> int:
        one, other = (self.memory.string(place)[: arguments[2]] for place in arguments[:2])
        return (one > other) - (one < other)

    def _strncpy(self, arguments: Sequence[int]) -> int:
        to, source, size = arguments[:3]
        self.memory.write(to, self.memory.string(source)[:size].ljust(size, b"\0"))
        return to

    # --- threads ---

    def _pthread_mach_thread_np(self, arguments: Sequence[int]) -> int:
        assert arguments[0] == SELF, "another thread's"
        return self.caller.port

    def _pthread_threadid_np(self, arguments: Sequence[int]) -> int:
        thread, place = arguments[:2]
        assert not thread, "another thread's"
        if self.refuses("_pthread_threadid_np"):
            return _ENOMEM
        self.memory.set_word(place, self.caller.id)
        return 0

    def _pthread_mutex_lock(self, arguments: Sequence[int]) -> int:
        assert arguments[0] not in self.locked, "a deadlock"
        self.locked.add(arguments[0])
        return 0

    def _pthread_mutex_unlock(self, arguments: Sequence[int]) -> int:
        self.locked.remove(arguments[0])
        return 0

    def _pthread_atfork(self, arguments: Sequence[int]) -> int:
        if self.refuses("_pthread_atfork"):
            return _ENOMEM
        self.fork_handlers.append(arguments[2])
        return 0

    def _pthread_sigmask(self, arguments: Sequence[int]) -> int:
        how, new, old = arguments[:3]
        if self.refuses("_pthread_sigmask"):
            return _ENOMEM
        if old:
            self.memory.set_word(old, self.signals_blocked, 4)
        value = self.memory.word(new, 4)
        # SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK
        now = self.signals_blocked
        self.signals_blocked = {1: now | value, 2: now & ~value, 3: value}[how % (1 << 32)]
        return 0


@dataclass(slots=True)
class DyldImage:
    """An image as dyld reports it."""

    header: int
    slide: int
    path: str


@dataclass(slots=True)
class Dyld:
    """The functions of dyld that are called, and its callbacks."""

    memory: EmulatedMemoryBlock
    allocate: Callable[[int], int]
    images: list[DyldImage] = field(default_factory=list)
    own: range = range(0)
    """The address of the calling library's header."""
    on_add: list[int] = field(default_factory=list)
    on_remove: list[int] = field(default_factory=list)
    _paths: dict[str, int] = field(default_factory=dict)

    @property
    def functions(self) -> Mapping[str, Function]:
        """By the symbols that they are imported by."""
        return {
            "__dyld_register_func_for_add_image": self._register_add,
            "__dyld_register_func_for_remove_image": self._register_remove,
            "_dladdr": self._dladdr,
        }

    def _register_add(self, arguments: Sequence[int]) -> Steps:
        function = arguments[0]
        self.on_add.append(function)
        for image in list(self.images):
            yield function, (image.header, image.slide)
        return 0

    def _register_remove(self, arguments: Sequence[int]) -> int:
        self.on_remove.append(arguments[0])
        return 0

    def _dladdr(self, arguments: Sequence[int]) -> int:
        address, place = arguments[:2]
        own = DyldImage(self.own.start, self.own.start, "/usr/lib/own.dylib")
        for image in [*self.images, own]:
            if image.header == address or (image is own and address in self.own):
                self.memory.set_word(place, self.string(image.path))
                self.memory.set_word(place + 8, image.header)
                return 1
        return 0

    def string(self, text: str) -> int:
        """Return a path, as a C string."""
        if text not in self._paths:
            data = text.encode() + b"\0"
            self._paths[text] = self.allocate(len(data))
            self.memory.write(self._paths[text], data)
        return self._paths[text]
