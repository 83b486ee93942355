"""The C walk returns what the Python walk returns, for any memory."""

import struct
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import LayeredMemory, MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import FrameTrust, Stop, StopReason
from machtrace.unwinder.frame_limit import DEFAULT_LIMIT, FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    CfaPlus,
    Claims,
    ExpressionValue,
    InRegister,
    Lost,
    Objection,
    RegisterOffset,
    UnwindRule,
    frame_pointer_rule,
)
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.step_budget import WalkBudgets
from machtrace.unwinder.thread_walker import PythonWalker
from machtrace.unwinder.walker import walk
from tests.support.emulated.run import EmulatedRun
from tests.support.lab.policies import all_rules
from tests.support.writers.processes import synthetic_process

NativeWalker = pytest.importorskip(
    "machtrace.unwinder.native", reason="the extensions are not built"
).NativeWalker

CODE = 0x10000
CODE_SIZE = 0x400
STACK = 0x200000
HEAP = 0x400000
TAG = 1 << 60
WIDTH_47 = PacMask.of_width(47)


class ChosenRules:
    """A source with given rules, selected by the low bits of the address."""

    trust = FrameTrust.CFI
    claims = Claims.EVERYWHERE

    def __init__(self, rules):
        self._rules = rules

    def rule_for(self, lookup, /, *, interrupted):
        """See RuleSource."""
        return self._rules[((lookup + 7 >> 3) * 2 + interrupted) % len(self._rules)]


def process_rules(rules, arch):
    """Build rules with one image, at CODE; elsewhere only frame pointers are used."""
    image = BinaryImage(
        path="/program",
        uuid=None,
        arch=arch,
        format=ImageFormat.MACHO,
        load_address=Avma(CODE),
        header_svma=CODE,
        size=CODE_SIZE,
    )
    sources = ImageRules((ChosenRules(rules),), CODE)
    return RuleCache(ImageList([image]), arch, lambda _: sources)


def both(registers, stack, rules, mask, limit=DEFAULT_LIMIT, rest=()):
    """Walk in Python and in C, by separate rules."""
    memory = LayeredMemory((stack, *rest))
    expected = walk(registers, memory, rules(), mask, limit)
    native = NativeWalker(rules(), registers.arch, mask)
    info = ThreadInfo(id=ThreadId(1), index=1)
    thread = ThreadSnapshot(info=info, registers=registers, stack=stack)
    found = native.walk(thread, LayeredMemory(rest), limit)
    assert found == native.walk(thread, LayeredMemory(rest), limit), "warm as cold"
    return expected, found


class Maker:
    """Generates threads whose rules lead some way through their stacks, from a seed."""

    def __init__(self, seed):
        self.random = Random(seed)  # noqa: S311 (a test's choice)
        self.arch = self.random.choice(list(Arch))
        numbers = self.arch.registers
        self.registers = (*(n for n in numbers.callee_saved if n != numbers.sp), *range(4), 100)

    def one_in(self, count):
        """Return true once in ``count`` draws."""
        return not self.random.randrange(count)

    def offset(self):
        """Return an offset from a CFA or a register."""
        choose, size = self.random, self.arch.pointer_size
        if self.one_in(60):
            return choose.choice([choose.randint(-64, 64), 1 << 31, -(1 << 31), 1 << 40])
        return choose.randint(-4, 4) * size

    def recovery(self):
        """Return rules of any kind."""
        made = self.random.choice([AtCfa, AtCfa, AtCfa, CfaPlus, InRegister, Lost, None])
        if made is InRegister:
            return InRegister(self.random.choice(self.registers), self.offset())
        if made is Lost:
            return Lost()
        if made is None:
            place = self.random.choice([AtExpression, ExpressionValue])
            return place(b"\x23\x08")  # what was pushed, and 8
        return made(self.offset())

    def rule(self):
        """Return a rule, mostly one that leads to the next address on the stack; or none."""
        numbers, size = self.arch.registers, self.arch.pointer_size
        if self.one_in(12):
            return frame_pointer_rule(self.arch)
        if self.one_in(40):
            return None
        step = self.random.choice([1, 1, 2, 2, 3, 4, 4, 0, -1]) * size
        saved = [
            (numbers.sp if self.one_in(60) else self.random.choice(self.registers), self.recovery())
            for _ in range(self.random.choice([0, 0, 1, 1, 2, 5]))
        ]
        rule = UnwindRule(
            RegisterOffset(numbers.sp, step), AtCfa(self.random.choice([-1, -1, 0, 1]) * size)
        )
        if self.one_in(25):
            rule = replace(rule, return_address=self.recovery())
        if self.one_in(25):
            base = RegisterOffset(self.random.choice([numbers.fp, *self.registers]), self.offset())
            rule = replace(rule, cfa=self.random.choice([base, ExpressionValue(b"\x77\x10")]))
        return replace(rule, registers=tuple(saved), is_signal_frame=self.one_in(40))

    def word(self):
        """Return a word, mostly a code address; or one of a frame, or any."""
        choose = self.random
        if not self.one_in(6):
            return choose.randrange(CODE, CODE + CODE_SIZE, 8)
        place = choose.choice([STACK, STACK, HEAP]) + 8 * choose.randrange(64)
        return choose.choice(
            [place, place | TAG, place | 5 << 56, choose.randrange(0x2000), choose.getrandbits(64)]
        )

    def words(self, count):
        """Return words of memory."""
        size = self.arch.pointer_size
        words = [self.word() % (1 << 8 * size) for _ in range(count)]
        return struct.pack(f"<{count}{'Q' if size == 8 else 'I'}", *words)

    def start(self):
        """Return the registers of an interrupted function."""
        general = {self.random.choice(self.registers): self.word() for _ in range(3)}
        return RegisterSet.of(
            self.arch,
            pc=self.word(),
            sp=STACK + self.random.randrange(8) * self.arch.pointer_size,
            fp=STACK + self.random.randrange(0, 512, 8),
            lr=self.word(),
            general=general,
        )

    def thread(self, size=256):
        """Return rules, the stack, other memory, and registers."""
        rules = [self.rule() for _ in range(self.random.choice([2, 9, 30]))]
        stack = MemoryRegion(Avma(STACK), self.words(self.random.randrange(size)))
        return rules, stack, MemoryRegion(Avma(HEAP), self.words(64)), self.start()


@settings(deadline=None)  # other programs may have the processor
@given(
    seed=st.integers(0, (1 << 32) - 1),
    mask=st.sampled_from([WIDTH_47, WIDTH_47, PacMask(), PacMask.of_width(20)]),
    limit=st.sampled_from([FrameLimit(1), FrameLimit(2), FrameLimit(4, 1), DEFAULT_LIMIT]),
)
def test_any_rules_and_memory_give_the_same_walk(seed, mask, limit):
    """Addresses, trusts, kinds, gaps and stop reasons are the same, frame by frame."""
    maker = Maker(seed)
    rules, stack, heap, registers = maker.thread()

    expected, actual = both(
        registers, stack, lambda: process_rules(rules, maker.arch), mask, limit, (heap,)
    )

    assert actual == expected


@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_real_tables_and_damaged_stacks_give_the_same_walk(arch):
    """Stacks between images, whole, partly overwritten, and truncated."""
    process = synthetic_process(arch, threads=60, depth=40, signature=0x2B).snapshot
    chosen = Random(7)  # noqa: S311 (a test's choice)

    def rules():
        return RuleCache(
            process.images,
            arch,
            lambda image: image_rules(
                MachOMemoryContents(process.memory, image.load_address, image.path), arch
            ),
        )

    mask = process.process.pointer_mask
    native, python = NativeWalker(rules(), arch, mask), PythonWalker(rules(), mask)
    whole = 0
    for number, thread in enumerate(process.threads):
        stack = bytearray(thread.stack.data)
        for _ in range(number % 4):
            at = chosen.randrange(128, 1400)
            stack[at] ^= 1 << chosen.randrange(8)
        if number % 5 == 4:
            del stack[chosen.randrange(128, 1400) :]
        damaged = replace(thread, stack=replace(thread.stack, data=bytes(stack)))

        found = native.walk(damaged, process.memory, DEFAULT_LIMIT)

        assert found == python.walk(damaged, process.memory, DEFAULT_LIMIT)
        whole += len(found.addresses) == 40
    assert 12 <= whole < 60


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "optimisation", "arch"),
    [
        ("leaves", "-O2", Arch.ARM64),
        ("async", "-O2", Arch.ARM64),
        ("frames", "-O2 no fp", Arch.X86_64),
    ],
)
def test_emulated_programs_give_the_same_walk(lab_program, name, optimisation, arch):
    """In prologues, epilogues, and Swift's async code."""
    contents = lab_program(name, optimisation, arch=arch)
    rules = [all_rules(contents) for _ in range(2)]
    native, python = NativeWalker(rules[0], arch, WIDTH_47), PythonWalker(rules[1], WIDTH_47)
    seen = 0

    def visit(moment):
        nonlocal seen
        sp = moment.registers.sp
        stack = MemoryRegion(Avma(sp), bytes(moment.memory.read(sp, moment.callers[-1].sp - sp)))
        info = ThreadInfo(id=ThreadId(1), index=1)
        thread = ThreadSnapshot(info=info, registers=moment.registers, stack=stack)
        expected = python.walk(thread, moment.memory, DEFAULT_LIMIT)
        assert native.walk(thread, moment.memory, DEFAULT_LIMIT) == expected
        seen += 1

    EmulatedRun(contents).run(visit, limit=2_000_000, every=3)
    assert seen > 20, "the program ran"


@pytest.mark.parametrize(
    "limit", [FrameLimit(3), FrameLimit(48, 16), FrameLimit(5000, 64), FrameLimit(100_000)]
)
def test_a_deep_stack_gives_the_same_ends_and_count(limit):
    """For any number of threads at once."""
    count = 30_000
    records = b"".join(
        struct.pack("<QQ", STACK + 16 * (number + 1), CODE + 8 * (number % 100))
        for number in range(count)
    )
    stack = MemoryRegion(Avma(STACK), records + bytes(16))
    registers = RegisterSet.of(Arch.ARM64, pc=CODE, sp=STACK - 16, fp=STACK, lr=CODE + 8)
    rule = frame_pointer_rule(Arch.ARM64)

    expected, actual = both(
        registers, stack, lambda: process_rules([rule], Arch.ARM64), WIDTH_47, limit
    )

    assert actual == expected
    assert actual.depth == count + 1


def test_a_cycle_far_up_the_stack_is_detected_alike():
    """It returns to a frame beyond the remembered ones."""
    size = 1500
    forward = b"".join(
        struct.pack("<QQ", STACK + 16 * (number + 1), CODE + 8) for number in range(size)
    )
    back = struct.pack("<QQ", STACK + 16 * 1400, CODE + 8)
    stack = MemoryRegion(Avma(STACK), forward + back)
    registers = RegisterSet.of(Arch.X86_64, pc=CODE, sp=STACK, fp=STACK)
    rule = replace(frame_pointer_rule(Arch.X86_64))

    expected, found = both(registers, stack, lambda: process_rules([rule], Arch.X86_64), WIDTH_47)

    assert found == expected
    assert found.stop.reason is StopReason.NO_PROGRESS


class Expensive:
    """Frame-pointer rules; confirming the innermost frame takes most of a walk's steps."""

    trust = FrameTrust.COMPACT
    claims = Claims.AT_CALLS

    def __init__(self):
        self.budget = WalkBudgets().code
        self.asked = 0

    def draw_on(self, budgets):
        """See DrawsOnBudgets."""
        self.budget = budgets.code

    def rule_for(self, lookup, /, *, interrupted):  # noqa: ARG002 (the same everywhere)
        """See RuleSource."""
        self.asked += 1
        if interrupted:
            self.budget.spend(self.budget.limit * 3 // 4)
        return frame_pointer_rule(Arch.ARM64)


class CodeCheckStub:
    """A code check that contradicts every call."""

    trust = FrameTrust.PROLOGUE

    def objection(self, lookup, rule):  # noqa: ARG002 (the same everywhere)
        """See CallWitness."""
        return Objection(replace(rule, cfa=RegisterOffset(29, 32)), is_later=False)


def test_a_rule_whose_code_check_was_skipped_is_not_cached():
    """The first walk had no work left for it; the second has, and finds the dispute."""
    image = BinaryImage(
        path="/program",
        uuid=None,
        arch=Arch.ARM64,
        format=ImageFormat.MACHO,
        load_address=Avma(CODE),
        header_svma=CODE,
        size=CODE_SIZE,
    )

    sources = Expensive(), Expensive()

    def rules(source):
        return RuleCache(
            ImageList([image]), Arch.ARM64, lambda _: ImageRules((source,), CODE, CodeCheckStub())
        )

    records = [(STACK + 16 * (n + 1) if n < 3 else 0, CODE + 0x20 * (n + 1)) for n in range(4)]
    data = b"".join(struct.pack("<2Q", *record) for record in records)
    values = [None] * 33
    values[29], values[31] = STACK, STACK
    thread = ThreadSnapshot(
        info=ThreadInfo(id=ThreadId(1), index=1),
        registers=RegisterSet(Arch.ARM64, Avma(CODE + 8), tuple(values)),
        stack=MemoryRegion(Avma(STACK), data),
    )
    exact, native = (rules(source) for source in sources)
    walkers = PythonWalker(exact, WIDTH_47), NativeWalker(native, Arch.ARM64, WIDTH_47)
    for is_heard in (False, True):
        exact, found = (walker.walk(thread, LayeredMemory(()), DEFAULT_LIMIT) for walker in walkers)
        assert found == exact
        if not is_heard:
            assert sources[0].asked == sources[1].asked, "as much work, and so the same at its end"
        assert [bool(frame.disputed_by) for frame in exact.addresses[1:]] == [False] + [
            is_heard
        ] * (len(exact.addresses) - 2)


def test_a_known_dead_end_is_the_same_the_second_time():
    """Frames of generated code whose frame pointer is zero end the stack as incomplete."""
    stack = MemoryRegion(Avma(0x1000), struct.pack("<6Q", 0, 0, 0x1020, 0x3000, 0, 0x3100))
    start = RegisterSet.of(Arch.X86_64, pc=0x2000, sp=0x1000, fp=0x1010)
    thread = ThreadSnapshot(info=ThreadInfo(id=ThreadId(1), index=1), registers=start, stack=stack)
    results = []
    for walker_of in (
        lambda rules: PythonWalker(rules, PacMask()),
        lambda rules: NativeWalker(rules, Arch.X86_64, PacMask()),
    ):
        walker = walker_of(RuleCache(ImageList(), Arch.X86_64, lambda _: ImageRules()))
        results += [
            (walker.collect(thread, RegionMemory(), DEFAULT_LIMIT), walker.take()) for _ in range(3)
        ]
    assert results == results[:1] * len(results)
    assert results[0][0].stop == Stop(StopReason.NO_RULE, Avma(0x3100))
    assert results[0][0].frame_count == 3
