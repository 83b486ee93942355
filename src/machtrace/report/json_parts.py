"""What JSON is put together from, whoever reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from machtrace.model.json_value import JsonValue


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A value, and where it ended."""

    value: JsonValue
    end: int
    """Where in the text it ended."""
    warnings: tuple[str, ...] = ()
    """What was mended."""


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
