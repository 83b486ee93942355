"""Apple's .ips files and texts of crashes: what is written of each is read as what it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fuzz.mutation import Mutation, insert_token
from fuzz.target import ContractError, Target
from machtrace.errors import MachtraceError
from machtrace.model.report import Report, ReportKind
from machtrace.reports.crash.reader import read_text
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips import reader as ips
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import REPORT_SAMPLES

_CONTROL = re.compile(r"\\x[0-9a-f]{2}|\\u202[89]|\\[nrt]")
"""Characters that a line cannot have are spelt out, and read as they were spelt."""
_SAMPLES = Path(__file__).parents[2] / "tests" / "reports" / "apple"


def run_ips(data: bytes) -> None:
    """Read a file; each report written again has the same JSON, and reads as the same report."""
    source = ReportSource("fuzz", data)
    try:
        if not ips.recognises(source):
            return
        reports = ips.read(source)
    except MachtraceError:
        return
    for report in reports:
        crash_text(report)
        text = ips_text(report)
        if report.kind is ReportKind.APPLE_IPS:
            again = ReportSource("again", text.encode("utf-8", "surrogateescape"))
            _check(again, source, report, is_only=len(reports) == 1)


def _check(again: ReportSource, source: ReportSource, report: Report, *, is_only: bool) -> None:
    if ips.read(again) != (report,):
        raise ContractError("what was written is read as another report")
    if is_only and source.documents and not any(one.warnings for one in source.documents):
        values = [document.value for document in source.documents]
        if [document.value for document in again.documents] != values:
            raise ContractError("the JSON that was written is not the JSON that was read")


def run_crash(data: bytes) -> None:
    """Read a text; written again it reads as a report of the same threads with as many frames.

    Whether all of it is equal is for texts that make sense to show: there is no other way to write
    a label that comes twice, or a line of one section within another.
    """
    report = read_text(ReportSource("fuzz", data).text)
    text = crash_text(report)
    ips_text(report)
    if not _CONTROL.search(text) and _counts(read_text(text)) != _counts(report):
        raise ContractError("what was written is read as other threads or frames")


def _counts(report: Report) -> tuple[int, ...]:
    thrown = report.language_exception
    return (
        0 if thrown is None else len(thrown.frames),
        *(len(thread.frames) for thread in report.threads),
    )


@cache
def _files(suffix: str) -> Sequence[bytes]:
    return [path.read_bytes() for path in sorted(_SAMPLES.glob(f"*{suffix}"))]


_JSON = (
    b'{ } [ ] " , : null true false 0 -1 1.5 1e999 99999999999999999999 "imageIndex" "imageOffset" '
    b'"symbol" "frames" "threads" "x" "value" "frame" "thread" "image" "asi" "exception" "inline" '
    b'"adjustment" "return" "" {} [] "uuid" "base" "size" "queue" "name" "triggered" "header"'
).split(b" ")
_WORDS = (
    b"Thread_0_Crashed: Thread_1:: Process: Version: Binary_Images: ??? 0x1 0x100000000 + - ( ) < "
    b"> [inlined] (a.c:3) (:-1) \n \n\n \t : , EOF Exception_Codes: Kernel_Triage: x0: Notes: -----"
    b"--- Error_Code: Logical_CPU: after_nothing order Thread_0_name:"
).split(b" ")
_TEXT = [word.replace(b"_", b" ") for word in _WORDS]
_OF_JSON: tuple[Mutation, ...] = (insert_token(_JSON), insert_token(_JSON))
_OF_TEXT: tuple[Mutation, ...] = (insert_token(_TEXT), insert_token(_TEXT))

IPS = Target("ips", run_ips, lambda: [*_files(".ips"), REPORT_SAMPLES["ips"]], _OF_JSON)
CRASH = Target(
    "crash_text", run_crash, lambda: [*_files(".crash"), REPORT_SAMPLES["crash"]], _OF_TEXT
)
