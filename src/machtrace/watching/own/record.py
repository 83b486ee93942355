"""The incident in the record of a process that was killed while something lasted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from os import PathLike
from typing import TYPE_CHECKING

from machtrace.errors import FormatError
from machtrace.model.incident.facts import WatchedThread, WatchIncident
from machtrace.model.report import Report
from machtrace.reports.source import ReportSource

if TYPE_CHECKING:  # every file is offered to this reader: only records need what follows
    from machtrace.targets.inprocess.watchdog_file import WatchdogFile
    from machtrace.targets.inprocess.watchdog_records import WatchdogCapture, WatchdogItem
    from machtrace.watching.naming import RawCopy
    from machtrace.watching.own.cases import Case, Cases, NumberedPoll

_MAGIC = b"machwtc"
_POLLS_OF_HANG = 5
_MAX_INCIDENTS = 256
_KILLED = "the process ended while this lasted, or its watcher was stopped without being closed"

_EARLY = f"{_KILLED}; the limit was not exceeded yet"


def read_record(path: str | PathLike[str]) -> tuple[WatchIncident, ...]:
    """Return the incidents in a record that were not delivered, mostly the one that lasted.

    Args:
        path: the file that ``machtrace.watch("self", record=...)`` named. The process may run
            still: then it is what lasts now.

    Raises:
        FileAccessError: it cannot be read.
        FormatError: it is no record.
    """
    from machtrace.targets.inprocess.watchdog_file import read_watchdog_file

    return _incidents(read_watchdog_file(path))


def recognises(source: ReportSource) -> bool:
    """Return whether a file is a record; see :class:`~machtrace.reports.readers.ReportReader`."""
    return source.data.startswith(_MAGIC)


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report of each incident in a record.

    Raises:
        FormatError: it is invalid, or has no incident.
    """
    from machtrace.reports.stacks.incidents import report_of_incident
    from machtrace.targets.inprocess.watchdog_file import parse_watchdog_file

    incidents = _incidents(parse_watchdog_file(source.data, source.name))
    if not incidents:
        raise FormatError(
            "the record has no incident that was not reported before",
            source=source.name,
            offset=0,
            remedy="nothing that was watched exceeded its limit when the process ended",
        )
    return tuple(map(report_of_incident, incidents))


def _incidents(file: WatchdogFile) -> tuple[WatchIncident, ...]:
    from machtrace.watching.naming import Namer
    from machtrace.watching.own.cases import Cases

    pid = file.process.pid or 0
    namer = Namer(scan=True)
    try:
        cases = Cases(_Source(file), namer, file.process.arch, file.limit_ns // _POLLS_OF_HANG)
        return tuple(
            _incident(file, cases, case, f"{pid}-{number}")
            for number, case in enumerate(cases.take(_newest(file.items)) or cases.suspected(), 1)
        )
    except (ValueError, OverflowError) as error:
        raise FormatError(f"invalid record ({error})", source=file.source, offset=0) from error
    finally:
        namer.close()


def _newest(items: Sequence[WatchdogItem]) -> Sequence[WatchdogItem]:
    """Return the items of the last incidents: only a damaged record has more."""
    incidents: set[int] = set()
    for position in reversed(range(len(items))):
        incidents.add(items[position].incident)
        if len(incidents) > _MAX_INCIDENTS:
            return items[position + 1 :]
    return items


def _incident(file: WatchdogFile, cases: Cases, case: Case, number: str) -> WatchIncident:
    from machtrace.watching.own.loops import await_chain

    cases.name(case)
    chains = [chain for _, stack in case.stacks if (chain := await_chain(stack)) is not None]
    if chains:
        case.facts["await_chain"] = chains[0].text
    if case.ended is None:
        case.facts["record"] = _KILLED if case.seen is not None else _EARLY
    incident = cases.incident(case, number=number, pid=file.process.pid or 0)
    if file.wall_offset_ns is None:
        return incident
    return replace(incident, seen_wall_ns=file.wall_offset_ns + incident.seen_ns)


class _Source:
    """The facts of cases in a record."""

    def __init__(self, file: WatchdogFile) -> None:
        self._file = file
        self._wanted: list[WatchdogCapture] = []
        self._copies = file.copies(iter(self._wanted.pop, None))

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        from machtrace.watching.naming import RawCopy

        self._wanted.append(capture)
        return RawCopy(*next(self._copies))

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        rows = self._file.polls
        return rows[bisect_left(rows, first, key=itemgetter(0)) :]

    def thread(self, thread: int) -> WatchedThread:
        return WatchedThread(thread, None, thread == self._file.process.pid)

    def is_watcher(self, thread: int) -> bool:
        del thread  # their names are not recorded
        return False
