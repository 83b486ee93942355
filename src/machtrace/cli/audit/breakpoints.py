"""Calls of a stub's process, recorded by breakpoints at what the rules watch."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.addresses import AddressFinder
from machtrace.audit.observed.consent import ConsentMarker, MarkerKind
from machtrace.audit.observed.live_calls import MISSING, LoadedImage, StackCollector, live_calls
from machtrace.audit.observed.process_calls import DeadWatch, ProcessCalls
from machtrace.audit.observed.recording import Recording, RecordingBuilder
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import CallFlag, Process
from machtrace.cli.sample import ended_by_signal
from machtrace.errors import (
    ConnectionLostError,
    RemoteProtocolError,
    RulesError,
    TargetGoneError,
)
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage
from machtrace.model.text import counted
from machtrace.targets.gdbremote.breakpoints import CallStop
from machtrace.targets.gdbremote.call_stacks import CallStacks
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.ios.target import DEVICE, DeviceTarget
from machtrace.unwinder.unwinder import Unwinder

if TYPE_CHECKING:
    from machtrace.cli.audit.run import LiveOptions

_LOADER = "_dl_debug_state"
"""The function that Linux's loaders call when the list of images has changed (``link.h``)."""
_WALL_ERROR = 1_000_000


def record_calls(spec: str, rules: RuleSet, live: LiveOptions) -> Recording:
    """Return the calls of a process until a signal requests the end, or the process has exited.

    Args:
        spec: a ``gdb://`` or ``device://`` target.
        rules: what is watched.
        live: how.

    Raises:
        RulesError: the moment of consent is none that can be observed there.
        TargetSpecError, TargetError, ConnectionLostError, RemoteProtocolError, DeviceError: see
            :func:`machtrace.open_target`.
    """
    marker = live.marker
    if marker is not None and marker.kind in (MarkerKind.LOG, MarkerKind.MARK):
        raise RulesError(
            f"breakpoints do not observe {marker.kind.value}:{marker.text}",
            remedy="pass call:FUNCTION, at:12.5s, key or never",
        )
    with _opened(spec) as target, ended_by_signal() as is_ended:
        recorder = _Recorder(target, rules, marker, ImageResolver.of(live.search), quick=live.quick)
        recorder.watch()
        deadline = time.monotonic() + live.seconds
        recorder.run(lambda: is_ended() or time.monotonic() >= deadline)
        calls = recorder.calls(spec)
    builder = RecordingBuilder(rules)
    builder.add(calls)
    return builder.recording()


@contextmanager
def _opened(spec: str) -> Iterator[GdbRemoteTarget]:
    if spec.startswith(DEVICE):
        with DeviceTarget(spec) as device:
            yield device.stub
    else:
        with GdbRemoteTarget(spec) as target:
            yield target


class _Recorder:
    def __init__(
        self,
        target: GdbRemoteTarget,
        rules: RuleSet,
        marker: ConsentMarker | None,
        files: ImageResolver,
        *,
        quick: bool,
    ) -> None:
        self._target, self._rules = target, rules
        self._consent = ""
        if marker is not None and marker.kind is MarkerKind.CALL:
            self._consent = marker.text
        more = [self._consent] if self._consent else []
        self._finder = AddressFinder(rules, files, [*more, _LOADER])
        self._unwinder = Unwinder(files)
        snapshot = target.images()
        self._stacks = CallStacks(snapshot, self._unwinder)
        self._breakpoints = target.breakpoints(stack_bytes=self._stacks.window, waits=not quick)
        self._images: dict[int, BinaryImage] = {}
        self._watches: dict[Avma, str] = {}
        self._numbers: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._dead: tuple[DeadWatch, ...] = ()
        self._collector = StackCollector()
        self._columns = {name: array("q") for name in ("time", "thread", "rule", "stack")}
        self._delivered: Counter[str] = Counter()
        self._cut = 0
        self._problems: list[str] = []
        self._started, self._wall = time.monotonic_ns(), time.time_ns()
        self._at_start = target.is_at_start
        self._key: list[int] = []
        if marker is not None and marker.kind is MarkerKind.KEY:
            threading.Thread(target=self._await_key, name="machtrace key", daemon=True).start()

    def _await_key(self) -> None:
        if sys.stdin.readline():
            self._key.append(time.monotonic_ns())

    def watch(self) -> None:
        """Set the breakpoints that the images have, while the process is stopped."""
        snapshot = self._target.images()
        self._stacks.use(snapshot, self._unwinder)
        self._images |= {image.load_address: image for image in snapshot.images}
        watched = self._target.read(lambda memory: self._finder.find(snapshot.images, memory))
        self._breakpoints.remove([each for each in self._watches if each not in watched.watches])
        loader = [address for address, watch in watched.watches.items() if watch == _LOADER]
        functions = [address for address, watch in watched.watches.items() if watch != _LOADER]
        errors = self._breakpoints.insert(functions)
        errors |= self._breakpoints.insert(loader, on_hit=self.watch)
        self._watches.update(watched.watches)
        for watch in watched.watches.values():
            self._numbers.setdefault(watch, len(self._numbers))
        for address, error in errors.items():
            self._refused[watched.watches[address]] = str(error)
        self._dead = watched.dead

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Record calls until the end, and remove the breakpoints."""
        try:
            self._breakpoints.run(self._take, should_stop=should_stop)
            self._breakpoints.remove_all()
        except TargetGoneError:
            return
        except (ConnectionLostError, RemoteProtocolError) as error:
            self._problems.append(f"the stub was lost, later calls are unknown: {error}")

    def _take(self, call: CallStop) -> int | None:
        stack = self._stacks.walk(call)
        if stack.needed is not None and call.has_more:
            return stack.needed
        watch = self._watches[call.registers.pc]
        addresses = stack.addresses if stack.is_whole else (*stack.addresses, MISSING)
        self._cut += not stack.is_whole
        self._delivered[watch] += 1
        columns = self._columns
        columns["time"].append(call.at_ns)
        columns["thread"].append(call.thread)
        columns["rule"].append(self._numbers[watch])
        columns["stack"].append(self._collector.add(addresses))
        return None

    # --- the result ---

    def calls(self, source: str) -> ProcessCalls:
        """Return what was recorded."""
        process = self._target.process
        program = next((i for i in self._images.values() if i.path == process.path), None)
        tree, nodes = self._collector.tree()
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.array(values, np.int64) for name, values in self._columns.items()
        }
        is_main = columns["thread"] == (process.pid or 0)
        columns["stack"] = nodes[columns["stack"]]
        return live_calls(
            source,
            Process(
                run=uuid4().hex,
                pid=process.pid or 0,
                app=process.path.rpartition("/")[2],
                build="" if program is None else _identifier(program),
                wall_offset=self._wall - self._started,
                wall_error=_WALL_ERROR,
                started=self._started,
                ended=time.monotonic_ns(),
                from_start=self._at_start,
                attached_late=not self._at_start,
            ),
            self._rules,
            watches=tuple(self._numbers),
            images=[
                LoadedImage(
                    path=image.path,
                    uuid=_identifier(image),
                    start=image.load_address,
                    end=image.end,
                    is_program=image is program,
                )
                for image in self._images.values()
            ],
            tree=tree,
            columns={**columns, "flags": np.where(is_main, int(CallFlag.MAIN_THREAD), 0)},
            dead=self._dead_rules(),
            marks=[(at, "consent") for at in self._key],
            problems=[*self._problems, *self._missing()],
            costs=self._costs(),
        )

    def _dead_rules(self) -> Iterator[DeadWatch]:
        known = {rule.watch for rule in self._rules.rules}
        yield from (each for each in self._dead if each.watch in known)
        for watch, reason in self._refused.items():
            yield DeadWatch(watch, reason, is_blind=True)

    def _hits(self) -> Counter[str]:
        hits: Counter[str] = Counter()
        for address, calls in self._breakpoints.calls.items():
            hits[self._watches[address]] += calls
        hits.pop(_LOADER, None)
        return hits

    def _missing(self) -> Iterator[str]:
        for watch, hits in self._hits().items():
            lost = hits - self._delivered[watch]
            if lost:
                yield f"{counted(lost, 'hit')} of {watch} came without registers or a stack"
        if self._consent and self._consent not in set(self._watches.values()):
            yield f"{self._consent}, which gives consent, is not defined there"

    def _costs(self) -> Iterator[str]:
        for watch, hits in sorted(self._hits().items()):
            if hits:
                yield f"{watch}: {counted(hits, 'hit')}, {self._delivered[watch]:,} delivered"
        if self._cut:
            yield f"{counted(self._cut, 'call')} without outer frames"
        stops = counted(self._breakpoints.stops, "stop")
        trips = counted(self._breakpoints.round_trips, "round trip")
        yield f"{stops} of the process, in {trips}; {self._breakpoints.steps:,} single steps"


def _identifier(image: BinaryImage) -> str:
    return "" if image.uuid is None else image.uuid.hex
