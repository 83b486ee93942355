"""Sums of observed calls: by library, owner and function, before and after consent."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from machtrace.audit.observed.report import ObservedReport
from machtrace.audit.policies import Severity
from machtrace.audit.rules import Rule
from machtrace.audit.trail.calls import Consent
from machtrace.model.text import counted

_STATES = 1 + max(Consent)


class LibraryCalls(NamedTuple):
    """Calls of one function by one library."""

    library: str
    owner: str
    rule: Rule
    without_consent: int
    with_consent: int
    unstated: int

    @property
    def calls(self) -> int:
        """All calls."""
        return self.without_consent + self.with_consent + self.unstated


def library_calls(report: ObservedReport) -> list[LibraryCalls]:
    """Return the calls by library, owner and function."""
    calls, attribution = report.recording.trail.calls, report.attribution
    keys = attribution.row_of_call * _STATES + report.consent
    weights = np.zeros(len(attribution.rule) * _STATES, np.int64)
    np.add.at(weights, keys, calls.calls)
    by_row = weights.reshape(-1, _STATES)
    askers: dict[int, tuple[str, str]] = {}
    sums: dict[tuple[str, str, int], list[int]] = {}
    number_of_asker = attribution.asker.tolist()
    number_of_owner = attribution.owner.tolist()
    for row in np.flatnonzero(by_row.any(axis=1)).tolist():
        key = number_of_asker[row] << 32 | (number_of_owner[row] & 0xFFFF_FFFF)
        if key not in askers:
            asker = report.asker(row)
            askers[key] = asker.library, asker.owner
        total = sums.setdefault((*askers[key], int(attribution.rule[row])), [0, 0, 0])
        counts = by_row[row].tolist()
        total[0] += counts[Consent.BEFORE] + counts[Consent.REFUSED]
        total[1] += counts[Consent.GRANTED]
        total[2] += counts[Consent.UNKNOWN]
    rules = [report.rule(number) for number in range(len(report.recording.trail.rules))]
    return sorted(
        (
            LibraryCalls(library, owner, rules[number], *total)
            for (library, owner, number), total in sums.items()
        ),
        key=lambda row: (row.library, row.owner, row.rule.watch),
    )


def verdict(report: ObservedReport) -> str:
    """Return the first line: the number of findings, calls and processes."""
    counts = Counter(finding.severity for finding in report.findings)
    calls = int(report.recording.trail.calls.calls.sum())
    processes = counted(len(report.recording.sources), "process", "processes")
    parts = [counted(counts[each], each.value) for each in Severity if counts[each]]
    return f"{', '.join(parts) or 'nothing found'} in {counted(calls, 'call')} of {processes}"
