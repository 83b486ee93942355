"""How often each way of walking is wholly right: every instruction of real programs, scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import Stop
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.step import step
from tests.support.emulated.cpu import EmulatedCpu
from tests.support.emulated.run import EmulatedRun, Moment
from tests.support.lab.lldb import MomentRecorder
from tests.support.lab.policies import MASK, Policy, all_rules, policies

Addresses = tuple[Avma, ...]


@dataclass(slots=True)
class Score:
    """How one policy did on one program."""

    executed: int = 0
    right: int = 0
    wrong: Counter[int] = field(default_factory=Counter)
    """How often, by program counter."""
    examples: dict[int, tuple[Addresses, Addresses]] = field(default_factory=dict)
    """(found, true) addresses of the first failure at each program counter."""

    @property
    def percent(self) -> float:
        """The share of executed instructions with a wholly right stack."""
        return 100 * self.right / self.executed if self.executed else 0.0

    def add(self, walked: Addresses, *truths: Addresses) -> None:
        """Count one instruction, right if ``walked`` is one of the truths."""
        self.executed += 1
        if walked in truths:
            self.right += 1
            return
        pc = truths[0][0]
        self.wrong[pc] += 1
        self.examples.setdefault(pc, (walked, truths[0]))


@dataclass(slots=True)
class Result:
    """The result of a run."""

    scores: dict[str, Score]
    """By the policy's name."""
    bad_registers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(program counter, DWARF number) of values of the caller that the best policy got wrong."""
    lost_registers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The same for values that calls preserve, and that it reported as lost."""
    instructions: int = 0
    """Executed instructions."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a run, and the moments to compare; see :class:`EmulatedRun`."""

    patches: Mapping[int, bytes] = field(default_factory=dict)
    prepare: Callable[[EmulatedCpu], None] | None = None
    signals: Mapping[str, int] | None = None
    unpreserved: frozenset[int] = frozenset()
    """Registers, by DWARF number, that its calls do not preserve, though most do."""
    between: tuple[range, ...] = ()
    """Code that leaves one stack for another: both are right there."""
    every: int = 1
    each_place: bool = False
    limit: int = 400_000


ANY_PROGRAM = Conditions()


def run(
    contents: MachOFileContents,
    named: dict[str, Policy] | None = None,
    conditions: Conditions = ANY_PROGRAM,
    recorder: MomentRecorder | None = None,
) -> Result:
    """Run a program and score ``named`` policies (None: :func:`policies`) at each instruction.

    Args:
        contents: the program.
        named: the policies.
        conditions: the conditions of its run.
        recorder: stores moments for lldb.

    Raises:
        AssertionError: the program faulted or did not end.
    """
    chosen = policies(contents) if named is None else named
    judge = _Judge(contents, chosen, conditions, recorder)
    emulated = EmulatedRun(
        contents, conditions.patches, prepare=conditions.prepare, signals=conditions.signals
    )
    emulated.run(
        judge.visit,
        limit=conditions.limit,
        every=conditions.every,
        each_place=conditions.each_place,
    )
    judge.settle(None)
    judge.result.instructions = emulated.instructions
    return judge.result


class _Judge:
    """Compares what policies find with the truth."""

    def __init__(
        self,
        contents: MachOFileContents,
        chosen: dict[str, Policy],
        conditions: Conditions,
        recorder: MomentRecorder | None,
    ) -> None:
        self.result = Result({name: Score() for name in chosen})
        self._chosen = chosen
        self._rules: RuleCache = all_rules(contents)
        self._conditions = conditions
        self._recorder = recorder
        numbers = contents.image.arch.registers
        self._preserved = set(numbers.callee_saved) - conditions.unpreserved
        self._fp = numbers.fp
        self._waiting: list[tuple[list[Addresses], dict[str, Addresses]]] = []
        """True and walked stacks of moments between two stacks."""

    def visit(self, moment: Moment) -> bool:
        """Score a moment; whether the next block's must be shown, too."""
        truths = [moment.addresses]
        if self._recorder is not None and self._recorder.is_new(moment.registers.pc):
            self._recorder.keep(moment, truths)
        if any(moment.registers.pc in code for code in self._conditions.between):
            found = {name: policy(moment) for name, policy in self._chosen.items()}
            self._waiting.append((truths, found))
            return True
        if self._waiting:
            self.settle(truths[0])
        for name, policy in self._chosen.items():
            self.result.scores[name].add(policy(moment), *truths)
        self._check_registers(moment)
        return False

    def settle(self, after: Addresses | None) -> None:
        """Score moments between two stacks, now that ``after`` shows the new one."""
        for truths, found in self._waiting:
            if after is not None:
                truths.append((truths[0][0], *after))
            for name, addresses in found.items():
                self.result.scores[name].add(addresses, *truths)
        self._waiting.clear()

    def _check_registers(self, moment: Moment) -> None:
        """Compare the recovered registers of the caller with those at its call."""
        if not moment.callers:
            return
        pc, caller = moment.registers.pc, moment.callers[0]
        rule, _ = self._rules.find(pc, interrupted=True)
        caller_registers = step(rule, moment.registers, moment.memory, MASK)
        for number in self._wanted(caller.registers, is_interrupted=caller.is_interrupted):
            true = caller.registers.get(number)
            if true is None:
                continue
            value = None if isinstance(caller_registers, Stop) else caller_registers.get(number)
            if value is None:
                self.result.lost_registers[pc, number] += 1
            elif value != true and (number != self._fp or MASK.strip(value) != MASK.strip(true)):
                self.result.bad_registers[pc, number] += 1

    def _wanted(self, registers: RegisterSet, *, is_interrupted: bool) -> set[int]:
        """Return all general registers of what a signal interrupted."""
        if not is_interrupted:
            return self._preserved
        return {number for number in range(32) if registers.get(number) is not None}
