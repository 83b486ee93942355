"""Reports of every kind: what is read can be written in every format, and read again as it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from fuzz.mutation import Mutation, insert_token
from fuzz.target import ContractError, Target
from machtrace.errors import ArgumentError, MachtraceError
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import FORMATS, write_reports
from tests.support.reports.samples import REPORT_SAMPLES
from tests.support.reports.variants import REPORT_VARIANTS


def run(data: bytes) -> None:
    """Read them, write them, and read our own form of them."""
    try:
        reports = read_source(ReportSource("fuzz", data)).reports
    except MachtraceError:
        return
    for name in FORMATS:
        with suppress(ArgumentError):  # samples have no stacks of one moment
            write_reports(reports, name)
    again = read_source(ReportSource("again", reports_json(reports).encode())).reports
    if again != reports:
        raise ContractError("what was written as JSON is read as another report")


def _seeds() -> Sequence[bytes]:
    return [
        *REPORT_SAMPLES.values(),
        *REPORT_VARIANTS.values(),
        b'{"report_schema": 1, "reports": []}',
    ]


_TOKENS = (
    b'{ } [ ] " , : null -1 1e999 99999999999999999999999999 \\u0000 \\ud800 0x + - ( ) < > * ???'
    b" [0x1] (in ` frame #0: Thread_1 subFrames threads \n \r\n \t \xff \xef\xbb\xbf"
).split(b" ")
_MUTATIONS: tuple[Mutation, ...] = (insert_token(_TOKENS), insert_token(_TOKENS))

TARGET = Target("reports", run, _seeds, _MUTATIONS)
