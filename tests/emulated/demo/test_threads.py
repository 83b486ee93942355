"""Every thread of emulated:demo is at the documented address, with the documented callers."""

import struct

import capstone
import pytest

from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.targets.emulator.machine import SystemCall
from machtrace.targets.emulator.target import EmulatedTarget

STARTED = ["__pthread_start", "_thread_start"]
RUN_LOOP = ["___CFRunLoopRun", "_CFRunLoopRunSpecific"]
TAG = 1 << 60
FRAME_POINTER, LINK_REGISTER = 29, 30


def instruction(snapshot, address):
    """Return the instruction as assembly."""
    disassembler = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    code = bytes(snapshot.memory.read(Avma(address), 4))
    found = next(disassembler.disasm(code, address))
    return f"{found.mnemonic} {found.op_str}".strip()


def words(memory, address, count):
    """The ``count`` pointers at an address."""
    return struct.unpack(f"<{count}Q", memory.read(Avma(address), 8 * count))


def test_main_thread_is_the_view_controllers(threads, place, true_callers):
    """The chain of the tutorial, without the objc_msgSend that each of its calls went through."""
    assert place(threads["main"].registers.pc) == ("-[ViewController test2:b:]", 0x14)
    assert [
        "-[ViewController test1:]",
        "-[ViewController viewDidLoad]",
        "-[UIViewController loadViewIfRequired]",
        "__UIApplicationShowFirstScene",
        "___CFRUNLOOP_IS_CALLING_OUT_TO_A_SOURCE0_PERFORM_FUNCTION__",
        "___CFRunLoopDoSources0",
        *RUN_LOOP,
        "_UIApplicationMain",
        "_main",
        "_start",
    ] == true_callers("main")


@pytest.mark.parametrize(
    ("thread", "function", "callers"),
    [
        ("com.machtrace.recursion", "_descend", ["_descend"] * 39 + ["_recurse"]),
        ("com.machtrace.leaf", "_checksum", ["_verify", "_sum"]),
        ("com.machtrace.prologue", "_decode", ["_decode_all", "_enter"]),
        ("com.machtrace.epilogue", "_decode", ["_decode_all", "_leave"]),
        (
            "com.machtrace.network",
            "_mach_msg_trap",
            ["_mach_msg", "___CFRunLoopServiceMachPort", *RUN_LOOP, "_receive"],
        ),
        (
            "com.machtrace.async",
            "_decodePixels",
            [
                "_downloadImage_resume",
                "_swift_job_run",
                "__dispatch_worker_thread",
                "_serve_tasks",
            ],
        ),
        ("com.machtrace.render", "_render", ["_draw"]),
        ("com.machtrace.messages", "_objc_msgSend", ["-[Mailbox drain:]", "_deliver_messages"]),
        ("com.machtrace.signed", "_authenticate", ["_unlock", "_serve_signed"]),
    ],
)
def test_thread_was_called_as_its_source_says(
    threads, place, true_callers, thread, function, callers
):
    """Names from the source, truth from the calls that were watched."""
    assert function == place(threads[thread].registers.pc)[0]
    assert callers + STARTED == true_callers(thread)


def test_stalled_threads_have_a_stale_link_register(threads, place):
    """They called, and the call returned: lr points into the function that stands there."""
    for name in ("main", "com.machtrace.recursion", "com.machtrace.render"):
        registers = threads[name].registers
        assert place(registers.pc)[0] == place(registers.lr)[0]


def test_leaf_keeps_its_return_address_in_the_link_register_alone(snapshot, demo, threads):
    """Its stack has no frame record: the word at fp + 8 is its caller's return address."""
    leaf = threads["com.machtrace.leaf"]
    called_from, callers_caller, *_ = demo.true_stack(leaf.info.id)
    assert called_from == leaf.registers.lr
    assert callers_caller == words(leaf.stack, leaf.registers.fp, 2)[1]
    assert leaf.registers.sp < leaf.registers.fp
    assert instruction(snapshot, leaf.registers.pc).startswith("str x")


def test_prologue_has_moved_the_stack_pointer_and_nothing_else(snapshot, demo, threads):
    """One instruction has run; the next ones store fp and lr, and set fp."""
    thread = threads["com.machtrace.prologue"]
    pc = thread.registers.pc
    assert instruction(snapshot, pc - 4) == "stp x20, x19, [sp, #-0x20]!"
    assert instruction(snapshot, pc) == "stp x29, x30, [sp, #0x10]"
    assert instruction(snapshot, pc + 4) == "add x29, sp, #0x10"
    assert demo.true_stack(thread.info.id)[0] == thread.registers.lr


def test_epilogue_has_restored_the_frame_pointer_but_not_the_stack_pointer(snapshot, demo, threads):
    """The frame pointer is the caller's again, so its chain begins one caller too late."""
    thread = threads["com.machtrace.epilogue"]
    pc = thread.registers.pc
    assert instruction(snapshot, pc - 4) == "ldp x29, x30, [sp, #0x10]"
    assert instruction(snapshot, pc) == "ldp x20, x19, [sp], #0x20"
    called_from, callers_caller, *_ = demo.true_stack(thread.info.id)
    assert called_from == thread.registers.lr
    assert callers_caller == words(thread.stack, thread.registers.fp, 2)[1]


def test_blocked_thread_stands_behind_the_system_call(snapshot, threads):
    """As a thread in the kernel does: its pc is the instruction after svc."""
    registers = threads["com.machtrace.network"].registers
    assert instruction(snapshot, registers.pc - 4) == "svc #0x80"
    assert registers.get(16) == SystemCall.MACH_MSG_TRAP % (1 << 64)


def test_rendering_uses_every_register_that_calls_preserve(threads):
    """A walk that loses one of them cannot give it to a caller; the frame is of several pages."""
    thread = threads["com.machtrace.render"]
    preserved = [*range(19, 29), *range(72, 76)]
    values = [thread.registers.get(number) for number in preserved]
    assert len(preserved) == len({*values} - {0, None})
    assert len(thread.stack.data) > 20_000


def test_message_thread_is_inside_the_method_lookup(threads, place):
    """Where an Objective-C program is often found, under the method that sent the message."""
    registers = threads["com.machtrace.messages"].registers
    assert place(registers.pc)[0] == "_objc_msgSend"
    assert place(registers.lr)[0] == "-[Mailbox drain:]"


def test_return_addresses_are_signed(snapshot, demo, threads):
    """One in lr, not yet stored, and those in the frames of its callers."""
    thread = threads["com.machtrace.signed"]
    strip = snapshot.process.pointer_mask.strip
    stored = words(thread.stack, thread.registers.fp, 2)[1]
    for pointer, true in zip(
        (thread.registers.lr, stored), demo.true_stack(thread.info.id), strict=False
    ):
        assert pointer != true
        assert strip(pointer) == true


def test_async_frame_says_that_it_is_one_and_holds_its_context(snapshot, threads, place):
    """Bit 60 of the stored frame pointer; below it, contexts that lead to the task's end."""
    thread = threads["com.machtrace.async"]
    # decodePixels has no frame, so fp is downloadImage_resume's.
    record = thread.registers.fp
    assert words(thread.stack, record, 1)[0] >> 60 == 1
    (context,) = words(thread.stack, record - 8, 1)
    resumed = []
    while context:
        context, resume = words(snapshot.memory, context, 2)
        if resume:
            resumed.append(place(resume))
    assert resumed == [
        ("_loadFeed_resume", 0),
        ("_refreshFeed_resume", 0),
        ("_completeTask", 0),
    ]


def test_outermost_frames_end_the_chain(threads):
    """In every thread, following frame pointers leads to a record without a previous one."""
    for thread in threads.values():
        fp = thread.registers.fp
        for _ in range(60):
            fp, _ = words(thread.stack, fp & ~TAG, 2)
            if fp == 0:
                break
        assert fp == 0


def test_threads_are_listed_as_an_app_lists_them(demo):
    """The main thread is first and alone on the main queue; ids and numbers are different."""
    main, *others = demo.threads()
    assert (main.name, main.index, main.is_main) == ("main", 1, True)
    assert main.queue == "com.apple.main-thread"
    assert not any(thread.is_main or thread.crashed for thread in others)
    assert [*range(1, 11)] == [thread.index for thread in demo.threads()]
    assert len({thread.id for thread in demo.threads()}) == 10


def test_image_can_be_read_from_the_snapshots_memory(snapshot, demo):
    """Load commands and symbol table, for a walk and for names without the file."""
    (image,) = demo.images()
    contents = MachOMemoryContents(snapshot.memory, image.load_address, image.path)
    assert (image.uuid, Arch.ARM64) == (contents.image.uuid, contents.image.arch)
    symbols = parse_symbols(contents)
    assert "-[ViewController test2:b:]" in symbols.names()
    assert image.size == contents.image.text_segment.vmsize


def test_slide_moves_code_and_pointers_alike():
    """With any slide, the same functions are reached, at addresses that differ by it."""
    near, far = (
        EmulatedTarget("demo", slide=slide, record_calls=True) for slide in (0, 0x40000000)
    )
    for one, other in zip(near.snapshot().threads, far.snapshot().threads, strict=True):
        assert one.registers.pc + 0x40000000 == other.registers.pc
        assert [address + 0x40000000 for address in near.true_stack(one.info.id)] == [
            *far.true_stack(other.info.id)
        ]


def test_runs_are_alike(snapshot):
    """Registers and stacks of another process, whose calls are not watched, are the same."""
    with EmulatedTarget("demo") as again:
        assert [(t.info, t.registers, t.stack) for t in snapshot.threads] == [
            (t.info, t.registers, t.stack) for t in again.snapshot().threads
        ]
