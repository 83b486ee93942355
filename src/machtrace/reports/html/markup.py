"""Escaping text for HTML: everything in a report is text."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from machtrace.model.text import printable


def text(value: object) -> str:
    """Escape ``value`` for an element or a quoted attribute, on one line.

    Unprintable characters are spelt out, among them bidirectional controls.
    """
    return escape(printable(str(value)), quote=True)


def lines(value: str) -> str:
    """Escape several lines, for an element that preserves line ends."""
    return "\n".join(text(line) for line in value.splitlines())


def attributes(**named: str | None) -> str:
    """Return attributes as in a tag, a space before each; ``class_`` is ``class``."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in named.items()
        if value is not None
    )


def element(tag: str, content: str = "", **named: str | None) -> str:
    """Return an element; ``content`` is HTML already."""
    return f"<{tag}{attributes(**named)}>{content}</{tag}>"


def folded(summary: str, content: str, *, is_open: bool = False, **named: str | None) -> str:
    """Return a disclosure element, which needs no script; both texts are HTML already."""
    state = " open" if is_open else ""
    return f"<details{attributes(**named)}{state}><summary>{summary}</summary>{content}</details>"


def script_data(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return JSON that can neither end its ``script`` element nor begin a comment there."""
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
