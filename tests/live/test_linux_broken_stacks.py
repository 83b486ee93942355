"""Overflowed stacks and wild calls, in cores, in signal handlers and by stubs, as in gdb."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

import machtrace as mt
from machtrace.cli.backtrace import Format, write_report
from machtrace.model.options import NameOptions
from machtrace.model.stack import AddressKind, FrameTrust, StopReason
from machtrace.model.symbol import FrameStatus
from machtrace.pipeline.backtraces import build_capture
from machtrace.symbolizer.symbolicator import SIGNAL_HANDLER_CALLED, Symbolicator
from tests.support.kernel_cores import kernel_core

OVERFLOWED = re.compile(r"the stack pointer is below the stack 0x[0-9a-f]+: the stack overflowed")
WILD = 0x1234567


def gdb_depth(program, core):
    """Return the number of frames that gdb finds, to the entry point."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed; it is the peer that reads the stack")
    command = [gdb, "-batch", "-nx", "-iex", "set debuginfod enabled off", program, core]
    command += ["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]
    done = subprocess.run([*command, "-ex", "bt -1"], capture_output=True, text=True, check=True)
    return 1 + int(re.findall(r"^#(\d+)", done.stdout, re.MULTILINE)[-1])


def names(stack):
    """Return the names of a stack's frames."""
    return [frame.symbol.name if frame.symbol else None for frame in stack.frames]


def stub(program, *words):
    """Start the program below gdbserver; return the process and the specification."""
    server = shutil.which("gdbserver")
    if server is None:
        pytest.skip("gdbserver is not installed; it is the stub")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "--once", f"127.0.0.1:{port}", program, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "Listening" in line:
            break
    return process, f"gdb://127.0.0.1:{port}?until=stop"


def test_the_core_of_an_overflowed_stack_is_whole(build, tmp_path):
    """The stack pointer is below the stack: every frame is present, and no problem reported."""
    program = build("broken_stacks")
    core, _ = kernel_core(program, tmp_path, "overflow")
    command = [sys.executable, "-m", "machtrace", "backtrace", core]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert OVERFLOWED.search(done.stdout)
    (stack,) = mt.backtraces(core)
    assert stack.stop.reason is StopReason.ROOT
    assert stack.depth == gdb_depth(program, core)
    assert names(stack)[:2] == ["overflow", "overflow"]
    assert names(stack)[-1] == "_start"


def test_a_handler_of_an_overflow_has_the_stack_that_overflowed(build, start):
    """The handler runs on an alternate stack; the interrupted one is copied from above its gap."""
    process = start(build("broken_stacks"), "overflow", "handled")
    (stack,) = mt.backtraces(process.pid)
    assert stack.stop.reason is StopReason.ROOT
    assert stack.depth > 1000
    assert stack.gap is not None
    first = names(stack)
    assert first[first.index("handle") + 1] in ("__restore_rt", SIGNAL_HANDLER_CALLED)
    assert first[first.index("handle") + 2] == "overflow"
    assert first[-1] == "_start"


@pytest.mark.parametrize("form", ["text", "lldb", "nsthread", "json"])
def test_a_trampoline_without_a_symbol_is_labelled(build, start, form, monkeypatch):
    """As in gdb: the function that a handler returns to was called by nobody."""
    process = start(build("broken_stacks"), "wild", "handled")
    bare = mt.snapshot(process.pid)
    monkeypatch.setattr(Symbolicator, "_name", lambda *_: (FrameStatus.MISSING_SYMBOL, None))
    capture = build_capture(bare, names=NameOptions(lines=False))
    sink = io.StringIO()
    write_report(capture, Format(form), sink)
    assert SIGNAL_HANDLER_CALLED in sink.getvalue()
    (stack,) = capture.stacks
    kinds = [frame.address.kind for frame in stack.frames]
    after = kinds.index(AddressKind.SIGNAL_TRAMPOLINE) + 1
    assert kinds[after] is AddressKind.PROGRAM_COUNTER


def test_a_stub_has_the_whole_overflowed_stack(build):
    """So does gdb://."""
    process, spec = stub(build("broken_stacks"), "overflow")
    with process:
        try:
            (stack,) = mt.backtraces(spec)
        finally:
            process.kill()
    assert stack.overflowed_stack is not None
    assert stack.stop.reason is StopReason.ROOT
    assert stack.depth > 1000


@pytest.mark.parametrize("address", [WILD, "data"])
def test_a_wild_call_has_its_caller(build, tmp_path, address):
    """The return address is what the call left, though no memory of the core has the code."""
    program = build("broken_stacks", "-no-pie")
    where = address
    if address == "data":  # in the image, and not executable
        listed = subprocess.run(["nm", program], capture_output=True, text=True, check=True)
        where = int(re.search(r"^(\w+) \w after_call$", listed.stdout, re.MULTILINE)[1], 16)
    core, _ = kernel_core(program, tmp_path, "wild", "", str(where))
    (stack,) = mt.backtraces(core)
    assert stack.frames[0].address.address == where
    assert names(stack)[1:3] == ["jump_away", "main"]
    trust = FrameTrust.SCAN if os.uname().machine == "x86_64" else FrameTrust.LINK_REGISTER
    assert stack.frames[1].address.trust is trust
    assert stack.stop.reason is StopReason.ROOT
    assert stack.depth == gdb_depth(program, core)


def test_a_handler_at_no_code_has_the_interrupted_stack(build, tmp_path):
    """The trampoline that the kernel left as its return address follows no call."""
    core, _ = kernel_core(build("broken_stacks"), tmp_path, "handler")
    (stack,) = mt.backtraces(core)
    assert stack.frames[0].address.address == WILD
    assert stack.frames[1].address.kind is AddressKind.SIGNAL_TRAMPOLINE
    assert stack.frames[1].address.trust is FrameTrust.PROLOGUE
    assert stack.frames[2].address.kind is AddressKind.PROGRAM_COUNTER
    assert "main" in names(stack)[3:]
    assert stack.stop.reason is StopReason.ROOT


def test_a_wild_call_has_its_caller_in_a_handler_and_by_a_stub(build, start):
    program = build("broken_stacks")
    process = start(program, "wild", "handled")
    (stack,) = mt.backtraces(process.pid)
    numbers = [frame.address.address for frame in stack.frames]
    assert names(stack)[numbers.index(WILD) + 1] == "jump_away"
    assert stack.stop.reason is StopReason.ROOT
    server, spec = stub(program, "wild")
    with server:
        try:
            (stack,) = mt.backtraces(spec)
        finally:
            server.kill()
    assert stack.frames[0].address.address == WILD
    assert names(stack)[1:3] == ["jump_away", "main"]
