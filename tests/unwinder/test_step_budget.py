"""Worst cases of a walk, and their bound in counted steps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from machtrace.errors import DwarfError, MemoryReadError
from machtrace.formats.dwarf import expression
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.dwarf.frame_index import MIN_COMMONS, READ_ONE_BY_ONE, build_index
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules, InstructionSets
from machtrace.unwinder.arch.arm64.analysis import InstructionRules
from machtrace.unwinder.arch.arm64.registers import ENTRY, ENTRY_WITHOUT_VOLATILE
from machtrace.unwinder.arch.x86.analysis import X86InstructionRules
from machtrace.unwinder.arch.x86.registers import MODE_32
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
)
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import (
    AtCfa,
    CallSiteRules,
    Claims,
    ExpressionValue,
    RegisterOffset,
    RuleSource,
    UnwindRule,
)
from machtrace.unwinder.sources.cfi import CallFrameRules, IndexedSection, RegisterNumbering
from machtrace.unwinder.step_budget import (
    RESERVED_STEPS,
    WALK_STEPS,
    StepBudget,
    WalkBudgets,
)
from machtrace.unwinder.walker import walk

SLACK = WALK_STEPS // 4
"""The steps that one operation may take beyond the last."""
LR, SP = 30, 31
SUB_SP, ADD_SP, RET, NOP = 0xD10083FF, 0x910083FF, 0xD65F03C0, 0xD503201F


def _mixed(size: int, seed: int) -> list[Effect]:
    """Build saves, restores and jumps, so that many states meet at every instruction."""
    random = Random(seed)  # noqa: S311 (no secret)
    code: list[Effect] = [AddRegister(SP, SP, 9, 0, -1)]  # now every register may matter
    for at in range(1, size):
        register = random.randrange(31)
        code.append(
            random.choice(
                (
                    Store((register, 19), 8, SP, 8 * random.randrange(256)),
                    Load((register, None), 8, SP, 8 * random.randrange(256)),
                    AddConstant(register, random.choice((SP, 29)), 8 * random.randrange(64)),
                    AddConstant(SP, SP, 16 * random.choice((-1, 1))),
                    MoveRegister(register, random.randrange(32)),
                    SetConstant(register, random.getrandbits(32)),
                    Jump(4 * (random.randrange(size) - at), is_conditional=True),
                    Jump(4 * (random.randrange(size) - at), is_conditional=True),
                    IndirectJump(16),
                    Call(None),
                    Return(LR),
                )
            )
        )
    return code


@pytest.mark.parametrize("entry", [ENTRY, ENTRY_WITHOUT_VOLATILE], ids=["short", "long"])
@pytest.mark.parametrize("seed", [1, 2])
def test_states_that_meet_everywhere_are_bounded(entry: object, seed: int):
    """They once took seven seconds for eight thousand instructions."""
    budget = StepBudget()
    flow = Flow(_mixed(8000, seed), entry, budget=budget)  # type: ignore[arg-type]
    assert WALK_STEPS - budget.left <= WALK_STEPS + SLACK
    assert flow.is_complete == (not budget.is_used_up)


class _Code:
    """Bytes as code, in functions of one size."""

    source = "code"

    def __init__(self, code: bytes, size: int, address: int = 0x10000) -> None:
        self.code, self.size, self.address = code, size, address

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        start = address - self.address
        if start < 0 or size < 0 or start + size > len(self.code):
            raise MemoryReadError(address, size)
        return memoryview(self.code)[start : start + size]

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        raise MemoryReadError(offset, size)

    def function_at(self, address: Svma) -> tuple[Svma, Svma] | None:
        start = (address - self.address) // self.size * self.size + self.address
        if not self.address <= address < self.address + len(self.code):
            return None
        return Svma(start), Svma(min(start + self.size, self.address + len(self.code)))


def _random(size: int) -> bytes:
    return Random(5).randbytes(size)  # noqa: S311


def _calls(size: int, *, every: int) -> bytes:
    """Build x86 calls, each to another function, which continues without a return."""
    code = b""
    for at in range(0, size - 5, 5):
        target = (at * 37) // every * every % size
        code += b"\xe8" + struct.pack("<i", target - at - 5)
    return code + b"\x90" * (size - len(code))


NO_SETS = InstructionSets({})
X86_64_WORST = (b"\x90" * (1 << 18), _calls(1 << 17, every=64), _random(1 << 18))
ARM64_WORST = (
    _random(1 << 18),
    struct.pack("<I", NOP) * (1 << 16),
    b"".join(struct.pack("<I", 0x94000000 | (at * 61) % 65536) for at in range(1 << 16)),
)


@pytest.mark.parametrize("size", [64, 4096, 1 << 18])
@pytest.mark.parametrize("which", range(3))
def test_arbitrary_code_has_bounded_steps(which: int, size: int):
    """In functions of any size; a repeated query takes no more steps."""
    for build, worst in (
        (lambda code: X86InstructionRules(code, code.function_at), X86_64_WORST),
        (lambda code: X86InstructionRules(code, code.function_at, mode=MODE_32), X86_64_WORST),
        (
            lambda code: ArmInstructionRules(code, code.function_at, NO_SETS),
            X86_64_WORST,
        ),
        (
            lambda code: InstructionRules(
                code, code.function_at, [(code.address, code.address + len(code.code))]
            ),
            ARM64_WORST,
        ),
    ):
        code = _Code(worst[which], size)
        rules = build(code)
        budgets = WalkBudgets()
        rules.draw_on(budgets)
        for at in range(0, len(code.code), max(size, 4096)):
            rules.rule_for(Svma(code.address + at), interrupted=True)
        assert budgets.code.spent <= WALK_STEPS + RESERVED_STEPS + SLACK


class _Fixed:
    """The same rule at every address."""

    trust = FrameTrust.CFI
    claims = Claims.EVERYWHERE

    def __init__(self, rule: UnwindRule) -> None:
        self.rule = rule

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        del lookup, interrupted
        return self.rule


def _process(*sources: RuleSource, arch: Arch, address: int, size: int) -> RuleCache:
    image = BinaryImage(
        path="image",
        uuid=None,
        arch=arch,
        format=ImageFormat.MACHO,
        load_address=Avma(address),
        header_svma=Svma(address),
        size=size,
    )
    return RuleCache(ImageList([image]), arch, lambda _: ImageRules(sources, Svma(address)))


def test_expressions_of_a_whole_walk_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Each frame has endless ones for all its registers."""
    operations = 0
    read = expression.op.read_operation

    def counted(*arguments: object) -> object:
        nonlocal operations
        operations += 1
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(expression.op, "read_operation", counted)
    endless = ExpressionValue(b"\x31\x2f\xfc\xff")
    rule = UnwindRule(RegisterOffset(7, 16), AtCfa(-8), tuple((n, endless) for n in range(6)))
    stack = b"".join(struct.pack("<2Q", 0, 0x10008 + 16 * at) for at in range(2000))
    rules = _process(_Fixed(rule), arch=Arch.X86_64, address=0x10000, size=1 << 20)
    registers = RegisterSet.of(Arch.X86_64, pc=0x10000, sp=0x7000_0000, fp=0)
    memory = MemoryRegion(Avma(0x7000_0000), stack)
    for _ in range(2):
        operations = 0
        found = walk(registers, memory, rules, PacMask())
        assert len(found.addresses) == 512
        assert 0 < operations <= WALK_STEPS // expression.STEPS_AN_OPERATION + 16_000


def test_frames_in_expensive_functions_share_a_budget():
    """The next walk has its own budget, and caches the rest."""
    size = 1 << 12
    words = [SUB_SP, *[NOP] * (size // 4 - 3), ADD_SP, RET]
    code = _Code(struct.pack(f"<{len(words)}I", *words) * 800, size)
    analysis = InstructionRules(code, code.function_at)
    source = CallSiteRules(analysis)
    rules = _process(analysis, source, arch=Arch.ARM64, address=code.address, size=len(code.code))
    rules.begin_walk()
    answers = [
        rules.find(Avma(code.address + at + 64), interrupted=True)[1]
        for at in range(0, len(code.code), size)
    ]
    known = answers.count(FrameTrust.PROLOGUE)
    assert 0 < known < len(answers)
    assert rules.budgets.code.is_used_up
    assert rules.budgets.code.left >= -SLACK
    rules.begin_walk()
    again = [
        rules.find(Avma(code.address + at + 64), interrupted=True)[1]
        for at in range(0, len(code.code), size)
    ]
    assert known < again.count(FrameTrust.PROLOGUE)


def _section(data: bytes) -> CallFrameSection:
    return CallFrameSection(
        read=lambda offset, size: memoryview(data)[offset : offset + size],
        size=len(data),
        arch=Arch.X86_64,
        source="section",
    )


def _record(ident: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 4)
    return struct.pack("<2I", len(body) + 4, ident) + body


COMMON = _record(0, b"\x01zR\0\x01\x78\x10\x01\x00" + b"\x0c\x07\x08\x90\x01")


@pytest.mark.parametrize(
    "program",
    [
        b"\x0a\x0b" * 200_000,
        b"\x41" * 500_000,
        b"".join(bytes((0x05, n | 0x80, 1, 1)) for n in range(128)) + b"\x0a\x0b" * 150_000,
    ],
    ids=["remember", "advance", "remember-much"],
)
def test_call_frame_programs_without_end_are_not_run(program: bytes):
    """The rest of the section is not affected."""
    body = struct.pack("<2Q", 0x1000, 0x1000) + b"\0"
    data = COMMON + _record(len(COMMON) + 4, body + program)
    data += _record(len(data) + 4, struct.pack("<2Q", 0x9000, 0x10) + b"\0" + b"\x41\x0e\x10")
    indexed = IndexedSection(_section(data), RegisterNumbering(Arch.X86_64), build_index)
    rules = CallFrameRules(indexed)
    budgets = WalkBudgets()
    rules.draw_on(budgets)
    for _ in range(3):
        with pytest.raises(DwarfError):
            rules.rule_for(Svma(0x1FFF), interrupted=True)
        assert -2 * len(data) < budgets.tables.left
        budgets.refill()
    assert rules.rule_for(Svma(0x9008), interrupted=True) is not None


def _count(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], int]:
    from machtrace.formats.dwarf import frame_index

    calls = 0
    real = getattr(frame_index, name)

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr(frame_index, name, counted)
    return lambda: calls


def test_many_common_records_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Linkers write one for thousands of functions; the most used are read."""
    data = b""
    for at in range(20_000):
        start = len(data)
        data += COMMON
        body = struct.pack("<2Q", 0x1000 + 16 * at, 16) + b"\0"
        data += _record(len(data) + 4 - start, body)
    read = _count(monkeypatch, "read_common_information")
    index = build_index(_section(data))
    assert read() == len(index.starts) <= MIN_COMMONS + 20_000 // 64


def test_records_that_are_read_one_by_one_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Those with 64-bit lengths, and those with variable-length numbers."""
    wide = struct.pack("<IQI", 0xFFFFFFFF, 4, 0) * 50_000
    read = _count(monkeypatch, "read_record_header")
    assert build_index(_section(wide)).malformed_at is not None
    assert read() <= READ_ONE_BY_ONE
    common = _record(0, b"\x01zR\0\x01\x78\x10\x01\x01" + b"\x0c\x07\x08\x90\x01")
    data = common
    for _ in range(20_000):
        data += _record(len(data) + 4, b"\x10\x10\0\0")
    read = _count(monkeypatch, "read_frame_description")
    build_index(_section(data))
    assert read() <= READ_ONE_BY_ONE


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_a_truncated_last_instruction_has_no_rule(size: int):
    """Its last bytes are of no instruction, and have no rule."""
    code = _Code(struct.pack("<2I", NOP, RET)[:size], size)
    rules = InstructionRules(code, code.function_at)
    for at in range(size):
        rule = rules.rule_for(Svma(code.address + at), interrupted=True)
        assert (rule is not None) == (at < 4)


def test_an_exhausted_budget_leaves_ordinary_descriptions_in_tables():
    """A large function, or an endless description, does not cost the rest of the stack."""
    data = COMMON + _record(
        len(COMMON) + 4, struct.pack("<2Q", 0x9000, 0x10) + b"\0" + b"\x41\x0e\x10"
    )
    indexed = IndexedSection(_section(data), RegisterNumbering(Arch.X86_64), build_index)
    rules = CallFrameRules(indexed)
    budgets = WalkBudgets()
    rules.draw_on(budgets)
    budgets.code.left = budgets.tables.left = 0
    assert rules.rule_for(Svma(0x9008), interrupted=True) is not None


def test_a_large_function_takes_steps_in_proportion_to_its_size():
    """More than a walk has without the reserve."""
    branches = 7000
    words = [SUB_SP, *[0x34000040, NOP] * branches, ADD_SP, RET]  # cbz w0, .+8
    code = _Code(struct.pack(f"<{len(words)}I", *words), 4 * len(words))
    rules = InstructionRules(code, code.function_at)
    budgets = WalkBudgets()
    rules.draw_on(budgets)
    middle = Svma(code.address + 4 * branches)
    assert rules.rule_for(middle, interrupted=True) is not None
    assert budgets.code.spent > WALK_STEPS
    assert not budgets.code.is_used_up


@pytest.mark.parametrize("expression", [b"\x31\x2f\xfc\xff", b"\xff"], ids=["endless", "invalid"])
def test_an_expression_that_cannot_be_evaluated_gives_way_to_the_next_rule(expression: bytes):
    unusable = UnwindRule(ExpressionValue(expression), AtCfa(-8))
    usable = UnwindRule(RegisterOffset(7, 16), AtCfa(-8))
    sources = (_Fixed(unusable), _Fixed(usable))
    rules = _process(*sources, arch=Arch.X86_64, address=0x10000, size=1 << 20)
    registers = RegisterSet.of(Arch.X86_64, pc=0x10000, sp=0x7000_0000, fp=0)
    stack = MemoryRegion(Avma(0x7000_0000), struct.pack("<4Q", 0, 0x10008, 0, 0))
    walked = walk(registers, stack, rules, PacMask())
    assert [frame.address for frame in walked.addresses] == [0x10000, 0x10008]
