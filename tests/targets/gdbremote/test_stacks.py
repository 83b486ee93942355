"""How much of a stack is copied if the stub does not report its end."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.features import StubFeatures
from machtrace.targets.gdbremote.memory import RemoteMemory
from machtrace.targets.gdbremote.stacks import UNBOUNDED, RemoteStackReader

PAGE = 4096


class Conversation:
    """A fake stub whose memory is zero in some ranges, and which reports no regions."""

    def __init__(self, *mapped):
        self.mapped = mapped
        self.batches = 0
        self.asked = 0

    def ask_all(self, requests):
        """Return the replies of one round trip."""
        self.batches += bool(requests)
        return [self.ask(request) for request in requests]

    def ask(self, request):
        """Return one reply."""
        if not request.startswith(b"m"):
            return b""
        address, size = (int(word, 16) for word in request[1:].split(b","))
        self.asked += size
        for start, end in self.mapped:
            if start <= address < end:
                return b"00" * min(size, end - address)
        return b"E14"


@contextmanager
def reading(*mapped, arch=Arch.ARM64):
    """Build a reader of such a process, and its stub."""
    conversation = Conversation(*mapped)
    features = StubFeatures(packet_size=0x4000)
    memory = RemoteMemory(conversation, features)
    yield RemoteStackReader(conversation, memory, arch), conversation


@pytest.mark.parametrize("size", [64, 20_000, 1 << 20, 9 << 20])
def test_a_stack_is_read_to_its_end(size):
    """Also a deep one; little more than the stack is requested."""
    base = 0x7000_0000
    with reading((base - (16 << 20), base)) as (reader, conversation):
        (stack,) = reader.read([base - size], 16 << 20)
    assert stack.start == base - size - 128
    assert stack.end == base
    assert conversation.asked <= size + (1 << 18) + (1 << 15)
    assert conversation.batches < 120


def test_the_stack_limit_and_the_limit_for_all_stacks():
    """The second one applies if every address is readable."""
    everywhere = (0, 1 << 40)
    with reading(everywhere) as (reader, _):
        (stack,) = reader.read([0x7000_0000], 5 << 20)
        assert len(stack.data) == 5 << 20
        assert [len(one.data) for one in reader.read([0x7000_0000], 0)] == [0]
        stacks = reader.read([index << 28 for index in range(1, 41)], 16 << 20)
    sizes = [len(one.data) for one in stacks]
    assert sum(sizes) <= UNBOUNDED
    assert min(sizes) > 1 << 20


def test_many_shallow_stacks_leave_room_for_a_deep_one():
    shallow = [(index << 28, (index << 28) + 8192) for index in range(1, 400)]
    deep = (1 << 40, (1 << 40) + (8 << 20))
    with reading(*shallow, deep) as (reader, _):
        stacks = reader.read([start + 256 for start, _ in (*shallow, deep)], 16 << 20)
    assert [stack.end for stack in stacks] == [end for _, end in (*shallow, deep)]


def test_a_stack_without_a_readable_red_zone_is_read():
    """The stack was used up."""
    with reading((0x10000, 0x14000)) as (reader, _):
        (stack,) = reader.read([0x10000], 1 << 20)
    assert (stack.start, stack.end) == (0x10000, 0x14000)


@pytest.mark.parametrize("pointer", [0, 1, (1 << 64) - 8, (1 << 64) - 1])
def test_an_invalid_stack_pointer_gives_an_empty_stack(pointer):
    """The reading ends."""
    with reading() as (reader, conversation):
        (stack,) = reader.read([pointer], 1 << 20)
    assert len(stack.data) == 0
    assert conversation.batches < 10
