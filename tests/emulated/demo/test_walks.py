"""Walks of every thread of emulated:demo, held against the calls that were really made."""

import struct

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory
from machtrace.model.stack import AddressKind, FrameTrust, StopReason
from machtrace.model.symbol import Certainty
from machtrace.pipeline.backtraces import build_capture
from machtrace.unwinder.unwinder import unwind

THREADS = [
    "main",
    *(
        f"com.machtrace.{name}"
        for name in (
            "recursion",
            "leaf",
            "prologue",
            "epilogue",
            "network",
            "async",
            "render",
            "messages",
            "signed",
        )
    ),
]
HAVE_SAVED_LR = {"main", "com.machtrace.recursion", "com.machtrace.render"}
"""Those stand in a function that keeps its return address in its frame, after a call of its own."""
CONTINUATIONS = ["loadFeed_resume", "refreshFeed_resume", "completeTask"]


@pytest.fixture(scope="module")
def walks(snapshot):
    """By thread name."""
    return {walk.thread.info.name: walk for walk in unwind(snapshot)}


def frame_chain(thread, snapshot):
    """Return addresses by frame pointers alone, signatures and tags removed."""
    strip = snapshot.process.pointer_mask.strip
    memory = LayeredMemory((thread.stack, snapshot.memory))
    frame, addresses = strip(thread.registers.fp), []
    while frame and len(addresses) < 100:
        try:
            previous, address = struct.unpack("<2Q", memory.read(Avma(frame), 16))
        except MemoryReadError:
            break
        addresses.append(strip(address))
        frame = strip(previous)
    return addresses


def all_addresses(walk):
    """For the program's stack, and for the machine's if it differs."""
    rest = walk.physical_remainder
    return walk.addresses + (() if rest is None else rest.addresses)


def test_all_threads_are_walked(walks):
    """None is missing, none is there twice."""
    assert sorted(THREADS) == sorted(walks)


@pytest.mark.parametrize("thread", THREADS)
def test_walk_gives_the_calls_that_were_made(demo, walks, thread):
    """Every return address, in order, down to the thread's first function; nothing besides."""
    walk = walks[thread]
    machine = [
        found.address for found in all_addresses(walk) if found.kind is not AddressKind.ASYNC_RESUME
    ]
    assert [walk.thread.registers.pc, *demo.true_stack(walk.thread.info.id)] == machine
    assert StopReason.ROOT is walk.stop.reason


@pytest.mark.parametrize("thread", THREADS)
def test_nothing_is_guessed(walks, thread):
    """Each frame was found by tables or instructions; none is a guess."""
    walk = walks[thread]
    guessed = {FrameTrust.SCAN, FrameTrust.LINK_REGISTER}
    assert not guessed & {found.trust for found in all_addresses(walk)}


def test_async_continuations_follow_the_frame_that_runs(walks, place):
    """The addresses are the program's continuations; the worker's frames are separate."""
    walk = walks["com.machtrace.async"]
    kinds = [address.kind for address in walk.addresses]
    assert [
        AddressKind.PROGRAM_COUNTER,
        AddressKind.RETURN_ADDRESS,
        *[AddressKind.ASYNC_RESUME] * 3,
    ] == kinds
    assert [(f"_{name}", 0) for name in CONTINUATIONS] == [
        place(found.address) for found in walk.addresses[2:]
    ]
    assert place(walk.physical_remainder.addresses[0].address)[0] == "_swift_job_run"


@pytest.mark.parametrize("thread", THREADS)
def test_link_register_as_second_frame_invents_one_where_it_is_stale(
    demo, snapshot, threads, walks, thread
):
    """The tutorials' way: pc, lr, frame pointers (signatures removed, which they do not do).

    It is right where the return address is still in lr. Where the function has stored it, lr is
    the end of an earlier call: a frame that nobody made, and one that ours does not have.
    """
    chosen = threads[thread]
    true = demo.true_stack(chosen.info.id)
    strip = snapshot.process.pointer_mask.strip
    link = strip(chosen.registers.lr)
    theirs = [link, *frame_chain(chosen, snapshot)]
    if thread not in HAVE_SAVED_LR:
        assert [*true] == theirs
        return
    assert [link, *true] == theirs
    ours = [found.address for found in walks[thread].addresses[1:]]
    assert [*true] == ours


@pytest.mark.parametrize("thread", THREADS)
def test_frame_pointers_alone_lose_a_caller_where_there_is_no_frame(
    demo, snapshot, threads, thread
):
    """The other half of the choice: without lr, all threads but those three miss one."""
    chosen = threads[thread]
    true = demo.true_stack(chosen.info.id)
    missing = 0 if thread in HAVE_SAVED_LR else 1
    assert [*true[missing:]] == frame_chain(chosen, snapshot)


def test_frames_have_the_names_of_the_source(snapshot):
    """The main thread's as in the tutorial, and every thread's first function.

    thread_start ends with its call, so the return address is the first of objc_msgSend.
    """
    stacks = {stack.thread.name: stack for stack in build_capture(snapshot).stacks}
    names = {
        name: [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
        for name, stack in stacks.items()
    }
    assert names["main"][:3] == [
        "-[ViewController test2:b:]",
        "-[ViewController test1:]",
        "-[ViewController viewDidLoad]",
    ]
    assert names["main"][-2:] == ["main", "start"]
    assert ["decodePixels", "downloadImage_resume", *CONTINUATIONS] == names["com.machtrace.async"]
    for name in set(THREADS) - {"main", "com.machtrace.async"}:
        assert names[name][-2:] == ["_pthread_start", "thread_start"]
    assert {Certainty.EXACT} == {
        frame.certainty for stack in stacks.values() for frame in stack.frames
    }


def test_objc_msgsend_shows_only_where_a_thread_is_in_it(snapshot):
    """Four calls on the main thread's stack went through it. It is in one stack, innermost."""
    with_it = [
        (stack.thread.name, index)
        for stack in build_capture(snapshot).stacks
        for index, frame in enumerate(stack.frames)
        if frame.symbol is not None and frame.symbol.name == "objc_msgSend"
    ]
    assert with_it == [("com.machtrace.messages", 0)]
