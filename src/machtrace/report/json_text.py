"""JSON out of reports: as deep as it may be, and as broken.

Python's own reader takes what is right and not too deep; what it refuses is read again by
:mod:`~machtrace.report.broken_json`, which knows no recursion.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A value, and where it ended."""

    value: JsonValue
    end: int
    """Where in the text it ended."""
    warnings: tuple[str, ...] = ()
    """What was mended."""


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else object_of(pairs)


def object_of(pairs: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """An object with all of its entries: a key that is there already gets a number."""
    made: dict[str, JsonValue] = {}
    times: dict[str, int] = {}
    for key, value in pairs:
        free = key
        while free in made:
            times[key] = times.get(key, 1) + 1
            free = f"{key} ({times[key]})"
        made[free] = value
    return made


def finite(text: str) -> JsonValue:
    """The number, or the text of one that is too large: JSON has no infinity to write it as."""
    number = float(text)
    return number if isfinite(number) else text


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=finite, parse_constant=str)


def read_json(text: str, start: int, source: str) -> JsonDocument:
    """The value that begins at ``start`` of ``text``: an object or a list.

    Raises:
        FormatError: nothing there looks like JSON.
    """
    if text[start : start + 1] not in ("{", "["):
        raise FormatError("no JSON", source=source, offset=start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        from machtrace.report.broken_json import read_broken

        return read_broken(text, start)
    return JsonDocument(value, end)
