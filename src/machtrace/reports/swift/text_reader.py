"""The crashes in a text: a log, or what a terminal showed."""

from __future__ import annotations

import re

from machtrace.model.report import Report
from machtrace.reports.backtraces.log_lines import log_lines
from machtrace.reports.backtraces import sanitizer as sanitizer_reader
from machtrace.reports.source import ReportSource
from machtrace.reports.swift.text_report import CrashText, thread_heading

# On a terminal there is a sign in colour before the reason, elsewhere three stars are around it.
_REASON = re.compile(
    r"(?:\*\*\* |\N{BOMB} ?)?+"
    r"(?:Program crashed: (?P<crash>[^\n]{1,1000}?)|(?P<failure>Swift runtime failure: .{1,1000}?))"
    r"(?: \*\*\*)?+"
)
_BACKTRACING = re.compile(r"[^\n]{0,40}?\bSignal (?P<signal>[0-9]{1,3}): Backtracing from 0x.*+")
_MARKS = ("Program crashed: ", "Swift runtime failure: ")
_MARK = re.compile(rf"([ \t]*+)(?:\*\*\* |\N{{BOMB}} ?)?+(?:{'|'.join(_MARKS)})")


def recognises(source: ReportSource) -> bool:
    """Whether it says why a program crashed, and has threads, as Swift's runtime writes both."""
    text = source.text
    places = [place for mark in _MARKS if (place := text.find(mark)) >= 0]
    if not places:
        return False
    start = text.rfind("\n", 0, min(places)) + 1
    found = False
    for line in log_lines(text[start:], _MARK):
        if found and thread_heading(line) is not None:
            return True
        found = found or _reason(line) is not None
    return False


def read(source: ReportSource) -> tuple[Report, ...]:
    """A report of each crash in it; what was written before a crash goes with it.

    Where Swift's compiler crashes, LLVM writes a stack first: that is a report of its own.

    Raises:
        FormatError: there is none.
    """
    dumps: list[Report] = []
    crashes: list[CrashText] = []
    before: list[str] = []
    signal: int | None = None
    for line in log_lines(source.text, _MARK):
        if (match := _BACKTRACING.fullmatch(line)) is not None:
            # The next crash begins: what follows is no longer of the last one.
            signal = int(match["signal"])
            before.append(line)
        elif (reason := _reason(line)) is not None:
            dump = _stack_dump(source.name, before)
            dumps += dump
            crashes.append(CrashText(reason, signal, [] if dump else before))
            before, signal = [], None
        elif crashes and not before:
            crashes[-1].take(line)
        elif line.strip():
            before.append(line)
    if not crashes:
        raise source.error("there is no crash in it")
    if before:
        crashes[-1].leave(before)
    return (*dumps, *(crash.report() for crash in crashes))


def _stack_dump(name: str, lines: list[str]) -> tuple[Report, ...]:
    """What LLVM, or a sanitizer, wrote into these lines; nothing where neither did."""
    source = ReportSource(name, "\n".join(lines).encode("utf-8", "surrogateescape"))
    return sanitizer_reader.read(source) if sanitizer_reader.recognises(source) else ()


def _reason(line: str) -> str | None:
    """Why a program crashed; None where a line does not say that."""
    if not any(mark in line for mark in _MARKS) or "Backtracing from" in line:
        return None
    match = _REASON.fullmatch(line)
    return None if match is None else match["crash"] or match["failure"]
