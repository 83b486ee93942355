"""Writing JSON of any depth, which the standard library's recursive writer cannot."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from machtrace.model.report import JsonValue

MAX_SHOWN_DEPTH = 32
"""Levels that are indented; more would fill memory with spaces."""


class _Mark(NamedTuple):
    """Text to write unescaped."""

    text: str


def dumps(value: JsonValue, *, ensure_ascii: bool = True) -> str:
    """Write ``value`` in one line, as :func:`json.dumps` does."""
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii)
    except RecursionError:
        return _without_recursion(value, ensure_ascii=ensure_ascii)


def indented(value: JsonValue, indent: int, *, sort_keys: bool = False) -> str:
    """Write ``value`` indented; on one line if too deep to be readable."""
    if _is_deep(value):
        return dumps(value, ensure_ascii=False)
    return json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)


def as_text(value: JsonValue) -> str:
    """Return a value as text: a string itself, a container as JSON."""
    return dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def extent(value: JsonValue) -> int:
    """Estimate the number of characters that ``value`` is written with."""
    size = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        size += 2 + (len(item) if isinstance(item, str) else 0)
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            size += sum(map(len, item)) + 4 * len(item)
            waiting += item.values()
    return size


def _is_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(MAX_SHOWN_DEPTH):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, list):
                inner += item
            elif isinstance(item, dict):
                inner += item.values()
        level = inner
    return bool(level)


def _without_recursion(value: JsonValue, *, ensure_ascii: bool) -> str:
    scalar = json.JSONEncoder(ensure_ascii=ensure_ascii).encode
    written: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Mark):
            written.append(item.text)
        elif isinstance(item, dict):
            parts: list[Any] = [_Mark("{")]
            for number, (key, inner) in enumerate(item.items()):
                parts += (_Mark(f"{', ' if number else ''}{scalar(key)}: "), inner)
            waiting += reversed([*parts, _Mark("}")])
        elif isinstance(item, list):
            parts = [_Mark("[")]
            for number, inner in enumerate(item):
                parts += (_Mark(", "), inner) if number else (inner,)
            waiting += reversed([*parts, _Mark("]")])
        else:
            written.append(scalar(item))
    return "".join(written)
