"""JSON out of reports: as deep as it may be, and as broken."""

from __future__ import annotations

import json
from dataclasses import dataclass

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue

_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A value, and where it ended."""

    value: JsonValue
    end: int
    """Where in the text it ended."""
    warnings: tuple[str, ...] = ()
    """What was mended."""


def read_json(text: str, start: int, source: str) -> JsonDocument:
    """The value that begins at ``start`` of ``text``.

    Raises:
        FormatError: there is none.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON ({error})", source=source, offset=start) from error
    return JsonDocument(value, end)
