"""The walk, on small stacks."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import LayeredMemory, MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind, FrameTrust, Gap, StopReason
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import ImageRules, RuleCache
from machtrace.unwinder.rules import (
    AtCfa,
    Claims,
    InRegister,
    Lost,
    RegisterOffset,
    UnwindRule,
    frame_pointer_rule,
    link_register_rule,
)
from machtrace.unwinder.step import step
from machtrace.unwinder.walker import walk

RET1, RET2 = 0x1003FC000 + 0x100DC4, 0x1003FC000 + 0x12CA28
#        0  8  10 18 20    28    30 38 40    48    50 58 60 68 70 78
WORDS = (1, 2, 3, 4, 0x40, RET1, 5, 6, 0x70, RET2, 7, 8, 9, 10, 0, 0)
STACK = MemoryRegion(Avma(0), struct.pack("<16Q", *WORDS))
PC = 0x1003FC000 + 0x1292C0
WIDTH_47 = PacMask.of_width(47)
SIGNATURE = 0x5A << 56


def chain_rules(arch=Arch.ARM64):
    """Build rules of a Darwin process without its images' bytes: only frame pointers are used."""
    images = ImageList([image_at(0x7000_0000_0000, "program")])
    return RuleCache(images, arch, lambda _image: ImageRules())


def registers(**changed):
    """Build the registers of an interrupted arm64 function."""
    return RegisterSet.of(Arch.ARM64, **{"pc": PC, "sp": 0x10, "fp": 0x20, "lr": RET1} | changed)


def test_frame_pointer_chain_is_followed_to_its_root():
    """The stack on framehop's front page gives the addresses printed there."""
    walked = walk(registers(), STACK, chain_rules(), WIDTH_47)

    assert [found.address for found in walked.addresses] == [PC, RET1, RET2]
    assert [found.trust for found in walked.addresses] == [
        FrameTrust.CONTEXT,
        FrameTrust.FRAME_POINTER,
        FrameTrust.FRAME_POINTER,
    ]
    assert walked.stop.is_complete


def test_a_zero_that_only_the_frame_pointer_leads_to_is_no_root():
    """Unless the ABI reserves the register: elsewhere it may hold anything."""
    rules = RuleCache(ImageList(), Arch.ARM64, lambda _image: ImageRules())
    walked = walk(registers(), STACK, rules, WIDTH_47)

    assert [found.address for found in walked.addresses] == [PC, RET1, RET2]
    assert (walked.stop.reason, walked.stop.at) == (StopReason.NO_RULE, RET2)


def test_lookup_is_inside_the_call():
    """Only return addresses are moved, and only for lookups."""
    first, second, _ = walk(registers(), STACK, chain_rules(), WIDTH_47).addresses

    assert first.lookup == PC
    assert second.lookup == RET1 - 1
    assert second.address == RET1


def test_an_unreadable_word_ends_the_walk_with_its_address():
    """The frames before it are returned."""
    cut = MemoryRegion(Avma(0), STACK.data[:0x40])
    walked = walk(registers(), cut, chain_rules(), WIDTH_47)

    assert [found.address for found in walked.addresses] == [PC, RET1]
    assert (walked.stop.reason, walked.stop.at) == (StopReason.UNREADABLE, 0x48)


def test_signed_return_addresses_and_tagged_frame_pointers_are_stripped():
    """The mask applies to both."""
    signed = [SIGNATURE | word if word in {RET1, RET2, 0x40} else word for word in WORDS]
    memory = MemoryRegion(Avma(0), struct.pack("<16Q", *signed))
    walked = walk(registers(), memory, chain_rules(), WIDTH_47)

    assert [found.address for found in walked.addresses] == [PC, RET1, RET2]


def test_loop_and_backward_frames_end_the_walk():
    """A record that points to itself, or down the stack, is invalid."""
    loop = MemoryRegion(Avma(0), struct.pack("<4Q", 0, 0, 0x10, RET1) + STACK.data[0x20:])
    walked = walk(registers(sp=0, fp=0x10), loop, chain_rules(), WIDTH_47)
    assert StopReason.NO_PROGRESS is walked.stop.reason
    assert [frame.address for frame in walked.addresses] == [PC, RET1]

    down = struct.pack("<16Q", *(0x20 if word == 0x70 else word for word in WORDS))
    walked = walk(registers(), MemoryRegion(Avma(0), down), chain_rules(), WIDTH_47)
    assert StopReason.NO_PROGRESS is walked.stop.reason
    assert [frame.address for frame in walked.addresses] == [PC, RET1, RET2]


def test_misaligned_frame_pointer_ends_the_walk():
    walked = walk(registers(fp=0x23), STACK, chain_rules(), WIDTH_47)

    assert [found.address for found in walked.addresses] == [PC]
    assert StopReason.MISALIGNED is walked.stop.reason


def test_frames_beyond_the_limit_are_counted():
    """The stack's end is reached all the same."""
    walked = walk(registers(), STACK, chain_rules(), WIDTH_47, FrameLimit(2))

    assert [found.address for found in walked.addresses] == [PC, RET1]
    assert Gap(after=2, count=1) == walked.gap
    assert walked.stop.is_complete


def test_link_register_is_lost_after_one_step():
    """A caller's link register is unknown."""
    leaf = link_register_rule(Arch.ARM64)
    caller = step(leaf, registers(), STACK, WIDTH_47)
    assert isinstance(caller, RegisterSet)
    assert (caller.pc, caller.sp, caller.fp, caller.lr) == (RET1, 0x10, 0x20, None)

    again = step(leaf, caller, STACK, WIDTH_47)
    assert not isinstance(again, RegisterSet)
    assert StopReason.NO_RULE is again.reason


def test_signal_frame_recovers_every_register_and_its_address_is_a_program_counter():
    """The interrupted function may be a leaf: its link register is live."""
    rule = UnwindRule(RegisterOffset(31, 0x20), AtCfa(8), ((30, AtCfa(-8)),), is_signal_frame=True)
    caller = step(rule, registers(sp=0), STACK, WIDTH_47)
    assert isinstance(caller, RegisterSet)
    assert (caller.pc, rule.caller_kind) == (RET1, AddressKind.PROGRAM_COUNTER)
    assert caller.lr == 4


def test_the_root_has_no_caller():
    """An undefined return address, a zero one and a zero frame pointer all mark it."""
    for rule, changed in (
        (UnwindRule(RegisterOffset(31, 0), Lost()), {}),
        (link_register_rule(Arch.ARM64), {"lr": 0}),
        (frame_pointer_rule(Arch.ARM64), {"fp": 0}),
    ):
        stopped = step(rule, registers(**changed), STACK, WIDTH_47)
        assert not isinstance(stopped, RegisterSet)
        assert StopReason.ROOT is stopped.reason


def test_a_rule_prints_in_the_usual_notation():
    """A reader can check a rule against the disassembly."""
    rule = UnwindRule(RegisterOffset(29, 16), AtCfa(-8), ((29, AtCfa(-16)), (19, InRegister(3, 8))))

    assert str(rule) == "cfa = r29 + 16, pc = *(cfa - 8), r29 = *(cfa - 16), r19 = r3 + 8"


def test_swift_continuations_follow_the_first_async_frame():
    """Bit 60 in a saved frame pointer marks its function as async; its context is below it."""
    tag = 1 << 60
    stack = struct.pack(
        "<10Q",
        *(0, 0x200),  # 0x00: context pointer of the record at 0x10 is at 0x08
        *(0x30 | tag, RET1),  # 0x10: the async function's record
        *(0, 0),
        *(0x40, RET2),  # 0x30: the machine's caller
        *(0, 0),
    )
    heap = MemoryRegion(
        Avma(0x200), struct.pack("<4Q", 0x210, 0x1000_0000, 0, 0x2000_0000)
    )  # two contexts: {parent, resume}
    memory = LayeredMemory((MemoryRegion(Avma(0), stack), heap))
    walked = walk(registers(sp=0, fp=0x10), memory, chain_rules(), WIDTH_47)

    assert [(frame.address, frame.kind) for frame in walked.addresses] == [
        (PC, AddressKind.PROGRAM_COUNTER),
        (0x1000_0000, AddressKind.ASYNC_RESUME),
        (0x2000_0000, AddressKind.ASYNC_RESUME),
    ]
    rest = walked.physical_remainder
    assert [frame.address for frame in rest.addresses] == [RET1, RET2]
    assert rest.stop.is_complete
    assert walked.stop.is_complete


@given(
    data=st.binary(max_size=2048),
    sp=st.integers(0, 2048),
    fp=st.integers(0, 4096),
    arch=st.sampled_from(Arch),
)
def test_any_memory_ends_the_walk(data, sp, fp, arch):
    """No stack contents can make a walk cycle or raise."""
    start = RegisterSet.of(arch, pc=PC, sp=sp, fp=fp, lr=RET1)
    memory = MemoryRegion(Avma(0), data)
    walked = walk(start, memory, chain_rules(arch), WIDTH_47)

    assert len(walked.addresses) <= 1 + len(data) // 8


def test_a_call_of_a_null_pointer_has_its_caller():
    """No code ran: the return address is where the call put it."""
    caller = struct.pack("<Q", 0x3000) + STACK.data[8:]
    null = RegisterSet.of(Arch.X86_64, pc=0, sp=0, fp=0x20)
    walked = walk(null, MemoryRegion(Avma(0), caller), chain_rules(Arch.X86_64), PacMask())
    assert [found.address for found in walked.addresses] == [0, 0x3000, RET1, RET2]

    walked = walk(registers(pc=0, lr=RET2), STACK, chain_rules(), WIDTH_47)
    assert [found.address for found in walked.addresses] == [0, RET2, RET1, RET2]


def test_a_preceding_call_distinguishes_a_wild_call_from_generated_code():
    """Outside all images: a return address after ``call rax``, or after other bytes."""
    for before, second in ((b"\xff\xd0", 0x3000), (b"\x90\x90", RET1)):
        code = MemoryRegion(Avma(0x2FF0), b"\x90" * 14 + before)
        stack = MemoryRegion(Avma(0), struct.pack("<Q", 0x3000) + STACK.data[8:])
        wild = RegisterSet.of(Arch.X86_64, pc=0x41414141, sp=0, fp=0x20)
        walked = walk(wild, LayeredMemory((stack, code)), chain_rules(Arch.X86_64), PacMask())
        assert second == walked.addresses[1].address
        found = FrameTrust.SCAN if second == 0x3000 else FrameTrust.FRAME_POINTER
        assert found is walked.addresses[1].trust


def test_a_zero_frame_pointer_without_tables_is_not_a_root():
    """Code without tables may use the register for anything."""
    walked = walk(registers(fp=0), STACK, chain_rules(), WIDTH_47)

    assert StopReason.NO_RULE is walked.stop.reason


def test_an_integer_is_not_the_mark_of_an_async_function():
    """Code without frame pointers may have any value in it, also with the mark's bits."""
    for number in (0x1925_7876_7315_E0B7, 0x1925_7876_7315_E0B0, 0x1000_0000_0000_0031):
        saved = number.to_bytes(8, "little") + RET1.to_bytes(8, "little")
        memory = MemoryRegion(Avma(0), bytes(16) + saved + STACK.data[0x20:])
        walked = walk(registers(sp=0, fp=0x10), memory, chain_rules(), WIDTH_47)

        assert walked.physical_remainder is None


def image_at(address, name):
    """Build an image of which only the address is known."""
    return BinaryImage(
        path=name,
        uuid=None,
        arch=Arch.ARM64,
        format=ImageFormat.MACHO,
        load_address=Avma(address),
        header_svma=Svma(0),
        size=0x1000,
    )


def test_a_link_register_that_leads_out_of_the_image_is_the_caller():
    """The function has made no call and saved nothing yet."""
    images = ImageList([image_at(0x10_0000, "library"), image_at(0x20_0000, "program")])
    rules = RuleCache(images, Arch.ARM64, lambda _image: ImageRules())
    caller, stale = 0x20_0100, 0x10_0200

    walked = walk(registers(pc=0x10_0100, lr=caller), STACK, rules, WIDTH_47)
    assert [0x10_0100, caller, RET1, RET2] == [frame.address for frame in walked.addresses]
    assert FrameTrust.LINK_REGISTER is walked.addresses[1].trust

    # What an earlier call left is in the function itself, so in its image: it is not used.
    walked = walk(registers(pc=0x10_0100, lr=stale), STACK, rules, WIDTH_47)
    assert [frame.address for frame in walked.addresses] == [0x10_0100, RET1, RET2]

    # Nor is a value that the frame record has, too: the record has more registers.
    saved = struct.pack("<16Q", *(caller if word == RET1 else word for word in WORDS))
    again = MemoryRegion(Avma(0), saved)
    walked = walk(registers(pc=0x10_0100, lr=caller), again, rules, WIDTH_47)
    assert [0x10_0100, caller, RET2] == [frame.address for frame in walked.addresses]
    assert FrameTrust.FRAME_POINTER is walked.addresses[1].trust

    # Nor a pointer to code without a preceding call.
    nops = MemoryRegion(Avma(caller - 4), struct.pack("<I", 0xD503201F))
    memory = LayeredMemory((STACK, nops))
    walked = walk(registers(pc=0x10_0100, lr=caller), memory, rules, WIDTH_47)
    assert [frame.address for frame in walked.addresses] == [0x10_0100, RET1, RET2]


def test_the_walk_continues_from_a_return_address_in_no_image():
    """It may be generated code: the frame is returned, and its frame pointer is followed."""
    rules = RuleCache(
        ImageList([image_at(0x10_0000, "program")]), Arch.ARM64, lambda _image: ImageRules()
    )
    walked = walk(registers(pc=0x10_0100, lr=0), STACK, rules, WIDTH_47)
    assert [found.address for found in walked.addresses] == [0x10_0100, RET1, RET2]
    assert FrameTrust.FRAME_POINTER is walked.addresses[2].trust
    assert walked.stop.is_complete


def test_code_has_precedence_over_tables_for_interrupted_frames():
    """The code is in the file, and compact unwind in memory."""

    class Source:
        def __init__(self, trust, claims, offset):
            self.trust = trust
            self.claims = claims
            self.offset = offset

        def rule_for(self, _lookup, /, *, interrupted):
            """See RuleSource."""
            del interrupted
            return UnwindRule(RegisterOffset(31, self.offset), AtCfa(-8))

    in_memory = Source(FrameTrust.COMPACT, Claims.AT_CALLS, 32)
    in_file = Source(FrameTrust.PROLOGUE, Claims.EVERYWHERE, 16)
    image = BinaryImage(
        path="code",
        uuid=None,
        arch=Arch.ARM64,
        format=ImageFormat.MACHO,
        load_address=Avma(0x1000),
        header_svma=Svma(0),
        size=0x1000,
    )
    rules = RuleCache(ImageList([image]), Arch.ARM64, lambda _: ImageRules((in_memory, in_file)))
    assert rules.find(Avma(0x1100), interrupted=True)[1] is FrameTrust.PROLOGUE
    assert rules.find(Avma(0x1100), interrupted=False)[1] is FrameTrust.COMPACT
