"""Labels of dispatch queues.

A thread that serves a queue stores the queue's address where ``thread_identifier_info`` points
(``dispatch_qaddr``), and libdispatch's ``dispatch_queue_offsets`` has the offset of a queue's label
(``src/shims``, ``layout_private.h``): since version 4 as a pointer to it, before as characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from machtrace.targets.darwin.memory import TaskMemory

_POINTER = Struct("<Q")
_POINTER_SINCE = 4
_MAX_LENGTH = 256
_INLINE = 64
_PAGE = 4096


def served_queues(memory: TaskMemory, places: Iterable[int]) -> dict[int, int]:
    """By the place where a thread keeps it, the address of the queue that it serves now."""
    wanted = [place for place in dict.fromkeys(places) if place]
    found = memory.read_many([(place, _POINTER.size) for place in wanted])
    return {
        place: _POINTER.unpack(data)[0]
        for place, data in zip(wanted, found, strict=True)
        if len(data) == _POINTER.size
    }


def queue_labels(
    memory: TaskMemory, queues: Iterable[int], layout: tuple[int, int] | None
) -> dict[int, str]:
    """By address, the labels of ``queues``, as far as they have one that is text.

    Args:
        memory: of the process. A queue may be gone by now, and something else be in its place.
        queues: addresses; 0 is no queue.
        layout: version and offset of ``dispatch_queue_offsets``; None where it is not known.
    """
    wanted = [queue for queue in dict.fromkeys(queues) if queue]
    if layout is None or not wanted:
        return {}
    version, offset = layout
    if version < _POINTER_SINCE:
        texts = memory.read_many([(queue + offset, _INLINE) for queue in wanted])
        return _labels(zip(wanted, texts, strict=True))
    at = served_queues(memory, [queue + offset for queue in wanted])  # a pointer likewise
    labelled = [(queue, at.get(queue + offset, 0)) for queue in wanted]
    labelled = [(queue, label) for queue, label in labelled if label]
    texts = memory.read_many([(label, _up_to_page(label)) for _, label in labelled])
    # A label seldom crosses into the next page; what is there is read only where it does.
    more = [
        (place, label + len(text))
        for place, ((_, label), text) in enumerate(zip(labelled, texts, strict=True))
        if b"\0" not in text and len(text) < _MAX_LENGTH
    ]
    rest = memory.read_many([(start, _MAX_LENGTH) for _, start in more])
    for (place, _), text in zip(more, rest, strict=True):
        texts[place] += text
    return _labels((queue, text) for (queue, _), text in zip(labelled, texts, strict=True))


def _up_to_page(address: int) -> int:
    return min(_MAX_LENGTH, _PAGE - address % _PAGE)


def _labels(texts: Iterable[tuple[int, bytes]]) -> dict[int, str]:
    labels: dict[int, str] = {}
    for queue, text in texts:
        label, end, _ = text.partition(b"\0")
        decoded = _decoded(label) if end else ""
        if decoded:
            labels[queue] = decoded
    return labels


def _decoded(label: bytes) -> str:
    try:
        text = label.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""
