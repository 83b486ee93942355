"""The Darwin half of Frida's script, run in a Linux process with a fake Darwin kernel.

The script and its C code are the real ones, compiled and run by Frida. The kernel calls are those
of ``programs/mach_kernel.c``, which counts forbidden calls. No Mac and no phone is involved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import TargetError, ThreadGoneError
from machtrace.model.address import Avma
from machtrace.model.stack import StopReason
from machtrace.targets.frida import script as frida_script
from machtrace.targets.frida.process import FridaTarget
from machtrace.targets.frida.spec import parse_spec
from machtrace.targets.frida.watched import WatchedFrida

FRAMES = 240
BALANCED = "suspended 0 ports 0 arrays 0 wrong 0"
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="its states are of x86_64")


@pytest.fixture
def kernel(build, start):
    """The process, a function that opens it, and the address of one of its async contexts."""
    pytest.importorskip("frida", reason="frida:// needs the extra 'frida'")
    process = start(build("mach_kernel", "-rdynamic"))
    context = int(process.stdout.readline(), 16)
    source = (
        "Object.defineProperty(Process, 'platform', { value: 'darwin' });\n"
        + frida_script.agent_source()
    )

    def open_target(kind=FridaTarget):
        try:
            script = frida_script.FridaScript(parse_spec(f"frida://local/{process.pid}"), source)
        except TargetError as error:
            pytest.skip(f"Frida cannot attach here: {error}")
        return kind(script)

    return process, open_target, context


def counters(process, byte="x"):
    """Return the kernel's counters of what was done so far."""
    process.stdin.write(byte)
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_threads_are_suspended_copied_and_resumed(kernel):
    """Registers, whole stacks, names and queues; only permitted calls were made meanwhile."""
    process, open_target, _ = kernel
    with open_target() as target:
        began = time.monotonic_ns()
        copied = target.snapshot()
        took = time.monotonic_ns() - began
        infos = target.threads()
    assert counters(process) == BALANCED
    assert [(info.id, info.name, info.queue, info.is_main) for info in infos] == [
        (501, "main one", None, True),
        (502, None, "com.example.work", False),
        (503, "leaving", None, False),
    ]
    (problem,) = copied.problems
    assert problem.thread == 503
    assert isinstance(problem.error, ThreadGoneError)
    for place, thread in enumerate(copied.threads):
        assert thread.registers.pc == 0x200000000 + place
        assert thread.registers.sp == thread.registers.fp == thread.stack.start
        assert len(thread.stack.data) == 8 * 4096
        assert 0 < thread.stopped_for_ns < took
    first, _ = mt.unwind(copied)
    assert [info.address for info in first.addresses] == [
        0x200000000,
        *(0x100000000 + 16 * frame for frame in range(FRAMES)),
    ]
    # A zero ends the chain, but no image is there to show that nobody called its last frame.
    assert first.stop.reason is StopReason.NO_RULE


def test_async_contexts_are_copied_while_the_thread_is_suspended(kernel):
    """The stack points to them, and the unwinder needs them to continue."""
    _, open_target, context = kernel
    with open_target() as target:
        copied = target.snapshot()
    assert bytes(copied.memory.read(Avma(context + 8), 8)) == (0x300000010).to_bytes(8, "little")
    _, second = mt.unwind(copied)
    assert [address.address & ~0xF for address in second.addresses][-2:] == [
        0x300000010,
        0x300000020,
    ]


def test_a_failing_call_leaves_nothing_suspended(kernel):
    """The thread is reported with the kernel's reason; the other one is copied."""
    process, open_target, _ = kernel
    counters(process, "f")
    with open_target() as target:
        copied = target.snapshot()
    assert counters(process) == BALANCED
    errors = {problem.thread: str(problem.error) for problem in copied.problems}
    assert "KERN_INVALID_ARGUMENT" in errors[502]
    assert [thread.info.id for thread in copied.threads] == [501]


def test_no_byte_beyond_the_stack_limit_is_copied(kernel):
    process, open_target, _ = kernel
    with open_target() as target:
        copied = target.snapshot(stack_limit=4096)
    assert [len(thread.stack.data) for thread in copied.threads] == [4096, 4096]
    assert counters(process) == BALANCED


def test_the_main_run_loop_is_observed(kernel):
    """Busy since it woke, idle when it waits; times, memory; the observer is removed."""
    process, open_target, _ = kernel
    counters(process)
    with open_target(WatchedFrida) as target:
        assert counters(process, "o") == "added 1 invalid 0 released 0"
        assert target.missing == (
            "deadlocks and crashes are not watched: they cannot be read through Frida",
        )
        assert target.thread_ids() == (501, 502, 503)
        idle = target.poll_thread(501, with_status=False)
        assert (idle.busy_since_ns, idle.is_running, idle.task) == (0, False, 0)
        counters(process, "b")
        busy = target.poll_thread(501, with_status=False)
        again = target.poll_thread(501, with_status=False)
        # Three activities; the loop has been busy since the first.
        assert (busy.is_running, busy.task, busy.run_ns) == (True, 3, 3_000_500_000)
        assert idle.at_ns < busy.busy_since_ns <= busy.at_ns
        assert again.at_ns - again.busy_since_ns > busy.at_ns - busy.busy_since_ns
        other = target.poll_thread(502, with_status=False)
        assert (other.busy_since_ns, other.is_running) == (None, None)
        counters(process, "i")
        assert target.poll_thread(501, with_status=False).busy_since_ns == 0
        poll = target.process_polls().poll(with_threads=True)
        assert poll.resident == 77 << 20
        assert {thread: count.run_ns for thread, count in poll.threads.items()} == {
            501: 3_000_500_000,
            502: 3_000_520_000,
            503: 3_000_540_000,
        }
        assert poll.cpu_ns == sum(count.run_ns for count in poll.threads.values())
    assert counters(process, "o") == "added 1 invalid 1 released 1"
    counters(process, "b")  # the code of the script is not called any more
    assert counters(process) == BALANCED


@pytest.mark.parametrize(
    "triple", ["arm64-apple-ios15.0", "arm64e-apple-ios15.0", "x86_64-apple-macos13.0"]
)
def test_constants_equal_those_of_apples_headers(triple, tmp_path):
    """Flavours, counts and offsets in structures; and the code compiles for Apple's machines."""
    ziglang = pytest.importorskip("ziglang", reason="ziglang carries Apple's headers")
    root = Path(ziglang.__file__).parent / "lib"
    headers = [str(root / "include"), str(root / "libc/include/any-darwin-any")]
    checks = tmp_path / "checks.c"
    checks.write_text(
        "#include <stddef.h>\n#include <mach/mach.h>\n#include <mach/thread_info.h>\n"
        "#include <mach/vm_region.h>\n#include <mach/vm_statistics.h>\n"
        "#define IS(a, b) _Static_assert((a) == (b), #a)\n"
        "IS(THREAD_IDENTIFIER_INFO, 4); IS(THREAD_IDENTIFIER_INFO_COUNT, 6);\n"
        "IS(offsetof(thread_identifier_info_data_t, dispatch_qaddr), 16);\n"
        "IS(THREAD_EXTENDED_INFO, 5); IS(THREAD_EXTENDED_INFO_COUNT, 28);\n"
        "IS(offsetof(thread_extended_info_data_t, pth_name), 48); IS(MAXTHREADNAMESIZE, 64);\n"
        "IS(VM_REGION_EXTENDED_INFO, 13); IS(VM_REGION_EXTENDED_INFO_COUNT, 9);\n"
        "IS(offsetof(struct vm_region_extended_info, user_tag), 4);\n"
        "IS(VM_PROT_READ, 1); IS(VM_MEMORY_STACK, 30); IS(KERN_TERMINATED, 37);\n"
        "IS(KERN_INVALID_ARGUMENT, 4); IS(MACH_SEND_INVALID_DEST, 0x10000003);\n"
        "IS(THREAD_BASIC_INFO, 3); IS(THREAD_BASIC_INFO_COUNT, 10); IS(TH_STATE_RUNNING, 1);\n"
        "IS(offsetof(thread_basic_info_data_t, user_time), 0);\n"
        "IS(offsetof(thread_basic_info_data_t, system_time), 8);\n"
        "IS(offsetof(thread_basic_info_data_t, run_state), 24);\n"
        "IS(TASK_VM_INFO, 22); IS(offsetof(task_vm_info_data_t, phys_footprint), 144);\n"
        "#ifdef __aarch64__\nIS(ARM_THREAD_STATE64, 6); IS(ARM_THREAD_STATE64_COUNT, 68);\n"
        "#else\nIS(x86_THREAD_STATE64, 4); IS(x86_THREAD_STATE64_COUNT, 42);\n"
        "IS(offsetof(x86_thread_state64_t, __rsp), 56);\n"
        "IS(offsetof(x86_thread_state64_t, __r14), 112);\n#endif\n"
    )
    code = Path(frida_script.__file__).with_name("darwin.c")
    for source in (checks, code):
        command = [sys.executable, "-m", "ziglang", "clang", "-target", triple, "-std=c11"]
        command += [
            "-Wall",
            "-Werror",
            "-fsyntax-only",
            *(f"-isystem{header}" for header in headers),
        ]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), source.name
