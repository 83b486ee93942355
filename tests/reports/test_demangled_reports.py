"""Names in reports as people write them."""

from __future__ import annotations

from machtrace.model.report import (
    Adjustment,
    LanguageException,
    Report,
    ReportedFrame,
    ReportedSymbol,
    ReportedTask,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.reports.writers import demangled_report


def frame(name: str | None) -> ReportedFrame:
    """Return a frame with a name, or none."""
    symbol = None if name is None else ReportedSymbol(name, 4)
    return ReportedFrame(None, None, None, Adjustment.RETURN, symbol)


def report(*names: str | None) -> Report:
    """Return a report with these names wherever it has frames."""
    frames = tuple(map(frame, names))
    task = ReportedTask(
        threads=(ReportedThread(index=0, frames=frames),),
        trees=(SampledTree(nodes=tuple(SampledNode(None, 1, one) for one in frames)),),
    )
    return Report(
        kind=ReportKind.KSCRASH,
        threads=task.threads,
        trees=task.trees,
        others=(task,),
        language_exception=LanguageException(frames=frames),
    )


def test_mangled_names_are_written_as_people_do_everywhere() -> None:
    """Swift, C++ and Rust names are demangled; other names and all details stay."""
    given = report("$s4Demo3runyyF", "_ZN3foo3barEv", "-[Foo bar]", None, "$sNotAName")
    names = ("Demo.run() -> ()", "foo::bar()", "-[Foo bar]", None, "$sNotAName")
    assert demangled_report(given) == report(*names)


def test_reports_without_mangled_names_are_not_copied() -> None:
    """Reports may have a hundred thousand frames."""
    given = Report(
        kind=ReportKind.KSCRASH, threads=(ReportedThread(index=0, frames=(frame("main"),)),)
    )
    assert demangled_report(given) is given
