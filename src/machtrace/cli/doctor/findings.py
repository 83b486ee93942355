"""The findings of ``machtrace doctor``, and their output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TextIO

from machtrace.frozen import dataclass
from machtrace.model.text import encodable, printable


class State(StrEnum):
    """How well something works here."""

    OK = "ok"
    LIMITED = "limited"
    """It works for some things, or slower than it could."""
    MISSING = "missing"
    """It does not work, or is absent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    state: State
    found: str
    """The finding, in words."""
    remedy: str = ""
    """The remedy, in the imperative; empty if none is needed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and the function that runs it."""

    topic: str
    """The heading in the output."""
    name: str
    """The subject, unique in a run."""
    ask: Callable[[], Finding]
    is_needed: bool = False
    """Whether the requested capture needs it; decides the exit status."""
    targets: str | None = ""
    """The kind of targets whose capture may fail for it, as :func:`kind_of_target` has it; empty if
    it concerns every target, None for none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A check and its finding."""

    check: Check
    finding: Finding

    @property
    def fails(self) -> bool:
        """Whether the requested capture does not work."""
        return self.check.is_needed and self.finding.state is State.MISSING


def kind_of_target(spec: str) -> str:
    """Return ``core`` for a file, ``self``, a scheme such as ``frida``, else ``process``."""
    scheme, colon, _ = spec.partition(":")
    if not spec.isdigit() and Path(spec).exists():
        return "core"
    return scheme if colon or spec == "self" else "process"


_COLOURS = {State.OK: "\x1b[32m", State.LIMITED: "\x1b[33m", State.MISSING: "\x1b[31m"}
_WIDTH = max(len(state) for state in State)
SCHEMA = 1
"""Raised when a reader of the old form would misread the new one."""


def write_text(answers: Sequence[Answer], spec: str | None, sink: TextIO) -> None:
    """Write a line for each check with its remedy below, and at the end whether captures work.

    With ``spec``, the answers are the trial and those that explain it.
    """
    from machtrace.cli.console import wants_colour

    colour = wants_colour(sys.stdout)
    sink.writelines(f"{line}\n" for line in _lines(answers, spec, colour=colour))


def _lines(answers: Sequence[Answer], spec: str | None, *, colour: bool) -> Iterator[str]:
    bold, reset = ("\x1b[1m", "\x1b[0m") if colour else ("", "")
    width = max(len(printable(answer.check.name)) for answer in answers)
    for topic, group in groupby(answers, key=lambda answer: answer.check.topic):
        yield f"{bold}{topic}{reset}"
        for answer in group:
            finding = answer.finding
            paint = _COLOURS[finding.state] if colour else ""
            state = f"{paint}{finding.state:<{_WIDTH}s}{reset}"
            yield f"  {state}  {printable(answer.check.name):<{width}s}  {printable(finding.found)}"
            if finding.remedy:
                yield f"  {'':{_WIDTH}s}  {'':{width}s}  → {printable(finding.remedy)}"
    if spec is not None:
        yield "machtrace doctor lists all checks of this machine"
    yield ""
    can = "own children can" if spec is None else f"{printable(spec)} can"
    failing = [answer for answer in answers if answer.fails]
    if spec is None:
        reason = f"see {', '.join(printable(answer.check.name) for answer in failing)}"
    else:
        reason = "; ".join(printable(answer.finding.found) for answer in failing)
    yield f"{can}not be captured: {reason}" if failing else f"{can} be captured"


def write_json(answers: Sequence[Answer], spec: str | None, sink: TextIO) -> None:
    """Write all answers as a JSON document."""
    document = {
        "schema": SCHEMA,
        "target": None if spec is None else encodable(spec),
        "works": not any(answer.fails for answer in answers),
        "checks": [
            {
                "topic": answer.check.topic,
                "name": encodable(answer.check.name),
                "needed": answer.check.is_needed,
                "state": answer.finding.state.value,
                "found": encodable(answer.finding.found),
                "remedy": encodable(answer.finding.remedy) or None,
            }
            for answer in answers
        ],
    }
    json.dump(document, sink, indent=2, ensure_ascii=False)
    sink.write("\n")
