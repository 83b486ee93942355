"""Stacks deeper than the limit: all frames are counted, and the retained ones are returned."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc

import pytest

from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import LayeredMemory, MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import FrameTrust, Gap, Stop, StopReason, stretches
from machtrace.pipeline.backtraces import build_capture
from machtrace.render import bs, json_document, lldb, nsthread, text
from machtrace.targets.open import open_target
from machtrace.unwinder import walker
from machtrace.unwinder.frame_limit import DEFAULT_LIMIT, FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import AtCfa, CfaPlus, Claims, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.unwinder import unwind
from machtrace.unwinder.walker import walk
from tests.support.writers.processes import synthetic_process

DEPTH = 300_000
CODE = 0x10_0000
IMAGE = BinaryImage(
    path="code",
    uuid=None,
    arch=Arch.ARM64,
    format=ImageFormat.MACHO,
    load_address=Avma(CODE),
    header_svma=Svma(CODE),
    size=0x1000,
)


class Rules:
    """The same rule at every address, and others at some."""

    trust = FrameTrust.CFI
    claims = Claims.EVERYWHERE

    def __init__(self, rule, others=()):
        self.rule = rule
        self.others = dict(others)

    def rule_for(self, lookup, /, *, interrupted):
        """See RuleSource."""
        del interrupted
        return self.others.get(lookup, self.rule)


def walked(rule, memory, limit=DEFAULT_LIMIT, others=(), **registers):
    """Walk in an image with ``rule`` at every address."""
    rules = ImageRules((Rules(rule, others),), Svma(CODE))
    start = RegisterSet.of(Arch.ARM64, **{"pc": CODE, "sp": 0, "fp": 0, "lr": 0} | registers)
    known = RuleCache(ImageList([IMAGE]), Arch.ARM64, lambda _: rules)
    return walk(start, memory, known, PacMask(), limit)


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def process(request):
    """One thread with a very deep stack of true calls."""
    return synthetic_process(request.param, threads=1, depth=DEPTH)


def test_both_ends_of_a_cores_deep_stack_are_true(process, tmp_path):
    """The walk reaches the root."""
    path = tmp_path / "deep.core"
    path.write_bytes(process.core())
    with open_target(path) as target:
        (backtrace,) = unwind(target.snapshot())
    (true,) = process.stacks.values()
    addresses = tuple(address.address for address in backtrace.addresses)

    assert backtrace.stop.is_complete
    assert backtrace.depth == DEPTH
    assert Gap(after=448, count=DEPTH - 512) == backtrace.gap
    assert true[:448] + true[-64:] == addresses


def test_memory_does_not_depend_on_the_depth():
    """Ten times as many frames take no more."""

    def most(depth):
        process = synthetic_process(threads=1, depth=depth)
        unwind(process.snapshot)
        tracemalloc.start()
        unwind(process.snapshot)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert most(20_000) < most(2_000) + 20_000


def test_an_explicit_limit_keeps_the_innermost_frames():
    """Like lldb's ``bt N``; the omitted frames are counted."""
    process = synthetic_process(threads=1, depth=90)
    (true,) = process.stacks.values()
    for limit in (1, 2, 3, 4, 64, 89, 90, 91, 512, 1000):
        (walked,) = unwind(process.snapshot, limit=limit)
        assert tuple(frame.address for frame in walked.addresses) == true[:limit]
        assert walked.depth == 90
        assert walked.stop.is_complete
        assert walked.gap == (Gap(after=limit, count=90 - limit) if limit < 90 else None)


def test_only_the_default_limit_keeps_both_ends():
    """A limit next to it retains the innermost frames."""
    process = synthetic_process(threads=1, depth=2000)
    (true,) = process.stacks.values()
    frames = {
        limit: tuple(frame.address for frame in unwind(process.snapshot, limit=limit)[0].addresses)
        for limit in (511, 512, 513)
    }

    assert frames[511] == true[:511]
    assert frames[512] == true[:448] + true[-64:]
    assert frames[513] == true[:513]


def test_frames_after_a_gap_keep_their_numbers():
    assert list(stretches("abc", None)) == [(0, "abc")]
    assert list(stretches("abc", Gap(after=2, count=7))) == [(0, "ab"), (9, "c")]
    with pytest.raises(ValueError, match="no gap"):
        Gap(after=1, count=0)


def test_every_format_states_the_number_of_omitted_frames():
    """Frame numbers continue after the gap."""
    result = build_capture(synthetic_process(threads=1, depth=2000).snapshot)
    written = {}
    for form in (text, lldb, nsthread, bs, json_document):
        sink = io.StringIO()
        form.write(result, sink)
        written[form] = sink.getvalue()
    left_out = 2000 - 512

    assert f"{left_out:,} frames in between" in written[text]
    assert f"... {left_out} frames not shown" in written[lldb]
    assert "frame #1999: " in written[lldb]
    lines = written[nsthread].splitlines()
    assert f"... {left_out} frames not shown" == lines[448]
    assert lines[-1].startswith("1999")
    assert f"... {left_out} frames not shown" in written[bs].splitlines()
    (thread,) = json.loads(written[json_document])["threads"]
    assert {"after": 448, "count": left_out} == thread["gap"]
    assert [*range(448), *range(1936, 2000)] == [frame["index"] for frame in thread["frames"]]


def test_a_short_cycle_ends_the_walk_at_once():
    """Three frames that call each other cyclically are three frames, and the first once more."""
    # Each has its return address and the caller's sp in memory, so the stack may go anywhere.
    rule = UnwindRule(RegisterOffset(31, 0), AtCfa(0), ((31, AtCfa(8)),))
    ring = [(0x10, CODE + 0x20), (0x20, CODE + 0x30), (0x00, CODE + 0x10)]
    memory = MemoryRegion(Avma(0), b"".join(struct.pack("<2Q", pc, sp) for sp, pc in ring))
    found = walked(rule, memory, pc=CODE + 0x10)

    assert Stop(StopReason.NO_PROGRESS, Avma(CODE + 0x20)) == found.stop
    assert len(found.addresses) == 4


def test_a_cycle_beyond_the_stored_states_ends_the_walk():
    """The first thousand frames are in order; the following cycle is detected, too."""
    rule = UnwindRule(RegisterOffset(31, 0), AtCfa(0), ((31, AtCfa(8)),))
    ring, lead = 50, 1000
    after = [*range(1, lead + ring), lead]
    memory = MemoryRegion(
        Avma(0), b"".join(struct.pack("<2Q", CODE + 4 + 4 * (to % 100), 16 * to) for to in after)
    )
    found = walked(rule, memory)

    assert StopReason.NO_PROGRESS is found.stop.reason
    assert lead + ring <= found.depth < 200_000


@pytest.mark.parametrize(
    "rule",
    [
        # The return address is a register's, which nothing changes, while the stack goes up.
        UnwindRule(RegisterOffset(31, 16), InRegister(19)),
        # It is always the same word, and the stack grows down without end.
        UnwindRule(RegisterOffset(31, 0), AtCfa(0), ((31, CfaPlus(-16)),)),
    ],
    ids=["up", "down"],
)
def test_no_walk_continues_without_reading_the_stack(rule):
    """Rules that give callers without reading memory, as no compiler writes them."""
    memory = MemoryRegion(Avma(0), struct.pack("<Q", CODE + 8) * (1 << 17))
    found = walked(rule, memory, sp=1 << 20 if rule.registers else 0, general={19: CODE + 8})

    assert found.stop.reason in {StopReason.DEPTH_LIMIT, StopReason.UNREADABLE}
    assert found.depth <= walker.IRREGULAR_STEPS + 2


def test_frames_are_counted_up_to_a_limit(monkeypatch):
    """Memory can be as large as an address space."""
    monkeypatch.setattr(walker, "FRAMES_PER_WALK", 5000)
    rule = UnwindRule(RegisterOffset(31, 16), AtCfa(-8))
    memory = MemoryRegion(Avma(0), struct.pack("<Q", CODE + 8) * (1 << 16))
    result = walked(rule, memory, limit=FrameLimit(10))

    assert StopReason.DEPTH_LIMIT is result.stop.reason
    assert result.depth == 5000
    assert len(result.addresses) == 10


def test_swift_continuations_are_limited_alike():
    """Asynchronous functions recurse as deep as others; both stacks have both ends."""
    tag, contexts, heap = 1 << 60, 1000, 0x10_0000
    chain = b"".join(
        struct.pack(
            "<2Q", heap + 16 * (number + 1) if number + 1 < contexts else 0, 0x5000 + number
        )
        for number in range(contexts)
    )
    frames = 600
    records = [(0x20 | tag, 0x3000)] + [(0x20 + 16 * n + 16, 0x4000 + n) for n in range(frames)]
    stack = struct.pack("<2Q", 0, heap) + b"".join(
        struct.pack("<2Q", *record) for record in records
    )
    memory = LayeredMemory(
        (MemoryRegion(Avma(0), stack + bytes(16)), MemoryRegion(Avma(heap), chain))
    )
    start = RegisterSet.of(Arch.ARM64, pc=0x2000, sp=0, fp=0x10, lr=0)
    rules = RuleCache(ImageList([IMAGE]), Arch.ARM64, lambda _: ImageRules())
    result = walk(start, memory, rules, PacMask.of_width(47), FrameLimit(75, 25))
    rest = result.physical_remainder

    assert rest is not None
    assert 100 == len(result.addresses) == len(rest.addresses)
    assert 1 + contexts == result.depth
    assert 0x5000 + contexts - 1 == result.addresses[-1].address
    assert 1 + frames == rest.depth
    assert rest.addresses[0].address == 0x3000
    assert result.stop.is_complete


def test_a_cycle_of_contexts_does_not_affect_the_native_stack():
    """An error on the heap does not affect the physical frames."""
    tag, heap = 1 << 60, 0x10_0000
    stack = struct.pack("<6Q", 0, heap, 0x20 | tag, 0x3000, 0, 0)
    memory = LayeredMemory(
        (
            MemoryRegion(Avma(0), stack),
            MemoryRegion(Avma(heap), struct.pack("<2Q", heap, 0x5000)),
        )
    )
    start = RegisterSet.of(Arch.ARM64, pc=0x2000, sp=0, fp=0x10, lr=0)
    rules = RuleCache(ImageList([IMAGE]), Arch.ARM64, lambda _: ImageRules())
    result = walk(start, memory, rules, PacMask.of_width(47))
    rest = result.physical_remainder

    assert StopReason.NO_PROGRESS is result.stop.reason
    assert [address.address for address in result.addresses] == [0x2000, 0x5000]
    assert rest is not None
    assert rest.stop.is_complete
