"""Go's function table in the layouts of all its releases, for tests.

Source: Go, ``runtime/symtab.go`` and ``cmd/link/internal/ld/pcln.go`` of the releases 1.2, 1.16,
1.18, 1.20 and 1.26.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

from tests.support.writers.function_lists import uleb

MAGICS = {2: 0xFFFFFFFB, 16: 0xFFFFFFFA, 18: 0xFFFFFFF0, 20: 0xFFFFFFF1, 26: 0xFFFFFFF1}
"""By the release of Go 1 that brought a layout."""
_LINE_BIAS = -1


@dataclass(frozen=True, slots=True)
class BuiltFunction:
    """A function of a table."""

    name: str
    size: int
    """In bytes; a multiple of four."""
    file: str = "main.go"
    lines: tuple[tuple[int, int], ...] = ((1, 0),)
    """(line, from which byte of the function on), ascending."""


def go_pclntab(
    functions: Sequence[BuiltFunction],
    *,
    release: int,
    text_start: int,
    pointer_size: int = 8,
    little_endian: bool = True,
) -> bytes:
    """Return the section's bytes.

    Args:
        functions: consecutive, from ``text_start`` on.
        release: a key of :data:`MAGICS`.
        text_start: where the first function begins (Svma).
        pointer_size: 4 or 8.
        little_endian: the byte order.
    """
    return _Table(release, pointer_size, little_endian=little_endian).build(functions, text_start)


class _Table:
    def __init__(self, release: int, pointer_size: int, *, little_endian: bool) -> None:
        self._release = release
        self._order = "<" if little_endian else ">"
        self._pointer = "Q" if pointer_size == 8 else "I"
        self._size = pointer_size

    def _pack(self, form: str, *values: int) -> bytes:
        return pack(self._order + form.replace("P", self._pointer), *values)

    def build(self, functions: Sequence[BuiltFunction], text_start: int) -> bytes:
        """Return the whole table."""
        head = self._pack("I", MAGICS[self._release]) + bytes((0, 0, 4, self._size))
        if self._release < 16:
            return self._oldest(head, functions, text_start)
        names, name_at = _strings([function.name for function in functions])
        paths, path_at = _strings([function.file for function in functions])
        files = list(dict.fromkeys(function.file for function in functions))
        units = b"".join(self._pack("I", path_at[file]) for file in files)
        values = bytearray(1)
        new = self._release >= 18
        entry = "I" if new else "P"
        width = 4 if new else self._size
        records = bytearray()
        rows = []
        at = 0 if new else text_start
        table_size = (2 * len(functions) + 1) * width
        for function in functions:
            rows.append((at, table_size + len(records)))
            records += self._pack(entry, at)
            records += self._record(
                function, name_at[function.name], files.index(function.file), values
            )
            at += function.size
        table = b"".join(self._pack(entry * 2, *row) for row in rows)
        table += self._pack(entry, at) + records
        parts = [names, units, paths, bytes(values), table]
        words = 2 + new + len(parts)
        offset = len(head) + words * self._size
        offsets = []
        for part in parts:
            offsets.append(offset)
            offset += len(part)
        stated = 0 if self._release >= 26 else text_start
        counts = (len(functions), len(files), *((stated,) if new else ()))
        return head + self._pack("P" * words, *counts, *offsets) + b"".join(parts)

    def _record(self, one: BuiltFunction, name: int, file: int, values: bytearray) -> bytes:
        """Write the fields of a ``_func`` after its entry, from ``nameoff`` on."""
        file_at = _append(values, _pc_values([(file, 0)], one.size))
        line_at = _append(values, _pc_values(one.lines, one.size))
        return self._pack("8I", name, 0, 0, 0, file_at, line_at, 0, 0) + bytes(8)

    def _oldest(self, head: bytes, functions: Sequence[BuiltFunction], text_start: int) -> bytes:
        """Go 1.2: one block, all offsets from its start."""
        start = len(head) + self._size
        after = start + (2 * len(functions) + 1) * self._size
        rest = bytearray()
        base = after + 4
        files = list(dict.fromkeys(function.file for function in functions))
        numbers = {file: number for number, file in enumerate(files, 1)}
        path_at = {file: base + _append(rest, file.encode() + b"\0") for file in files}
        table = self._pack("I", len(files) + 1)
        table += b"".join(self._pack("I", path_at[file]) for file in files)
        files_at = base + _append(rest, table)
        rows = bytearray()
        at = text_start
        for function in functions:
            name = base + _append(rest, function.name.encode() + b"\0")
            file_pcs = base + _append(
                rest, _pc_values([(numbers[function.file], 0)], function.size)
            )
            line_pcs = base + _append(rest, _pc_values(function.lines, function.size))
            record = self._pack("P", at)
            record += self._pack("8I", name, 0, 0, 0, file_pcs, line_pcs, 0, 0)
            rows += self._pack("PP", at, base + _append(rest, record))
            at += function.size
        rows += self._pack("P", at)
        return head + self._pack("P", len(functions)) + rows + self._pack("I", files_at) + rest


def _append(block: bytearray, data: bytes) -> int:
    at = len(block)
    block += data
    return at


def _strings(texts: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    block = bytearray()
    places = {text: _append(block, text.encode() + b"\0") for text in dict.fromkeys(texts)}
    return bytes(block), places


def _pc_values(values: Sequence[tuple[int, int]], size: int) -> bytes:
    """Pairs of (value, from which byte on), as ``runtime.step`` undoes them."""
    encoded = bytearray()
    before = _LINE_BIAS
    ends = [start for _, start in values[1:]] + [size]
    for (value, start), end in zip(values, ends, strict=True):
        change = value - before
        encoded += uleb(change << 1 if change >= 0 else (-change << 1) - 1)
        encoded += uleb((end - start) // 4)
        before = value
    return bytes(encoded) + b"\0"
