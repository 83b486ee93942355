"""What JSON can say, for what a report holds besides that which has a name here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, Union

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
"""A value of JSON. Nobody changes a list or dictionary that a report holds."""

Details: TypeAlias = Mapping[str, JsonValue]
"""What a source says and the model has no place for: by the source's own names, in its order."""

NO_DETAILS: Details = {}
"""Shared, and never changed."""
