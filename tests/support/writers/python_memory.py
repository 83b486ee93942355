"""CPython's own structures in memory that tests make: interpreters, threads, frames and code."""

from __future__ import annotations

from struct import Struct, pack

from machtrace.cpython.layout import (
    COOKIE,
    GROUPS_OF_OFFSETS,
    HEAD_SIZE,
    PythonLayout,
    layout_of,
)
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion

_START = 0x7F0000000000
_POINTER = Struct("<Q")
_ROOM = 512
"""Bytes of each structure but the first."""
_ENTRY = 3
"""The owner of a shim."""


class PythonMemory:
    """Memory that is written piece by piece, as an interpreter of some version would.

    Where a version describes itself, its offsets are other than those of any real build.

    Args:
        version: major and minor.
    """

    def __init__(self, version: tuple[int, int]) -> None:
        self.data = bytearray(16)
        self.runtime = self.place(bytes(4 * HEAD_SIZE))
        number = version[0] << 24 | version[1] << 16 | 0x00F0
        head = b""
        if version in GROUPS_OF_OFFSETS:
            head = _described(number, version)
            self.write(self.runtime, head)
        self.version = number
        head = bytes(self.data[16 : 16 + HEAD_SIZE])
        self.layout: PythonLayout = layout_of(head, number, "made memory")
        self._types = {name: self._type(name) for name in ("code", "str", "bytes")}
        self._interpreters: list[int] = []

    def region(self) -> MemoryRegion:
        """Return the memory written so far."""
        return MemoryRegion(Avma(_START), bytes(self.data))

    def place(self, data: bytes) -> int:
        """Put ``data`` behind all else; its address."""
        self.data += bytes(-len(self.data) % 16)
        at = _START + len(self.data)
        self.data += data
        return at

    def write(self, address: int, data: bytes) -> None:
        """Put ``data`` where something is."""
        begin = address - _START
        self.data[begin : begin + len(data)] = data

    def point(self, address: int, value: int) -> None:
        """Put a pointer there."""
        self.write(address, _POINTER.pack(value))

    def interpreter(self) -> int:
        """Prepend an interpreter to the list; return its address."""
        made = self.place(bytes(4 * _ROOM * 16))
        head = self.runtime + self.layout.interpreters_head
        self.point(made + self.layout.interpreter_next, next(iter(self._interpreters[::-1]), 0))
        self.point(head, made)
        self._interpreters.append(made)
        return made

    def thread(self, interpreter: int, native_id: int, runs: list[list[int]]) -> int:
        """Prepend a thread state to its interpreter's list.

        Args:
            interpreter: of :meth:`interpreter`.
            native_id: the system's.
            runs: of each run, innermost first, its frames, innermost first, of :meth:`frame`.
        """
        layout = self.layout
        made = self.place(bytes(2 * _ROOM))
        head = interpreter + layout.threads_head
        self.point(made + layout.thread_next, self.pointer(head))
        self.point(head, made)
        self.point(made + layout.thread_interpreter, interpreter)
        self.point(made + layout.thread_native_id, native_id)
        previous = self._shim(0) if layout.has_base_frame else 0
        # The thread's own C frame is part of it.
        c_frame = self.place(bytes(_ROOM)) if layout.c_frame_current is not None else 0
        for run in runs[::-1]:
            previous = self._linked(run, previous)
            if layout.c_frame_current is not None:
                outer, c_frame = c_frame, self.place(bytes(_ROOM))
                self.point(c_frame + layout.c_frame_previous, outer)
                self.point(c_frame + layout.c_frame_current, previous)
        self.point(made + layout.thread_frame, c_frame or previous)
        return made

    def frame(self, code: int, instruction: int) -> int:
        """Write a frame of ``code`` at an instruction, by its number."""
        layout = self.layout
        made = self.place(bytes(_ROOM))
        tag = 1 if layout.has_base_frame else 0
        self.point(made + layout.frame_code, code | tag)
        at = code + layout.code_instructions + 2 * instruction
        self.point(made + layout.frame_instruction, at)
        return made

    def code(self, name: str, path: str, first_line: int, lines: bytes) -> int:
        """Write a code object of 64 instructions."""
        layout = self.layout
        made = self._object("code", 2 * _ROOM)
        self.point(made + layout.size, 64)
        self.point(made + layout.code_name, self.text(name))
        self.point(made + layout.code_file, self.text(path))
        self.point(made + layout.code_lines, self.bytes_object(lines))
        self.write(made + layout.code_first_line, pack("<i", first_line))
        return made

    def text(self, text: str) -> int:
        """Write a ``str``, in the narrowest form that holds it."""
        layout = self.layout
        widest = max(map(ord, text), default=0)
        width, codec = next(
            (width, codec)
            for width, codec, limit in (
                (1, "latin-1", 0xFF),
                (2, "utf-16-le", 0xFFFF),
                (4, "utf-32-le", 0x10FFFF),
            )
            if widest <= limit
        )
        is_ascii = text.isascii()
        data = text.encode(codec, "surrogatepass")
        made = self._object("str", layout.text_compact + len(data))
        self.point(made + layout.text_length, len(text))
        state = width << 2 | 1 << 5 | is_ascii << 6
        self.write(made + layout.text_state, pack("<I", state))
        self.write(made + (layout.text_ascii if is_ascii else layout.text_compact), data)
        return made

    def bytes_object(self, data: bytes) -> int:
        """Write a ``bytes``."""
        made = self._object("bytes", self.layout.bytes_start + len(data))
        self.point(made + self.layout.size, len(data))
        self.write(made + self.layout.bytes_start, data)
        return made

    def pointer(self, address: int) -> int:
        """Read a pointer."""
        value: int = _POINTER.unpack_from(self.data, address - _START)[0]
        return value

    def _object(self, kind: str, size: int) -> int:
        made = self.place(bytes(size + 16))
        self.point(made + self.layout.object_type, self._types[kind])
        return made

    def _type(self, name: str) -> int:
        made = self.place(bytes(_ROOM))
        self.point(made + self.layout.type_name, self.place(name.encode() + bytes(16)))
        return made

    def _shim(self, previous: int) -> int:
        made = self.place(bytes(_ROOM))
        self.write(made + self.layout.frame_owner, bytes([_ENTRY]))
        self.point(made + self.layout.frame_previous, previous)
        return made

    def _linked(self, run: list[int], previous: int) -> int:
        """Link a run's frames to ``previous``; return the innermost."""
        layout = self.layout
        if layout.frame_is_entry is None:
            previous = self._shim(previous)
        elif run:
            self.write(run[-1] + layout.frame_is_entry, b"\1")
        for frame in run[::-1]:
            self.point(frame + layout.frame_previous, previous)
            previous = frame
        return previous


def _described(number: int, version: tuple[int, int]) -> bytes:
    """``_Py_DebugOffsets`` with offsets of our own, eight bytes apart."""
    head = COOKIE + pack("<QQ", number, 0)
    for name, fields in GROUPS_OF_OFFSETS[version]:
        names = fields.split()
        places = [8 * place + 8 for place in range(len(names))]
        if name == "runtime":
            places = [2 * HEAD_SIZE] * len(names)
        if name == "object":
            places = [16, 8]
        if name in ("bytes", "text"):
            places = [places[0], *(16 + 8 * place for place in range(len(names) - 1))]
        if name == "text":
            places[names.index("asciiobject_size")] = 72
        if name == "code":
            places = [8 * place + 48 for place in range(len(names))]
            places[names.index("co_code_adaptive")] = 256
        head += pack(f"<{len(places)}Q", *places)
    return head
