"""The incident in the record of a process that was killed while something lasted."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

from machtrace.model.incident import WatchedThread, WatchIncident
from machtrace.targets.inprocess.watchdog_file import WatchdogFile, read_watchdog_file
from machtrace.targets.inprocess.watchdog_records import WatchdogCapture
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.own_cases import Case, Cases, NumberedPoll

_POLLS_OF_HANG = 5
_KILLED = "the process ended while this lasted, or its watcher was stopped without being closed"


def read_record(path: str | PathLike[str]) -> tuple[WatchIncident, ...]:
    """Return the incidents in a record that were not delivered, mostly the one that lasted.

    Args:
        path: the file that ``machtrace.watch("self", record=...)`` named. The process may run
            still: then it is what lasts now.

    Raises:
        FileAccessError: it cannot be read.
        FormatError: it is no record.
    """
    file = read_watchdog_file(path)
    pid = file.process.pid or 0
    namer = Namer(scan=True)
    try:
        cases = Cases(_Source(file), namer, file.process.arch, file.limit_ns // _POLLS_OF_HANG)
        return tuple(
            _incident(cases, case, f"{pid}-{number}", pid)
            for number, case in enumerate(cases.take(file.items), 1)
        )
    finally:
        namer.close()


def _incident(cases: Cases, case: Case, number: str, pid: int) -> WatchIncident:
    cases.name(case)
    if case.ended is None:
        case.facts["record"] = _KILLED
    return cases.incident(case, number=number, pid=pid)


class _Source:
    """The facts of cases in a record."""

    def __init__(self, file: WatchdogFile) -> None:
        self._file = file

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        return RawCopy(*next(self._file.copies([capture])))

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        return (row for row in self._file.polls if row[0] >= first)

    def thread(self, thread: int) -> WatchedThread:
        return WatchedThread(thread, None, thread == self._file.process.pid)
