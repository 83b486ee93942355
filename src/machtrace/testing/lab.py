"""How often each way of walking is wholly right: every instruction of real programs, scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from machtrace.errors import MemoryReadError
from machtrace.macho.contents import FileContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.stack import Stop
from machtrace.testing.emulated_run import EmulatedRun, Moment
from machtrace.unwinder.cfi import CallFrameRules
from machtrace.unwinder.compact import CompactRules
from machtrace.unwinder.image_rules import image_rules
from machtrace.unwinder.process_rules import ImageRules, ProcessRules
from machtrace.unwinder.step import step
from machtrace.unwinder.walker import walk

MASK = PacMask.of_width(47)
_LONGEST_STACK = 512

Policy = Callable[[Moment], tuple[Avma, ...]]
"""A way of walking: the addresses that it finds, innermost first."""


@dataclass(slots=True)
class Score:
    """How one policy did on one program."""

    executed: int = 0
    right: int = 0
    wrong: Counter[int] = field(default_factory=Counter)
    """How often, by program counter."""
    examples: dict[int, tuple[tuple[Avma, ...], tuple[Avma, ...]]] = field(default_factory=dict)
    """(found, true) addresses of the first failure at each program counter."""

    @property
    def percent(self) -> float:
        """The share of executed instructions with a wholly right stack."""
        return 100 * self.right / self.executed if self.executed else 0.0

    def add(self, found: tuple[Avma, ...], truth: tuple[Avma, ...]) -> None:
        """Count one instruction."""
        self.executed += 1
        if found == truth:
            self.right += 1
            return
        pc = truth[0]
        self.wrong[pc] += 1
        self.examples.setdefault(pc, (found, truth))


@dataclass(slots=True)
class Result:
    """What a run showed."""

    scores: dict[str, Score]
    """By the policy's name."""
    bad_registers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(program counter, DWARF number) of values of the caller that the best policy got wrong."""
    lost_registers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The same of values that calls preserve, and that it said it could not recover."""


def documents_policy(moment: Moment) -> tuple[Avma, ...]:
    """Pc, link register, then the chain of frame pointers: what BSBacktraceLogger does.

    Where there is no link register, pc and the chain.
    """
    registers, memory = moment.registers, moment.memory
    found = [registers.pc]
    if registers.lr:
        found.append(MASK.strip(registers.lr))
    fp = MASK.strip(registers.fp or 0)
    while fp and len(found) < _LONGEST_STACK:
        try:
            previous = int.from_bytes(memory.read(fp, 8), "little")
            address = int.from_bytes(memory.read(Avma(fp + 8), 8), "little")
        except MemoryReadError:
            break
        if not address:
            break
        found.append(MASK.strip(address))
        fp = MASK.strip(previous)
    return tuple(found)


def rules_policy(rules: ProcessRules) -> Policy:
    """The walk by ``rules``; of Swift's async functions the machine's frames, all of them."""

    def policy(moment: Moment) -> tuple[Avma, ...]:
        walked = walk(moment.registers, moment.memory, rules, MASK, _LONGEST_STACK)
        rest = walked.physical_remainder
        frames = walked.addresses + (() if rest is None else rest.addresses)
        return tuple(frame.address for frame in frames)

    return policy


def process_rules(contents: FileContents, rules: ImageRules) -> ProcessRules:
    """Rules of a process with this one image, where its file says that it lies."""
    parsed = contents.image
    text = parsed.text_segment
    assert text is not None  # noqa: S101 (an executable has one)
    image = BinaryImage(
        path=contents.source,
        uuid=parsed.uuid,
        arch=parsed.arch,
        format=ImageFormat.MACHO,
        load_address=Avma(text.vmaddr),
        header_svma=text.vmaddr,
        size=text.vmsize,
    )
    return ProcessRules(ImageList([image]), parsed.arch, lambda _: rules)


def policies(contents: FileContents) -> dict[str, Policy]:
    """The documents' algorithm, frame pointers, compact unwind with its DWARF, and all we have."""
    arch, header = contents.image.arch, contents.image.header_svma
    compact = CompactRules.of_macho(contents, arch, CallFrameRules.of_macho(contents))
    nothing = ImageRules((), header)
    only_compact = ImageRules((compact,), header) if compact else nothing
    return {
        "documents": documents_policy,
        "frame pointer": rules_policy(process_rules(contents, nothing)),
        "compact": rules_policy(process_rules(contents, only_compact)),
        "everything": rules_policy(process_rules(contents, image_rules(contents, arch))),
    }


def run(
    contents: FileContents,
    named: dict[str, Policy] | None = None,
    *,
    unpreserved: frozenset[int] = frozenset(),
) -> Result:
    """Run a program and score ``named`` policies (None: :func:`policies`) at each instruction.

    ``unpreserved`` are registers, by DWARF number, that its calls do not preserve, though most do.

    Raises:
        AssertionError: the program faulted or did not end.
    """
    chosen = policies(contents) if named is None else named
    result = Result({name: Score() for name in chosen})
    rules = process_rules(contents, image_rules(contents, contents.image.arch))

    def visit(moment: Moment) -> None:
        truth = moment.addresses
        for name, policy in chosen.items():
            result.scores[name].add(policy(moment), truth)
        _check_registers(moment, rules, result, unpreserved)

    EmulatedRun(contents).run(visit)
    return result


def _check_registers(
    moment: Moment, rules: ProcessRules, result: Result, unpreserved: frozenset[int]
) -> None:
    """Compare what the caller's registers are said to be with what they were at its call."""
    pc, caller = moment.registers.pc, moment.callers[0].registers
    rule, _ = rules.find(pc, interrupted=True)
    found = step(rule, moment.registers, moment.memory, MASK)
    numbers = caller.arch.registers
    for number in set(numbers.callee_saved) - unpreserved:
        true = caller.get(number)
        if true is None:
            continue
        value = None if isinstance(found, Stop) else found.get(number)
        if value is None:
            result.lost_registers[pc, number] += 1
        elif value != true and (number != numbers.fp or MASK.strip(value) != MASK.strip(true)):
            result.bad_registers[pc, number] += 1
