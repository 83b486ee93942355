"""Names as they can be shown: a target may call itself, its threads and its images anything.

What a thread is called where there is one short line for it.
"""

from __future__ import annotations

from machtrace.model.snapshot import ThreadInfo

LONGEST_IMAGE_NAME = 4096
"""Characters of an image's name that are written with each of its frames: no system has longer ones
(``PATH_MAX`` of Linux), and a file that was made to fill a disk has."""


def printable(name: str) -> str:
    r"""``name`` on one line and without power over a terminal: ``\x1b`` for an escape byte."""
    if name.isprintable():
        return name
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in name
    )


def encodable(name: str) -> str:
    r"""``name`` as UTF-8 can write it: ``\udcff``, spelt out, for a byte that is no text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def thread_label(info: ThreadInfo) -> str:
    """Its name, or its queue's, and its id, which tells threads of one name apart."""
    name = info.name or info.queue or ("main" if info.is_main else "")
    return f"{printable(name)} [{info.id}]" if name else f"thread [{info.id}]"
