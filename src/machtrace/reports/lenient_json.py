"""JSON out of reports: as deep as it may be, and as broken.

Python's own reader takes what is right and not too deep; what it refuses is read again by
:mod:`~machtrace.reports.broken_json`, which knows no recursion.
"""

from __future__ import annotations

import json

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue
from machtrace.reports.broken_json import read_broken
from machtrace.reports.json_parts import JsonDocument, finite, object_of


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else object_of(pairs)


def _whole(text: str, start: int) -> JsonDocument:
    """A value whose objects have every entry, also those of a key that comes more than once.

    The decoder's own objects are made twice as quickly as by way of pairs, and have no more keys
    than the text has where none comes twice.

    Raises:
        ValueError, RecursionError: it is broken, or too deep.
    """
    entries = 0

    def counted(made: dict[str, JsonValue]) -> dict[str, JsonValue]:
        nonlocal entries
        entries += len(made)
        return made

    decoder = json.JSONDecoder(object_hook=counted, parse_float=finite, parse_constant=str)
    value, end = decoder.raw_decode(text, start)
    if _most_keys(text, start, end) != entries:
        value, end = _DECODER.raw_decode(text, start)
    return JsonDocument(value, end)


def _most_keys(text: str, start: int, end: int) -> int:
    """How many keys JSON has at most: more where a text in it looks like one; -1 is not known."""
    if any(text.find(one, start, end) >= 0 for one in _SELDOM):
        return -1
    return text.count('":', start, end) + text.count('" :', start, end)


_SELDOM = ("\t:", "\n:", "\r:", "  :", "\t :", "\n :", "\r :")
"""What is before a colon where it is neither a quote nor a quote and one space."""
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=finite, parse_constant=str)


def read_json(text: str, start: int, source: str) -> JsonDocument:
    """The value that begins at ``start`` of ``text``: an object or a list.

    Raises:
        FormatError: nothing there looks like JSON.
    """
    if text[start : start + 1] not in ("{", "["):
        raise FormatError("no JSON", source=source, offset=start)
    try:
        return _whole(text, start)
    except (ValueError, RecursionError):
        return read_broken(text, start)
