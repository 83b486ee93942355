"""Waits from the text of a spindump: what the reader keeps is enough for the graph."""

from pathlib import Path

import pytest

from machtrace.reports.analysis.waits.graph import EdgeSource, wait_graph
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

SAMPLE = Path(__file__).parents[4] / "docs" / "samples" / "deadlock.txt"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_spindump_s_deadlock(line_end):
    """The notes of two threads state it."""
    text = SAMPLE.read_text().replace("\n", line_end)
    (report,) = read_source(ReportSource("hang.txt", text.encode())).reports
    graph = wait_graph(report)
    assert {EdgeSource.NOTE} == {edge.source for edge in graph.edges}
    (deadlock,) = graph.deadlocks
    labels = [graph.threads[index].thread.label for index in deadlock.threads]
    assert labels == ["thread 0x1a (com.apple.main-thread)", "thread 0x1b (worker)"]
    assert deadlock.is_certain
