"""Which threads a user means."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import TargetSpecError
from machtrace.model.snapshot import ThreadId, ThreadInfo


def select_threads(threads: Sequence[ThreadInfo], wanted: str) -> tuple[ThreadId, ...] | None:
    """The ids of the threads that ``wanted`` names; None where it means all.

    ``wanted`` is ``all``, ``main``, ``#N`` as lldb counts, a thread id, or a name, which several
    threads may share.

    Raises:
        TargetSpecError: no thread answers to it; the remedy lists those that there are.
    """
    if wanted == "all":
        return None
    found = [thread.id for thread in threads if _answers(thread, wanted)]
    if not found:
        listed = ", ".join(_label(thread) for thread in threads[:_LISTED])
        more = f" and {len(threads) - _LISTED} more" if len(threads) > _LISTED else ""
        raise TargetSpecError(
            f"no thread is called {wanted!r}", remedy=f"choose all, main, or one of {listed}{more}"
        )
    return tuple(found)


_LISTED = 12


def _answers(thread: ThreadInfo, wanted: str) -> bool:
    if wanted == "main" and thread.is_main:
        return True
    if wanted.startswith("#"):
        return wanted[1:] == str(thread.index)
    return wanted in (str(thread.id), thread.name)


def _label(thread: ThreadInfo) -> str:
    return f"{thread.id} ({thread.name})" if thread.name else str(thread.id)
