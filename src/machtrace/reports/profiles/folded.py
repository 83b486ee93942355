"""Folded stacks: the functions of a stack, outermost first, semicolons between them, and a count.

Source: the README of github.com/brendangregg/FlameGraph. machtrace writes a thread's label first.
"""

from __future__ import annotations

import re

from machtrace.model.arch import Arch
from machtrace.model.profile import OUTERMOST
from machtrace.model.report import Report, ReportKind
from machtrace.model.snapshot import ProcessInfo
from machtrace.reports.log_lines import LINES
from machtrace.reports.profiles.functions import (
    is_labelled,
    labelled_thread,
    named_frame,
    named_profile,
    report_without_architecture,
    sampled,
)
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.profiles import INTERVAL_NS, ProfileBuilder

_COUNT = re.compile(r"[0-9]{1,15}")
_EXAMINED = 200
_HEAD = 1 << 18
_MAX_SAMPLES = 1 << 31


def recognises(source: ReportSource) -> bool:
    """Return whether each line at the beginning is a stack, one of several functions."""
    head = source.text[:_HEAD].split("\n")[:-1][:_EXAMINED]
    lines = [line for line in head if line]
    return (
        bool(lines)
        and all(_count(line) is not None for line in lines)
        and any(";" in line for line in lines)
    )


def _count(line: str) -> int | None:
    stack, _, count = line.rstrip().rpartition(" ")
    is_stack = bool(stack) and not stack.startswith(";") and _COUNT.fullmatch(count) is not None
    return int(count) if is_stack else None


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    stacks: list[tuple[list[str], int]] = []
    other: list[str] = []
    for text in source.text.split("\n"):
        count = _count(text)
        if count is not None:
            stacks.append((text.rstrip().rpartition(" ")[0].split(";"), min(count, _MAX_SAMPLES)))
        elif text.strip():
            other.append(text)
    has_labels = all(is_labelled(names[0]) for names, _ in stacks)
    builder = ProfileBuilder()
    threads: dict[str, int] = {}
    totals: dict[str, int] = {}
    for names, count in stacks:
        label = names[0] if has_labels else ""
        totals[label] = totals.get(label, 0) + count
    for names, count in stacks:
        label = names.pop(0) if has_labels else ""
        number = threads.setdefault(label, len(threads))
        if number == len(builder.threads):
            builder.begin(sampled(labelled_thread(label, number), totals[label]))
        frames = [named_frame(name) for name in reversed(names)]
        rows = builder.calls(OUTERMOST, frames)
        builder.samples.append(0, number, rows[-1] if rows else OUTERMOST, count)
    process = ProcessInfo(pid=None, path="", arch=Arch.ARM64)
    profile = named_profile(builder, process, INTERVAL_NS, max(totals.values(), default=0))
    report = report_without_architecture(profile, ReportKind.FOLDED)
    if other:
        report.details[LINES] = [*other]  # type: ignore[index]  # this report's alone
    return (report,)
