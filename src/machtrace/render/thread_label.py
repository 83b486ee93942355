"""What a thread is called where there is one short line for it."""

from __future__ import annotations

from machtrace.model.thread import ThreadInfo
from machtrace.render.printable import printable


def thread_label(info: ThreadInfo) -> str:
    """Its name, or its queue's, and its id, which tells threads of one name apart."""
    name = info.name or info.queue or ("main" if info.is_main else "")
    return f"{printable(name)} [{info.id}]" if name else f"thread [{info.id}]"
