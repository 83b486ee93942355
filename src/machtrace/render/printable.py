"""Escaping names for output, since targets name themselves, threads and images freely."""

from __future__ import annotations

from machtrace.model.snapshot import ThreadInfo

LONGEST_IMAGE_NAME = 4096
"""Characters of an image's name written with each frame: no system has longer ones (Linux:
``PATH_MAX``); a file made to fill a disk does.
"""


def printable(name: str) -> str:
    r"""Escape ``name`` to one line without control of a terminal: ``\x1b`` for an escape byte."""
    if name.isprintable():
        return name
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in name
    )


def encodable(name: str) -> str:
    r"""Escape ``name`` for UTF-8: ``\udcff``, spelt out, for an undecodable byte."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def thread_label(info: ThreadInfo) -> str:
    """Return its name, or its queue's, and its id, which distinguishes threads of one name."""
    name = info.name or info.queue or ("main" if info.is_main else "")
    return f"{printable(name)} [{info.id}]" if name else f"thread [{info.id}]"
