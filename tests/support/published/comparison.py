"""Walks a moment as for a user, and compares every frame and its registers with the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, Walk
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.thread_walker import ThreadWalker
from machtrace.unwinder.unwinder import thread_walker
from machtrace.unwinder.walker import MachineFrame, machine_frames
from tests.support.lab.policies import MASK
from tests.support.published.execution import Execution
from tests.support.published.image import PublishedImage
from tests.support.published.machine import STACK, Machine
from tests.support.published.true_calls import Call

_LIMIT = FrameLimit(128)
_GUESSES = frozenset({FrameTrust.FRAME_POINTER, FrameTrust.LINK_REGISTER, FrameTrust.SCAN})
_THREAD = ThreadInfo(id=ThreadId(1), index=1, is_main=True)
_PLATFORM_REGISTER = 18
_SWIFT_REGISTERS = {True: (20, 21, 22), False: (12, 13, 14)}
"""Swift's registers of self, an error and the async context, which its calls need not preserve;
by whether the architecture is arm64."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one moment."""

    registers: RegisterSet
    stack: MemoryRegion
    truth: tuple[Avma, ...]
    walk: tuple[Avma, ...]
    methods: tuple[str, ...]
    stop: Stop
    frame: int | None
    """The number of the first wrong frame; None if the walk is the truth."""
    claims: bool
    wrong_registers: tuple[tuple[int, int], ...]
    """(frame number, DWARF number) of recovered values that the caller did not have."""
    lost_registers: tuple[int, ...]
    disagreement: str

    @property
    def is_exact(self) -> bool:
        """Whether the walk is the truth."""
        return self.frame is None and not self.disagreement


class Comparer:
    """Compares moments of one image."""

    def __init__(
        self, image: PublishedImage, new_rules: Callable[[], RuleCache] | None = None
    ) -> None:
        """``new_rules``: creates a rule cache; None for one with all that the image has."""
        self._arch = image.arch
        self._new_rules = new_rules or image.rules
        self._rules: RuleCache
        self._walker: ThreadWalker
        self.reset()
        numbers = image.arch.registers
        preserved = set() if image.is_go else set(numbers.callee_saved)
        preserved -= {numbers.sp, _PLATFORM_REGISTER if image.arch.is_arm64 else -1}
        if image.is_swift:
            preserved.difference_update(_SWIFT_REGISTERS[image.arch.is_arm64])
        self._preserved = tuple(sorted(preserved))
        self._fp = numbers.fp

    def reset(self) -> None:
        """Start with nothing cached, as for a user's first stack."""
        self._rules = self._new_rules()
        self._walker = thread_walker(self._rules, self._arch, MASK)

    def compare(self, machine: Machine, execution: Execution) -> Verdict | None:
        """Compare the present moment; None if the stack pointer left the stack."""
        raw = machine.cpu.raw_registers()
        registers = machine.cpu.register_set(raw)
        sp = registers.sp or 0
        if not STACK.start + 0x1000 <= sp < STACK.stop:
            return None
        registers = RegisterSet(registers.arch, Avma(execution.trace[-1]), registers.values)
        return self.judge(machine, registers, machine.stack(sp), execution.calls.calls)

    def judge(
        self, machine: Machine, registers: RegisterSet, stack: MemoryRegion, calls: list[Call]
    ) -> Verdict:
        """Compare a state with ``calls``, the outermost first."""
        thread = ThreadSnapshot(info=_THREAD, registers=registers, stack=stack)
        walk = self._walker.walk(thread, machine, _LIMIT)
        physical = list(_physical(walk))
        addresses = tuple(frame.address for frame in physical)
        truth = (registers.pc, *(call.return_address for call in reversed(calls)))
        memory = LayeredMemory((stack, machine))
        frames: list[MachineFrame] = []
        for frame in machine_frames(registers, memory, self._rules, MASK):
            if isinstance(frame, Stop) or len(frames) > len(truth) + 1:
                break
            frames.append(frame)
        wrong = _first_difference(truth, addresses)
        claims = False
        if wrong is not None:
            claims = (
                physical[wrong].trust not in _GUESSES
                if wrong < len(physical)
                else _stop_of(walk).is_complete
            )
        bad, lost = self._registers(machine, frames, calls)
        in_python = tuple(frame.address.address for frame in frames)
        disagreement = ""
        if in_python[: len(addresses)] != addresses[: len(in_python)]:
            disagreement = f"the walker in Python: {' '.join(map(hex, in_python))}"
        return Verdict(
            registers,
            stack,
            truth,
            addresses,
            tuple(frame.trust.value for frame in physical),
            _stop_of(walk),
            wrong,
            claims,
            bad,
            lost,
            disagreement,
        )

    def _registers(
        self, machine: Machine, frames: list[MachineFrame], calls: list[Call]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """Compare callee-saved registers of callers, up to the first wrong frame."""
        bad: list[tuple[int, int]] = []
        lost: list[int] = []
        index = {number: place for place, number in enumerate(machine.cpu.numbers, 1)}
        fp = self._fp
        for number, (frame, call) in enumerate(
            zip(frames[1:], reversed(calls), strict=False), start=1
        ):
            if frame.address.address != call.return_address:
                break
            if not call.is_conventional:
                break  # an outlined piece changes its caller's registers
            for register in self._preserved:
                true = call.registers[index[register]]
                value = frame.registers.get(register)
                if value is None:
                    lost.append(register)
                elif value != true and (register != fp or MASK.strip(value) != MASK.strip(true)):
                    bad.append((number, register))
        return tuple(bad), tuple(lost)


def _physical(walk: Walk) -> Iterator[FrameAddress]:
    """Yield the machine's frames, without the continuations of Swift's async functions."""
    for frame in walk.addresses:
        if frame.kind is not AddressKind.ASYNC_RESUME:
            yield frame
    if walk.physical_remainder is not None:
        yield from walk.physical_remainder.addresses


def _stop_of(walk: Walk) -> Stop:
    return walk.stop if walk.physical_remainder is None else walk.physical_remainder.stop


def _first_difference(truth: tuple[Avma, ...], walk: tuple[Avma, ...]) -> int | None:
    for number, (true, walked) in enumerate(zip(truth, walk, strict=False)):
        if true != walked:
            return number
    return None if len(truth) == len(walk) else min(len(truth), len(walk))
