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
    """Answers reads of memory that is zero from place to place, and knows of no regions."""

    def __init__(self, *mapped):
        self.mapped = mapped
        self.batches = 0
        self.asked = 0

    def ask_all(self, requests):
        """Replies, in one round trip."""
        self.batches += bool(requests)
        return [self.ask(request) for request in requests]

    def ask(self, request):
        """One reply."""
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
    """A reader of such a process, and its stub."""
    conversation = Conversation(*mapped)
    features = StubFeatures(packet_size=0x4000)
    memory = RemoteMemory(conversation, features)
    yield RemoteStackReader(conversation, memory, arch), conversation


@pytest.mark.parametrize("size", [64, 20_000, 1 << 20, 9 << 20])
def test_to_its_end(size):
    """Also for a deep one, and little more than the stack is requested."""
    base = 0x7000_0000
    with reading((base - (16 << 20), base)) as (reader, conversation):
        (stack,) = reader.read([base - size], 16 << 20)
    assert stack.start == base - size - 128
    assert stack.end == base
    assert conversation.asked <= size + (1 << 18) + (1 << 15)
    assert conversation.batches < 120


def test_limits():
    """The stack limit; and, where all memory is there, a limit for all stacks together."""
    everywhere = (0, 1 << 40)
    with reading(everywhere) as (reader, _):
        (stack,) = reader.read([0x7000_0000], 5 << 20)
        assert len(stack.data) == 5 << 20
        assert [len(one.data) for one in reader.read([0x7000_0000], 0)] == [0]
        stacks = reader.read([index << 28 for index in range(1, 41)], 16 << 20)
    sizes = [len(one.data) for one in stacks]
    assert sum(sizes) <= UNBOUNDED
    assert min(sizes) > 1 << 20


def test_many_shallow_ones_leave_room_for_a_deep_one():
    """Each takes what it has, and the deep one the rest."""
    shallow = [(index << 28, (index << 28) + 8192) for index in range(1, 400)]
    deep = (1 << 40, (1 << 40) + (8 << 20))
    with reading(*shallow, deep) as (reader, _):
        stacks = reader.read([start + 256 for start, _ in (*shallow, deep)], 16 << 20)
    assert [one.end for one in stacks] == [end for _, end in (*shallow, deep)]


def test_nothing_below_the_stack_pointer():
    """A stack that was used up is read, though the red zone before it is not there."""
    with reading((0x10000, 0x14000)) as (reader, _):
        (stack,) = reader.read([0x10000], 1 << 20)
    assert (stack.start, stack.end) == (0x10000, 0x14000)


@pytest.mark.parametrize("pointer", [0, 1, (1 << 64) - 8, (1 << 64) - 1])
def test_pointers_to_nothing(pointer):
    """Empty, and no endless reading."""
    with reading() as (reader, conversation):
        (stack,) = reader.read([pointer], 1 << 20)
    assert len(stack.data) == 0
    assert conversation.batches < 10
