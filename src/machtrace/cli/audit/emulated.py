"""Calls of the emulated app, recorded by breakpoints at what the rules watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.addresses import AddressFinder
from machtrace.audit.observed.live_calls import MISSING, LoadedImage, StackCollector, live_calls
from machtrace.audit.observed.recording import Recording, RecordingBuilder
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import CallFlag, Consent, Process
from machtrace.errors import RulesError, TargetSpecError
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma
from machtrace.targets.emulator import AUDITED_APP
from machtrace.targets.emulator.audited import (
    BACKGROUND,
    CONSENT,
    SPEC,
    AuditedApp,
    EmulatedCall,
)
from machtrace.targets.gdbremote.breakpoints import CallStop
from machtrace.targets.gdbremote.call_stacks import CallStacks
from machtrace.unwinder.unwinder import Unwinder

if TYPE_CHECKING:
    from machtrace.cli.audit.run import LiveOptions


def record_calls(spec: str, rules: RuleSet, live: LiveOptions) -> Recording:
    """Return the calls of the emulated app, from its start on.

    Times are by the emulated clock. The app's own consent is recorded with each call, unless
    another moment is passed.

    Raises:
        TargetSpecError: there is no such app.
        RulesError: the moment of consent is none that can be observed there.
        MissingExtraError: the library that emulates is not installed.
    """
    from machtrace.audit.observed.consent import MarkerKind

    if spec != SPEC:
        raise TargetSpecError(f"emulated process {spec!r} does not exist", remedy=f"pass {SPEC}")
    marker = live.marker
    if marker is not None and marker.kind in (MarkerKind.LOG, MarkerKind.MARK, MarkerKind.KEY):
        raise RulesError(
            f"the emulated app has no {marker.kind.value}",
            remedy="pass call:FUNCTION, at:1.5s or never; or nothing, for the app's own consent",
        )
    app = AuditedApp()
    files = ImageResolver.of((str(AUDITED_APP),))
    consent = CONSENT
    if marker is not None and marker.kind is MarkerKind.CALL:
        consent = marker.text
    watched = AddressFinder(rules, files, [CONSENT, BACKGROUND, consent]).find(app.images)
    undefined = {consent} - set(watched.watches.values())
    recorder = _Recorder(app, watched.watches, Unwinder(files), live.seconds)
    app.run(watched.watches, recorder.take)
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.array(values, np.int64) for name, values in recorder.columns.items()
    }
    tree, nodes = recorder.stacks.tree()
    columns["stack"] = nodes[columns["stack"]]
    program = next(image for image in app.images if image.path == app.path)
    known = {rule.watch for rule in rules.rules}
    builder = RecordingBuilder(rules)
    builder.add(
        live_calls(
            spec,
            Process(
                run=spec,
                app=program.name,
                build="" if program.uuid is None else program.uuid.hex,
                started=0,
                from_start=True,
            ),
            rules,
            watches=tuple(recorder.numbers),
            images=[
                LoadedImage(
                    path=image.path,
                    uuid="" if image.uuid is None else image.uuid.hex,
                    start=image.load_address,
                    end=image.end,
                    is_program=image is program,
                )
                for image in app.images
            ],
            tree=tree,
            columns=columns,
            dead=[each for each in watched.dead if each.watch in known],
            problems=[f"{each}, which gives consent, is not defined there" for each in undefined],
        )
    )
    return builder.recording()


class _Recorder:
    """Collects calls, with the app's state at each."""

    def __init__(
        self, app: AuditedApp, watches: dict[Avma, str], unwinder: Unwinder, seconds: float
    ) -> None:
        self._watches = watches
        self._end_ns = seconds * 1e9
        self._walker = CallStacks(app.snapshot(), unwinder)
        self.stacks = StackCollector()
        self.numbers = {name: number for number, name in enumerate(dict.fromkeys(watches.values()))}
        names = ("time", "thread", "rule", "stack", "flags", "consent")
        self.columns: dict[str, list[int]] = {name: [] for name in names}
        self._consent, self._state = Consent.BEFORE, CallFlag.FOREGROUND

    def take(self, call: EmulatedCall) -> None:
        """Add a call, unless the recording has ended."""
        if call.time_ns > self._end_ns:
            return
        watch = self._watches[call.registers.pc]
        stack = self._walker.walk(
            CallStop(call.thread, call.time_ns, call.registers, (call.stack,))
        )
        addresses = stack.addresses if stack.is_whole else (*stack.addresses, MISSING)
        flags = self._state | (CallFlag.MAIN_THREAD if call.is_main else 0)
        row = {
            "time": call.time_ns,
            "thread": call.thread,
            "rule": self.numbers[watch],
            "stack": self.stacks.add(addresses),
            "flags": int(flags),
            "consent": int(self._consent),
        }
        for name, value in row.items():
            self.columns[name].append(value)
        if watch == CONSENT:
            self._consent = Consent.GRANTED
        if watch == BACKGROUND:
            self._state = CallFlag.BACKGROUND
