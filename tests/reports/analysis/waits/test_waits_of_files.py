"""Waits from the text of a spindump: what the reader keeps is enough for the graph."""

import pytest

from machtrace.reports.analysis.waits.graph import EdgeSource, wait_graph
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

TEXT = """\
Date/Time:        2026-02-03 04:05:06.789 +0100
OS Version:       macOS 14.5 (Build 23F79)
Event:            hang
Duration:         6.00s
Steps:            60 (100ms sampling interval)

Process:          Demo [42]
Path:             /Applications/Demo.app/Contents/MacOS/Demo
Architecture:     arm64

  Thread 0x1a    DispatchQueue "com.apple.main-thread"(1)    60 samples (1-60)    priority 46
  60  start + 2360 (dyld + 25204) [0x18a1a5274]
    60  lock + 40 (Demo + 4000) [0x100000fa0]
      60  __psynch_mutexwait + 8 (libsystem_kernel.dylib + 2000) [0x18a4007d0]
       *60  psynch_mtxcontinue + 0 (pthread + 11285) [0xfffffe0003753c15] \
(blocked by turnstile waiting for Demo [42] thread 0x1b)

  Thread 0x1b    Thread name "worker"    60 samples (1-60)    priority 31
  60  thread_start + 8 (libsystem_pthread.dylib + 7000) [0x18a501b58]
    60  __psynch_mutexwait + 8 (libsystem_kernel.dylib + 2000) [0x18a4007d0]
     *60  psynch_mtxcontinue + 0 (pthread + 11285) [0xfffffe0003753c15] \
(blocked by turnstile waiting for Demo [42] thread 0x1a)

  Binary Images:
           0x100000000 -        0x10000ffff  Demo (1.0) <D5BD0E97-65E0-3DBD-9E18-2E8F1A6F3C11> \
/Applications/Demo.app/Contents/MacOS/Demo
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_spindump_s_deadlock(line_end):
    """Two threads, by their notes."""
    text = TEXT.replace("\n", line_end)
    (report,) = read_source(ReportSource("hang.txt", text.encode())).reports
    graph = wait_graph(report)
    assert {EdgeSource.NOTE} == {edge.source for edge in graph.edges}
    (deadlock,) = graph.deadlocks
    labels = [graph.threads[index].thread.label for index in deadlock.threads]
    assert ["thread 0x1a (com.apple.main-thread)", "thread 0x1b (worker)"] == labels
    assert deadlock.is_certain
