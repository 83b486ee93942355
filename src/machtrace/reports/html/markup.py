"""Text as HTML takes it: whatever a report says, it says it as text."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from machtrace.render.printable import printable


def text(value: object) -> str:
    """``value`` as the content of an element or a quoted attribute, on one line.

    What is not printable is spelt out: marks that turn the direction of text round too.
    """
    return escape(printable(str(value)), quote=True)


def lines(value: str) -> str:
    """The same of several lines, for an element that keeps them apart."""
    return "\n".join(text(line) for line in value.splitlines())


def attributes(**named: str | None) -> str:
    """Attributes as a tag has them, with a space before each; ``class_`` is ``class``."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in named.items()
        if value is not None
    )


def element(tag: str, content: str = "", **named: str | None) -> str:
    """An element, whose content is HTML already."""
    return f"<{tag}{attributes(**named)}>{content}</{tag}>"


def folded(summary: str, content: str, *, is_open: bool = False, **named: str | None) -> str:
    """What can be opened and closed, without a script; both are HTML already."""
    state = " open" if is_open else ""
    return f"<details{attributes(**named)}{state}><summary>{summary}</summary>{content}</details>"


def script_data(value: Any) -> str:  # noqa: ANN401 - whatever JSON can say
    """JSON that cannot end the ``script`` element that it is in, nor begin a comment there."""
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def quantity(count: int, noun: str) -> str:
    """``1 frame``, ``2 frames``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
