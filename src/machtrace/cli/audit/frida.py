"""Calls of a process that Frida reaches, recorded by the agent in it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.audit.observed.consent import MarkerKind
from machtrace.audit.observed.live_calls import ATTACHED_LATE
from machtrace.audit.observed.process_calls import process_calls, watched_functions
from machtrace.audit.observed.recording import Recording, RecordingBuilder
from machtrace.audit.rules import RuleKind, RuleSet
from machtrace.cli.console import is_quiet, print_message
from machtrace.cli.sample import ended_by_signal
from machtrace.errors import RulesError, TargetError, TargetSpecError
from machtrace.reports.spool.spool import Spool
from machtrace.targets.frida.recorder import FridaRecorder
from machtrace.targets.linux.agent import agent_library

if TYPE_CHECKING:
    from machtrace.cli.audit.run import LiveOptions

_LOOK = 0.2
"""Seconds between checks whether the process has ended."""
_INITIALISED = (
    "initialisers of libraries ran before Frida could load the agent: their calls are unknown; "
    "start the program with -- PROGRAM"
)
"""On Linux, Frida stops a program at its entry, which the loader calls last."""


def record_calls(spec: str, rules: RuleSet, live: LiveOptions) -> Recording:
    """Return the calls of a process until a signal requests the end, or the process has exited.

    Args:
        spec: a ``frida://`` target.
        rules: what is watched.
        live: how.

    Raises:
        RulesError: the moment of consent is none that can be observed there.
        MissingExtraError, TargetSpecError, TargetError, ConnectionLostError: see
            :func:`machtrace.open_target`.
    """
    marker = live.marker
    if marker is not None and marker.kind in (MarkerKind.LOG, MarkerKind.KEY):
        raise RulesError(
            f"{marker.kind.value} is not observed of a process that runs",
            remedy="pass call:FUNCTION, mark:TEXT, at:12.5s or never",
        )
    consent = None
    if marker is not None and marker.kind is MarkerKind.CALL:
        consent = marker.text
    with FridaRecorder(spec, spawn=live.spawn) as recorder, ended_by_signal() as is_ended:
        platform = recorder.platform
        functions = _functions(rules, platform)
        if consent is not None:
            functions = list(dict.fromkeys([*functions, consent]))
        recorder.start(functions, consent=consent, library=_library(recorder, live.library))
        if not is_quiet():
            print_message(f"recording process {recorder.pid}", hint="end it with Ctrl-C")
        deadline = time.monotonic() + live.seconds
        while not (is_ended() or recorder.has_ended or time.monotonic() >= deadline):
            time.sleep(_LOOK)
        data = recorder.stop()
    is_first = live.spawn and platform == "darwin"
    calls = process_calls(Spool.parse(data, spec), rules, from_start=is_first)
    if not is_first:
        calls = replace(
            calls,
            process=replace(calls.process, attached_late=not live.spawn),
            problems=(*calls.problems, f"{spec}: {_INITIALISED if live.spawn else ATTACHED_LATE}"),
        )
    builder = RecordingBuilder(rules)
    builder.add(calls)
    return builder.recording()


def _functions(rules: RuleSet, platform: str) -> list[str]:
    if platform == "darwin":
        kinds = (RuleKind.C, RuleKind.OBJC)
        return [rule.watch for rule in rules.rules if rule.kind in kinds]
    functions = list(watched_functions(rules))
    if not functions:
        raise TargetSpecError(
            "the rules watch no C function, and in processes of Linux these are watched alone",
            remedy="pass rules for C functions; methods are those of Apple's systems",
        )
    return functions


def _library(recorder: FridaRecorder, library: Path | None) -> Path | None:
    """Return the agent's path on the process's machine; None if the process must have it."""
    if library is not None:
        return library.resolve() if recorder.is_local else library
    if not recorder.is_local:
        return None
    with suppress(TargetError):
        return agent_library()
    return None
