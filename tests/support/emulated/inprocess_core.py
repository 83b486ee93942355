"""The capture core for Darwin, called in an emulator: ``capture.h`` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from machtrace.formats.macho.contents import MachOFileContents
from tests.support.emulated.library import Call, EmulatedLibrary, Function
from tests.support.emulated.libsystem import HANDLE_OFFSET, SELF, Dyld, Libsystem
from tests.support.emulated.mach import VARIABLES, KernReturn, MachTask, MachThread

CALLER_ID = 900
_THREAD_FIELDS = (
    *("size", "id", "buffer", "room", "outcome", "error", "pthread_or_queue", "registers"),
    *("registers_size", "stacks", "stack_count", "requested_at", "stopped_at", "resumed_at"),
)
_CAPTURE_FIELDS = ("size", "stack_limit", "together", "threads", "thread_count")
_IMAGE_FIELDS = (
    *("size", "load_address", "slide", "text_size", "cpu_type", "cpu_subtype"),
    *("uuid", "has_uuid", "path"),
)
_PATH_MAX = 1024


class Outcome(IntEnum):
    """``enum machtrace_outcome``."""

    COPIED = 0
    GONE = 1
    REFUSED = 2
    NOT_STOPPED = 3
    FAILED = 4
    BLOCKED = 5
    LEFT_STOPPED = 6


@dataclass(frozen=True, slots=True)
class CopiedThread:
    """``struct machtrace_thread``, as a copy left it."""

    id: int
    outcome: Outcome
    error: int
    pthread: int
    registers: bytes
    stack_start: int
    stack: bytes
    requested_at: int
    stopped_at: int
    resumed_at: int


@dataclass(frozen=True, slots=True)
class ListedImage:
    """``struct machtrace_image``."""

    load_address: int
    slide: int
    text_size: int
    cpu: tuple[int, int]
    uuid: bytes | None
    path: str


class CaptureCore:
    """The core, loaded into an emulated process of the given threads."""

    def __init__(self, contents: MachOFileContents, threads: Sequence[MachThread]) -> None:
        """Load it.

        Args:
            contents: the library of ``native/inprocess/core/darwin/*.c``,
            ``native/common/darwin/memory.c`` and
                ``tests/emulated/darwin/layout.c``.
            threads: of the process, besides the one that captures.
        """
        self.caller = MachThread(CALLER_ID, handle=SELF + HANDLE_OFFSET)
        functions: dict[str, Function] = {}
        self.library = library = EmulatedLibrary(contents, functions, VARIABLES, self._observe)
        self.memory = library.memory
        self.task = MachTask(
            library.memory,
            library.allocate,
            library.free,
            [*threads[:1], self.caller, *threads[1:]],
            self.caller,
        )
        self.libsystem = Libsystem(
            library.memory, library.allocate, library.free, self.caller, self._refuses
        )
        self.dyld = Dyld(library.memory, library.allocate, own=library.image)
        functions |= self.task.functions
        functions |= self.libsystem.functions
        functions |= self.dyld.functions
        self._thread = self._layout("_layout_thread", _THREAD_FIELDS)
        self._capture = self._layout("_layout_capture", _CAPTURE_FIELDS)
        self._image = self._layout("_layout_image", _IMAGE_FIELDS)

    def _observe(self, name: str) -> None:
        self.task.observe(name)

    def _refuses(self, name: str) -> bool:
        return self.task.fault is not None and self.task.fault(name, ()) is not None

    def thread(self, thread_id: int) -> MachThread:
        """Return the thread with this id."""
        return next(thread for thread in self.task.threads if thread.id == thread_id)

    def _layout(self, symbol: str, fields: Sequence[str]) -> dict[str, int]:
        start = self.library.address(symbol)
        return {name: self.memory.word(start + 8 * n) for n, name in enumerate(fields)}

    # --- captures ---

    def capture(
        self, ids: Sequence[int], *, stack_limit: int, together: bool = False
    ) -> list[CopiedThread]:
        """Begin, copy and end.

        Raises:
            OSError: it did not begin; the number is Darwin's.
        """
        self.begin()
        copied = self.copy(ids, stack_limit=stack_limit, together=together)
        self.end()
        return copied

    def begin(self, signal: int = 0) -> None:
        """``machtrace_inprocess_begin``.

        Raises:
            OSError: it did not begin; the number is Darwin's.
        """
        error = self.library.call("_machtrace_inprocess_begin", signal) % (1 << 32)
        if error:
            raise OSError(error, "machtrace_inprocess_begin")

    def end(self) -> None:
        """``machtrace_inprocess_end``."""
        self.library.call("_machtrace_inprocess_end")

    def copy(
        self, ids: Sequence[int], *, stack_limit: int, together: bool = False
    ) -> list[CopiedThread]:
        """``machtrace_inprocess_copy``."""
        memory, fields = self.memory, self._thread
        room = stack_limit + 128
        buffers = self.library.allocate(room * len(ids))
        threads = self.library.allocate(fields["size"] * len(ids))
        for index, thread_id in enumerate(ids):
            row = threads + fields["size"] * index
            # What an earlier capture left there means nothing.
            memory.write(row, b"\xa5" * fields["size"])
            memory.set_word(row + fields["id"], thread_id)
            memory.set_word(row + fields["buffer"], buffers + room * index)
            memory.set_word(row + fields["room"], room)
        capture = self.library.allocate(self._capture["size"])
        memory.set_word(capture + self._capture["stack_limit"], stack_limit)
        memory.set_word(capture + self._capture["together"], together, 1)
        memory.set_word(capture + self._capture["threads"], threads)
        memory.set_word(capture + self._capture["thread_count"], len(ids))
        self.library.call("_machtrace_inprocess_copy", capture)
        copied = [self._copied(threads + fields["size"] * index) for index in range(len(ids))]
        self.library.free(buffers, room * len(ids))
        self.library.free(threads, fields["size"] * len(ids))
        self.library.free(capture, self._capture["size"])
        return copied

    def copy_here(self, *, stack_limit: int) -> CopiedThread:
        """``machtrace_inprocess_copy_here``."""
        capture = self.library.allocate(self._capture["size"])
        self.memory.set_word(capture + self._capture["stack_limit"], stack_limit)
        row = self.library.allocate(self._thread["size"])
        self.memory.set_word(row + self._thread["room"], stack_limit + 128)
        buffer = self.library.allocate(stack_limit + 128)
        self.memory.set_word(row + self._thread["buffer"], buffer)
        self.library.call("_machtrace_inprocess_copy_here", capture, row)
        return self._copied(row)

    def _copied(self, row: int) -> CopiedThread:
        def word(field: str, size: int = 8) -> int:
            return self.memory.word(row + self._thread[field], size)

        outcome = Outcome(word("outcome", 4))
        count = word("stack_count")
        assert count <= 1, "of Darwin's threads one stack is copied"
        stacks = row + self._thread["stacks"]
        size = self.memory.word(stacks + 8) if count else 0
        assert outcome is not Outcome.GONE or not count, "gone, with a stack"
        return CopiedThread(
            id=word("id"),
            outcome=outcome,
            error=_signed(word("error", 4)),
            pthread=word("pthread_or_queue"),
            registers=self.memory.read(row + self._thread["registers"], word("registers_size")),
            stack_start=self.memory.word(stacks) if count else 0,
            stack=self.memory.read(self.memory.word(stacks + 16), size) if size else b"",
            requested_at=word("requested_at"),
            stopped_at=word("stopped_at"),
            resumed_at=word("resumed_at"),
        )

    def list_ids(self, room: int) -> tuple[int, list[int]]:
        """``machtrace_inprocess_list``: how many there are, and as many as there is room for."""
        place = self.library.allocate(8 * room)
        count = self.library.call("_machtrace_inprocess_list", place, room)
        if count >> 63:
            return -1, []
        return count, [self.memory.word(place + 8 * n) for n in range(min(count, room))]

    def assert_released(self) -> None:
        """Nothing is suspended, held or locked, and signals come in again."""
        self.task.assert_released()
        assert not self.libsystem.locked, "a lock is still held"
        assert not self.libsystem.signals_blocked, "signals are still blocked"

    # --- images ---

    def images(self, room: int = 64) -> list[ListedImage]:
        """``machtrace_images_copy``."""
        place = self.library.allocate(self._image["size"] * room)
        count = self.library.call("_machtrace_images_copy", place, room)
        found = self.images_at(place, min(count, room))
        self.library.free(place, self._image["size"] * room)
        return found

    def images_at(self, place: int, count: int) -> list[ListedImage]:
        """Return those that a call of ``machtrace_images_copy`` wrote."""
        return [self._listed(place + self._image["size"] * index) for index in range(count)]

    def _listed(self, row: int) -> ListedImage:
        def word(field: str, size: int = 8) -> int:
            return self.memory.word(row + self._image[field], size)

        path = self.memory.read(row + self._image["path"], _PATH_MAX)
        assert b"\0" in path, "a path without end"
        uuid = self.memory.read(row + self._image["uuid"], 16)
        return ListedImage(
            word("load_address"),
            word("slide"),
            word("text_size"),
            (word("cpu_type", 4), word("cpu_subtype", 4)),
            uuid if word("has_uuid", 1) else None,
            path.partition(b"\0")[0].decode(),
        )

    def begin_call(self, function: int | str, *arguments: int) -> Call:
        """Begin a call that is run in steps: see :meth:`EmulatedLibrary.run`."""
        address = self.library.address(function) if isinstance(function, str) else function
        return self.library.begin(address, *arguments)


class NthFault:
    """Lets one call fail."""

    def __init__(self, number: int, code: KernReturn) -> None:
        self._number = number
        self._code = code
        self.asked: list[str] = []
        """Names of all calls that could fail."""

    def __call__(self, name: str, _: Sequence[int]) -> KernReturn | None:
        """See :data:`~tests.support.emulated.mach.Fault`."""
        self.asked.append(name)
        return self._code if len(self.asked) == self._number + 1 else None

    @property
    def failed(self) -> str | None:
        """The call that failed; None if there were fewer."""
        return self.asked[self._number] if len(self.asked) > self._number else None


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
