"""What spindump says a thread is blocked by.

The forms are those that spindump texts of macOS 10.15 to 15 and iOS have::

    (blocked by turnstile waiting for Demo [3715] thread 0xf1aeb)
    (blocked by turnstile waiting for thread 0xce8dc4)
    (blocked by turnstile waiting for this thread - part of a deadlock)
    (blocked by turnstile waiting for tccd after 2 hops)
    (suspended, blocked by turnstile waiting for Demo [858])
    (blocked by mutex owned by Demo [12] thread 0x5)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 1024
"""Characters that are looked at."""
_NOTE = re.compile(
    r"\bblocked by (?P<by>[a-z][a-z0-9 _-]{0,60}?)"
    r"(?: 0x[0-9a-fA-F]{1,16})?"
    r"(?: (?:waiting for|owned by|held by) (?P<owner>[^()]{1,300}))?(?=[)(,]|$)"
)
_HOPS = re.compile(r",? after (?P<hops>[0-9]{1,9}) hops?$")
_DEADLOCK = re.compile(r"[ ,-]{0,4}(?:and is )?part of a deadlock$")
_THREAD = re.compile(r"(?:^|[ ,])thread 0x(?P<id>[0-9a-fA-F]{1,16})$")
_MAIN = re.compile(r"(?:^| )main thread$")
_PROCESS = re.compile(
    r"(?P<name>.{1,200}?)(?: \[(?P<pid>[0-9]{1,10})\])?(?: \[unique pid [0-9]{1,19}\])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitNote:
    """A note, read."""

    by: str
    """What it waits at: ``turnstile``, ``mutex``, ``krwlock``."""
    process: str | None = None
    """Whose the owner is; None where the note names none: its own, if it names a thread."""
    pid: int | None = None
    thread: int | None = None
    """The owner's system-wide id."""
    is_own_thread: bool = False
    """Whether the owner is the thread that waits."""
    is_main_thread: bool = False
    """Whether it is the main thread of its process."""
    hops: int = 0
    """Owners between the thread and the one that is named."""
    is_deadlock: bool = False
    """Whether the system itself says that it is part of one."""
    text: str = ""
    """The note as it is written."""

    @property
    def names_owner(self) -> bool:
        """Whether it says who is waited for."""
        return self.is_own_thread or self.thread is not None or self.process is not None


def wait_note(text: str) -> WaitNote | None:
    """The note in ``text``, wherever it is there; None where there is none."""
    match = _NOTE.search(text[:_LONGEST])
    if match is None:
        return None
    owner = (match["owner"] or "").strip()
    is_deadlock = _DEADLOCK.search(owner) is not None or "part of a deadlock" in text
    owner = _DEADLOCK.sub("", owner).rstrip(" ,-")
    hops = _HOPS.search(owner)
    owner = owner if hops is None else owner[: hops.start()]
    is_own = owner in ("this thread", "itself")
    thread = _THREAD.search(owner)
    main = None if is_own or thread is not None else _MAIN.search(owner)
    rest = owner[: thread.start()] if thread else owner[: main.start()] if main else owner
    process = None if is_own else _PROCESS.fullmatch(rest.strip())
    return WaitNote(
        by=match["by"],
        process=None if process is None else process["name"],
        pid=int(process["pid"]) if process is not None and process["pid"] else None,
        thread=int(thread["id"], 16) if thread else None,
        is_own_thread=is_own,
        is_main_thread=main is not None,
        hops=int(hops["hops"]) if hops else 0,
        is_deadlock=is_deadlock,
        text=match[0],
    )
