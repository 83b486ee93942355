"""JSON out of reports: as deep as it may be, and as broken.

Python's own reader takes what is right and not too deep; what it refuses is read again by
:mod:`~machtrace.report.broken_json`, which knows no recursion.
"""

from __future__ import annotations

import json

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue
from machtrace.report.broken_json import read_broken
from machtrace.report.json_parts import JsonDocument, finite, object_of


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else object_of(pairs)


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
        return read_broken(text, start)
    return JsonDocument(value, end)
