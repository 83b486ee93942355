"""Parts in processes of this machine."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pyarrow as pa

from machtrace.engines.processes import run_in_processes
from machtrace.engines.wire import Begin


def run(parts: Sequence[pa.Table], begin: Begin, workers: int) -> Generator[pa.Table]:
    """Yield the answers; see ``engines.wire.Runner``."""
    return run_in_processes(iter(parts), begin, workers)
