"""Crashed programs: signal, code, address and registers, compared with gdb and lldb."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.targets.core.macho import open_corefile
from tests.support.kernel_cores import kernel_core

GDB = shutil.which("gdb")
LLDB = next(filter(None, map(shutil.which, ("lldb-19", "lldb"))), None)
FAULT_ADDRESS = re.compile(r" \(fault address: 0x[0-9a-f]+\)$")

CRASHES = {
    "unmapped": "SIGSEGV (SEGV_MAPERR) at 0x12345678: address not mapped to object",
    "null": "SIGSEGV (SEGV_MAPERR) at 0x10: address not mapped to object, near null",
    "readonly": r"SIGSEGV (SEGV_ACCERR) at 0x*: invalid permissions for mapped object, in faults + "
    "0x* of the file, mapped r-x",
    "overflow": "SIGSEGV (SEGV_ACCERR) at 0x*: invalid permissions for mapped object, in the guard "
    "pages of this thread's stack",
    "bus": "SIGBUS (BUS_ADRERR) at 0x*: illegal address",
    "abort": "SIGABRT (SI_TKILL): sent by process * of user *",
}
X86_CRASHES = {
    "noncanonical": "SIGSEGV (SI_KERNEL): invalid address, not stated by the processor",
    "divide": "SIGFPE (FPE_INTDIV) at 0x*: integer divide by zero",
    "illegal": "SIGILL (ILL_ILLOPN) at 0x*: illegal operand",
}
if os.uname().machine == "x86_64":
    CRASHES |= X86_CRASHES


def matches(text, pattern):
    """Return whether ``text`` is ``pattern``, in which an asterisk stands for a number."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[0-9a-f]+"), text) is not None


def backtrace(*words):
    """Run ``machtrace backtrace`` and return its standard output."""
    command = [sys.executable, "-m", "machtrace", "backtrace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def gdb_reads(program, core, *expressions):
    """Return the signal that gdb names, and the values of ``expressions``."""
    if GDB is None:
        pytest.skip("gdb is not installed; it is the peer that reads crashes")
    command = [GDB, "-batch", "-nx", "-iex", "set debuginfod enabled off", program, core]
    for expression in expressions:
        command += ["-ex", f"output/x {expression}", "-ex", "echo \\n"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    signal = re.search(r"^Program terminated with signal (\w+)", done.stdout, re.MULTILINE)
    values = re.findall(r"^0x[0-9a-f]+$", done.stdout, re.MULTILINE)
    return None if signal is None else signal[1], [int(value, 16) for value in values]


def lldb_reads(program, core):
    """Return the stop reason that lldb prints of the thread that it selects."""
    if LLDB is None:
        pytest.skip("lldb is not installed; it is the peer that reads crashes")
    command = [LLDB, "--no-lldbinit", "--batch", "-c", core, program, "-o", "thread list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return re.search(r"^\* thread .*stop reason = (.*)$", done.stdout, re.MULTILINE)[1]


@pytest.mark.parametrize("how", CRASHES)
def test_a_crash_is_stated_as_gdb_and_lldb_read_it(build, tmp_path, how):
    program = build("faults")
    core, number = kernel_core(program, tmp_path, how)
    with open_corefile(core) as target:
        (thread,) = (info for info in target.threads() if info.crashed)
    cause = thread.cause
    assert matches(str(cause), CRASHES[how])
    assert cause.signal_number == number
    signal, (code, address, sender) = gdb_reads(
        program,
        core,
        "$_siginfo.si_code",
        "(long)$_siginfo._sifields._sigfault.si_addr",
        "$_siginfo._sifields._kill.si_pid",
    )
    assert (signal, code) == (cause.signal, cause.code & 0xFFFFFFFF)
    assert cause.address in (address, None)
    assert cause.sender in (sender, None)
    # lldb 20 and later state the address in cores, too.
    theirs = FAULT_ADDRESS.sub("", lldb_reads(program, core))
    assert FAULT_ADDRESS.sub("", cause.lldb_text) == theirs


def test_an_overflow_of_the_main_stack_is_below_it(build, tmp_path):
    core, _ = kernel_core(build("faults"), tmp_path, "overflow", "main")
    with open_corefile(core) as target:
        (thread,) = (info for info in target.threads() if info.crashed)
    assert matches(
        str(thread.cause).replace(",", ""),
        "SIGSEGV (SEGV_MAPERR) at 0x*: address not mapped to object * bytes below this "
        "thread's stack",
    )


def test_the_outputs_show_cause_and_registers(build, tmp_path):
    """Registers are those of the crashed thread; ``--registers`` shows all threads'."""
    program = build("faults")
    core, _ = kernel_core(program, tmp_path)
    text = backtrace(core)
    assert text.splitlines()[0].endswith("  SIGSEGV (SEGV_MAPERR) in thread 1")
    assert text.splitlines()[3] == f"  {CRASHES['unmapped']}"
    name, count = ("rip", 19) if os.uname().machine == "x86_64" else ("pc", 34)
    assert len(re.findall(rf" {name}: 0x", text)) == 1
    assert len(re.findall(rf" {name}: 0x", backtrace(core, "--registers"))) == 3
    assert not re.search(rf" {name}: 0x", backtrace(core, "--no-registers"))
    threads = json.loads(backtrace(core, "--format", "json"))["threads"]
    crashed, *others = sorted(threads, key=lambda thread: not thread["crashed"])
    assert (crashed["cause"]["signal"], crashed["cause"]["address"]) == ("SIGSEGV", 0x12345678)
    assert all(not thread["crashed"] and thread["registers"] is None for thread in others)
    assert len(crashed["registers"]) >= count - 1
    _, values = gdb_reads(program, core, "$pc", "$sp")
    assert [crashed["registers"][key] for key in (name, "rsp" if name == "rip" else "sp")] == values
    lldb = backtrace(core, "--format", "lldb", "--thread", "crashed").splitlines()
    assert lldb[0].endswith(
        "stop reason = signal SIGSEGV: address not mapped to object (fault address: 0x12345678)"
    )


def test_crashed_threads_can_be_selected(build, tmp_path):
    """If no thread crashed, that is an error with a hint."""
    core, _ = kernel_core(build("faults"), tmp_path, "null")
    (stack,) = mt.backtraces(core, threads="crashed")
    assert stack.thread.crashed
    assert str(stack.cause) == CRASHES["null"]
    assert dict(stack.registers)["rip" if os.uname().machine == "x86_64" else "pc"] == (
        stack.frames[0].address.address
    )
    with pytest.raises(mt.errors.TargetSpecError, match="no thread crashed"):
        mt.backtraces("emulated:demo", threads="crashed")


def test_a_saved_core_retains_the_crash(build, tmp_path):
    """machtrace, gdb and lldb read from the small core what they read from the kernel's."""
    program = build("faults")
    core, _ = kernel_core(program, tmp_path, "overflow")
    small = tmp_path / "small"
    mt.save_snapshot(mt.snapshot(core), small)
    assert backtrace(small) == backtrace(core)
    read = ("$_siginfo.si_code", "(long)$_siginfo._sifields._sigfault.si_addr")
    assert gdb_reads(program, small, *read) == gdb_reads(program, core, *read)
    assert lldb_reads(program, small) == lldb_reads(program, core)


def test_a_core_of_gdb_states_the_signal_of_each_thread(build, tmp_path):
    """The crashed thread has the fault, the others the SIGSTOP by which gdb stopped them."""
    if GDB is None:
        pytest.skip("gdb is not installed; it writes the core")
    core = tmp_path / "gdb.core"
    command = [GDB, "-batch", "-nx", "-iex", "set debuginfod enabled off", build("faults")]
    command += ["-ex", "run unmapped", "-ex", f"gcore {core}"]
    subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if not core.exists():
        pytest.skip("gdb wrote no core")
    with open_corefile(core) as target:
        threads = target.threads()
    (crashed,) = (thread for thread in threads if thread.crashed)
    assert str(crashed.cause) == CRASHES["unmapped"]
    assert {t.cause.signal for t in threads if not t.crashed} == {"SIGSTOP"}
    assert "SIGSTOP" not in backtrace(core)
    assert backtrace(core, "--format", "lldb").count("stop reason = signal SIGSTOP") == 2


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="runs 32-bit x86 programs")
def test_a_32_bit_crash_has_a_32_bit_address(build, tmp_path):
    flags = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie")
    program = build("small_fault", *flags)
    core, _ = kernel_core(program, tmp_path)
    (stack,) = mt.backtraces(core, threads="crashed")
    assert str(stack.cause) == ("SIGSEGV (SEGV_MAPERR) at 0x80001234: address not mapped to object")
    _, values = gdb_reads(
        program, core, "(unsigned)$_siginfo._sifields._sigfault.si_addr", "$eflags"
    )
    assert values == [stack.cause.address, dict(stack.registers)["eflags"]]


def serve_gdb(port, *command):
    """Return the command of gdbserver for a program that it starts."""
    server = shutil.which("gdbserver")
    if server is None:
        pytest.skip("gdbserver is not installed; it is the stub")
    return [server, "--once", f"127.0.0.1:{port}", *command]


def serve_lldb(port, *command):
    """Return the command of lldb-server for a program that it starts."""
    server = next(filter(None, map(shutil.which, ("lldb-server-19", "lldb-server"))), None)
    if server is None:
        pytest.skip("lldb-server is not installed; it is the stub")
    return [server, "gdbserver", f"127.0.0.1:{port}", "--", *command]


@pytest.fixture
def stub(wait_until):
    """Start a stub with a program; return its port."""
    started = []

    def run(serve, *command):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen([*map(str, serve(port, *command))], **silent))
        table = Path("/proc/net/tcp")
        wait_until(lambda: f":{port:04X} 00000000:0000 0A" in table.read_text(), "it listens")
        return port

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", [how for how in CRASHES if how not in ("readonly", "overflow")])
@pytest.mark.parametrize("serve", [serve_gdb, serve_lldb], ids=["gdbserver", "lldb-server"])
def test_a_stub_s_process_states_the_signal_that_stopped_it(build, stub, serve, how):
    """Gdbserver sends gdb's numbers of signals, lldb-server Linux's: SIGBUS is 10 and 7."""
    port = stub(serve, build("faults"), how)
    stacks = mt.backtraces(f"gdb://127.0.0.1:{port}?until=stop")
    (crashed,) = (stack for stack in stacks if stack.thread.crashed)
    assert matches(str(crashed.cause), CRASHES[how])
    assert sum(stack.cause is not None for stack in stacks) == 1
    flags = "rflags" if os.uname().machine == "x86_64" else "cpsr"
    assert flags in dict(crashed.registers)


def test_lldb_prints_the_same_stop_reason_of_a_stub(build, stub):
    """With lldb-server lldb 19 prints the fault address, too."""
    if LLDB is None:
        pytest.skip("lldb is not installed; it is the peer")
    ports = [stub(serve_lldb, build("faults"), "unmapped") for _ in range(2)]
    command = [LLDB, "--no-lldbinit", "--batch", "-o", f"gdb-remote 127.0.0.1:{ports[0]}"]
    command += ["-o", "continue", "-k", "thread list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    theirs = re.findall(r"^\* thread .*stop reason = (signal.*)$", done.stdout, re.MULTILINE)
    ours = backtrace(f"gdb://127.0.0.1:{ports[1]}?until=stop", "--format", "lldb", "--limit", "1")
    assert re.search(r"^\* thread .*stop reason = (.*)$", ours, re.MULTILINE)[1] == theirs[-1]


def test_a_snapshot_of_a_stub_s_process_retains_the_crash(build, stub, tmp_path):
    """Gdb reads the signal from the saved core."""
    program = build("faults")
    port = stub(serve_gdb, program, "unmapped")
    core = tmp_path / "saved.core"
    mt.save_snapshot(mt.snapshot(f"gdb://127.0.0.1:{port}?until=stop"), core)
    (stack,) = mt.backtraces(core, threads="crashed")
    assert str(stack.cause) == CRASHES["unmapped"]
    signal, (address,) = gdb_reads(program, core, "(long)$_siginfo._sifields._sigfault.si_addr")
    assert (signal, address) == ("SIGSEGV", 0x12345678)


@pytest.mark.parametrize("form", ["apple", "ips"])
def test_a_core_is_written_as_a_crash_report(build, tmp_path, form):
    """It can be read again, with signal, address, registers and frames."""
    core, _ = kernel_core(build("faults"), tmp_path)
    path = tmp_path / "report"
    path.write_text(backtrace(core, "--format", form))
    (report,) = mt.read_reports(path)
    assert report.exception.address == 0x12345678
    assert report.termination.code == 11
    assert report.crashed_thread.registers is not None
    (stack,) = mt.backtraces(core, threads="crashed")
    assert [frame.address for frame in report.crashed_thread.frames if not frame.is_inline] == [
        frame.address.address for frame in stack.frames
    ]
