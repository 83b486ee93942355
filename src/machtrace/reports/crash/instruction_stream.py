"""The bytes around the instruction where an x86 thread was: *Thread 0 instruction stream*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.model.json_value import JsonValue

KEY = "instructionState"
_STREAM_KEY = "instructionStream"
_ROW = 16
_HALF = 8
_MARK = "\t<=="
_BYTES = 256
_PRINTABLE = range(0x20, 0x7F)


def stream_lines(state: JsonValue) -> Iterator[str]:
    """The rows, sixteen bytes each, of a thread's ``instructionState``."""
    stream = state.get(_STREAM_KEY) if isinstance(state, dict) else None
    given = stream.get("bytes") if isinstance(stream, dict) else None
    if not isinstance(stream, dict) or not isinstance(given, list):
        return
    data = [one for one in given if type(one) is int and 0 <= one < _BYTES]
    offset = stream.get("offset")
    if len(data) != len(given):
        return
    for first in range(0, len(data), _ROW):
        row = data[first : first + _ROW]
        marked = offset - first if type(offset) is int else -1
        yield _row(row, marked)


def _row(row: Sequence[int], marked: int) -> str:
    text = " "
    for place, byte in enumerate(row):
        if place == marked:
            lead = "["
        elif place and place == marked + 1:
            lead = "]"
        else:
            lead = "-" if place == _HALF else " "
        text += f"{lead}{byte:02x}"
    text += "]" if marked == len(row) - 1 else " "
    shown = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in row)
    return f"{text} {shown}{_MARK if 0 <= marked < len(row) else ''}"


def read_stream(lines: Sequence[str]) -> JsonValue:
    """The ``instructionState`` that these rows say; None where they are not such rows."""
    data: list[JsonValue] = []
    offset = None
    for line in lines:
        width = 1 + 3 * _ROW
        columns = line[:width]
        for place in range(1, width, 3):
            digits = columns[place + 1 : place + 3]
            try:
                byte = int(digits, 16) if len(digits) == 2 else -1  # noqa: PLR2004 - of a byte
            except ValueError:
                byte = -1
            if byte < 0:
                break
            if columns[place] == "[":
                offset = len(data)
            data.append(byte)
    found: dict[str, JsonValue] = {"bytes": data}
    if offset is not None:
        found["offset"] = offset
    state: JsonValue = {_STREAM_KEY: found}
    return state if [*stream_lines(state)] == [*lines] else None
