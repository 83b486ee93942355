"""Writing JSON of any depth, which the standard library's recursive writer cannot."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from machtrace.model.json_value import JsonValue

DEEPEST_SHOWN = 32
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
        one = waiting.pop()
        size += 2 + (len(one) if isinstance(one, str) else 0)
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            size += sum(map(len, one)) + 4 * len(one)
            waiting += one.values()
    return size


def _is_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(DEEPEST_SHOWN):
        inner: list[JsonValue] = []
        for one in level:
            if isinstance(one, list):
                inner += one
            elif isinstance(one, dict):
                inner += one.values()
        level = inner
    return bool(level)


def _without_recursion(value: JsonValue, *, ensure_ascii: bool) -> str:
    scalar = json.JSONEncoder(ensure_ascii=ensure_ascii).encode
    written: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _Mark):
            written.append(one.text)
        elif isinstance(one, dict):
            parts: list[Any] = [_Mark("{")]
            for number, (key, inner) in enumerate(one.items()):
                parts += (_Mark(f"{', ' if number else ''}{scalar(key)}: "), inner)
            waiting += reversed([*parts, _Mark("}")])
        elif isinstance(one, list):
            parts = [_Mark("[")]
            for number, inner in enumerate(one):
                parts += (_Mark(", "), inner) if number else (inner,)
            waiting += reversed([*parts, _Mark("]")])
        else:
            written.append(scalar(one))
    return "".join(written)
