"""Parts in actors of Ray Data, on this machine or on the cluster that ``RAY_ADDRESS`` names."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from machtrace.engines.wire import WIRE, Begin
from machtrace.errors import MachtraceError, MissingExtraError

_OBJECT_STORE = 1 << 29
"""Bytes of shared memory: parts and answers are small; Ray would reserve 30 % of all memory."""


def run(parts: Sequence[pa.Table], begin: Begin, workers: int) -> Generator[pa.Table]:
    """Yield the answers; see ``engines.wire.Runner``."""
    # Before the import, which reads them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("the engine ray", extra="ray") from None
    if not parts:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with _cluster(workers):
        answers = ray.data.from_arrow(list(parts)).map_batches(
            _Actor,
            fn_constructor_args=(begin,),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts))),
        )
        try:
            for answer in answers.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield answer.cast(WIRE)
        except ray.exceptions.RayError as error:
            raise MachtraceError(
                f"Ray failed: {str(error).strip().splitlines()[-1]}", remedy="try --engine local"
            ) from error


class _Actor:
    """A process with what the work needs."""

    def __init__(self, begin: Begin) -> None:
        self._work = begin()

    def __call__(self, parts: pa.Table) -> pa.Table:
        return self._work(parts.cast(WIRE))


@contextmanager
def _cluster(workers: int) -> Iterator[None]:
    """Connect to a cluster, or start one here; one that runs already is used."""
    import ray

    if ray.is_initialized():
        yield
        return
    options = {
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE,
    }
    try:
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if os.environ.get("RAY_ADDRESS") else options),
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise MachtraceError(f"Ray: {error}", remedy="check RAY_ADDRESS") from None
    try:
        yield
    finally:
        ray.shutdown()
