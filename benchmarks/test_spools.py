"""Reading a million events of the agent: columns, and the report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.spool import Spool
from tests.support.writers import spool as writer

EVENTS = 1_000_000


@cache
def contents() -> bytes:
    """Return a spool of four segments, with events of four stacks."""
    stacks = (writer.MAIN, writer.WORK, writer.OUTSIDE, writer.LOADED)
    calls = [
        writer.Call(1_000_000 + 900 * number, stacks[number % 4], number % 3)
        for number in range(EVENTS // 4)
    ]
    return writer.spool(writer.sample_log(), [calls] * 4, segment_size=EVENTS // 4 * 25)


def columns() -> int:
    """Return the number of events that are read as columns."""
    return len(Spool.parse(contents(), "app.spool").events)


def report() -> int:
    """Return the number of calls in the report."""
    (read,) = read_source(ReportSource("app.spool", contents())).reports
    return sum(tree.root_samples for tree in read.trees)


@pytest.mark.parametrize("read", [columns, report], ids=["columns", "report"])
def test_a_million_events(benchmark: object, read: Callable[[], int]) -> None:
    contents()
    assert benchmark(read) == EVENTS  # type: ignore[operator]  # pytest-benchmark's fixture
