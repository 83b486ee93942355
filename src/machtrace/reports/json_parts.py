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


def put(made: dict[str, JsonValue], times: dict[str, int], key: str, value: JsonValue) -> None:
    """Add an entry to an object; a key that is there already gets a number.

    Args:
        made: the object.
        times: how often keys came that came more than once; to be kept beside the object.
        key: as it is written.
        value: what it has.
    """
    free = key
    while free in made:
        times[key] = times.get(key, 1) + 1
        free = f"{key} ({times[key]})"
    made[free] = value


def object_of(pairs: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """An object with all of its entries: a key that is there already gets a number."""
    made: dict[str, JsonValue] = {}
    times: dict[str, int] = {}
    for key, value in pairs:
        put(made, times, key, value)
    return made


def finite(text: str) -> JsonValue:
    """The number, or the text of one that is too large: JSON has no infinity to write it as."""
    number = float(text)
    return number if isfinite(number) else text
