"""The child process that makes the indices of many object files, and may die of one.

``python -m machtrace.lines.object_worker TASK`` reads object files one behind the other
from its standard input. For each, as soon as it is done, it writes a status, a size and as many
bytes: an index, or why there is none. ``TASK`` is an :class:`~.index_child.IndexTask` as JSON;
its ``edits`` are empty, and the sizes of the files follow as further arguments.
"""

from __future__ import annotations

import json
import sys
from struct import Struct

from machtrace.lines.worker import REFUSED, IndexTask, limit_process, with_index

RECORD = Struct("<BQ")
"""A status (0, or :data:`REFUSED`), and the bytes that follow."""
_LONGEST_REASON = 1000


def main() -> int:
    """Make the indices."""
    task = IndexTask(**json.loads(sys.argv[1]))
    sizes = [int(size) for size in sys.argv[2:]]
    limit_process(task)
    output = sys.stdout.buffer
    for size in sizes:
        data = sys.stdin.buffer.read(size)
        try:
            status, made = 0, _index(data, task.output)
        except Exception as error:  # noqa: BLE001 (whatever it is, the parent reports it)
            status, made = REFUSED, f"{type(error).__name__}: {error}"[:_LONGEST_REASON].encode()
        output.write(RECORD.pack(status, len(made)))
        output.write(made)
        output.flush()
    return 0


def _index(data: bytes, limit: int) -> bytes:
    return with_index(data, limit, lambda stream: stream.read())


if __name__ == "__main__":
    sys.exit(main())
