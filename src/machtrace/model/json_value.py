"""JSON values, for the keys of a report that the model has no field for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, Union

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
"""A JSON value; treated as immutable."""

Details: TypeAlias = Mapping[str, JsonValue]
"""Keys of a source without a field in the model, with their values, in the source's order."""

NO_DETAILS: Details = {}
"""The shared empty value."""
