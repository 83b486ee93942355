"""Parts as a Dask bag: in processes of this machine, or on the cluster that Dask's client has."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial

import pyarrow as pa

from machtrace.engines.wire import Begin
from machtrace.engines.worker import work_here
from machtrace.errors import MissingExtraError


def run(parts: Sequence[pa.Table], begin: Begin, workers: int) -> Generator[pa.Table]:
    """Yield the answers; see ``engines.wire.Runner``."""
    try:
        import dask
        import dask.bag
    except ImportError:
        raise MissingExtraError("the engine dask", extra="dask") from None
    if not parts:
        return
    bag = dask.bag.from_sequence(parts, npartitions=len(parts))
    options = {"scheduler": "processes", "num_workers": workers}
    if dask.config.get("scheduler-address", None):
        from distributed import Client

        options = {"scheduler": Client()}
    yield from bag.map_partitions(partial(_answers, begin)).compute(**options)


def _answers(begin: Begin, parts: Iterable[pa.Table]) -> list[pa.Table]:
    return list(map(work_here(begin), parts))
