"""Stacks through lldb-server, gdbserver and qemu equal those that their own debuggers show."""

from __future__ import annotations

import operator
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import ConnectionLostError, TargetError, TargetGoneError
from machtrace.model.arch import Arch
from machtrace.model.cause import linux_cause
from machtrace.targets.gdbremote import process as gdb_process
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.linux.process import LinuxProcessTarget
from tests.support.compilers.executables import compile_elf
from tests.support.stand_ins.usbmuxd import free_port

DEADLINE_S = 30
LLDB_SERVERS = ("lldb-server", *(f"lldb-server-{version}" for version in range(22, 13, -1)))


def program(*names):
    """Return the first of these programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[-1] if len(names) > 1 else names[0]} is not installed")
    return found


def state(pid):
    """Return the state letter of a process and its tracer."""
    text = Path(f"/proc/{pid}/status").read_text()
    return re.search(r"State:\t(\w)", text)[1], int(re.search(r"TracerPid:\t(\d+)", text)[1])


@pytest.fixture
def listening():
    """Start a stub, wait until it listens, and return its port."""
    started = []

    def run(*command, port):
        stub = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        started.append(stub)
        deadline = time.monotonic() + DEADLINE_S
        wanted = f":{port:04X} "
        while not any(
            line.split()[3] == "0A" and wanted in line
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ):
            assert stub.poll() is None, f"{command[0]} ended"
            assert time.monotonic() < deadline, f"{command[0]} does not listen"
            time.sleep(0.02)
        return stub

    yield run
    for stub in started:
        stub.kill()
        stub.wait()


def attach_lldb(listening, pid):
    """Attach lldb-server to ``pid``; return the spec."""
    port = free_port()
    listening(program(*LLDB_SERVERS), "gdbserver", "--attach", pid, f"127.0.0.1:{port}", port=port)
    return f"gdb://127.0.0.1:{port}"


def attach_gdb(listening, pid):
    """Attach gdbserver to ``pid``; return the spec."""
    port = free_port()
    listening(program("gdbserver"), "--once", "--attach", f"127.0.0.1:{port}", pid, port=port)
    return f"gdb://127.0.0.1:{port}"


ATTACH = pytest.mark.parametrize("attach", [attach_lldb, attach_gdb], ids=["lldb-server", "gdb"])


def addresses(snapshot):
    """Return the addresses of every thread's stack."""
    return {
        walked.thread.info.id: [frame.address for frame in walked.addresses]
        for walked in mt.unwind(snapshot)
    }


@pytest.fixture
def wait_undisturbed(wait_until, wait_blocked):
    """Wait until the threads are blocked again: after a detach their calls are restarted."""

    def wait(pid):
        wait_until(lambda: state(pid) == ("S", 0), "it waits, untraced")
        wait_blocked(pid, "spin")

    return wait


@ATTACH
def test_stacks_equal_those_of_gdb(
    attach, build, start, wait_blocked, gdb, listening, wait_undisturbed
):
    """All frames of all threads, signal handlers on both stacks included; names and images."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with LinuxProcessTarget(process.pid) as target:
        local = target.snapshot()
    wait_undisturbed(process.pid)
    with GdbRemoteTarget(attach(listening, process.pid)) as target:
        listed = target.threads()
        copied = target.snapshot()
        trips = target.round_trips
    assert copied.problems == ()
    assert listed == tuple(item.info for item in copied.threads)
    assert {(t.info.id, t.info.name, t.info.is_main) for t in copied.threads} == {
        (t.info.id, t.info.name, t.info.is_main) for t in local.threads
    }
    images = [(item.load_address, item.size, item.uuid) for item in copied.images]
    assert images == [(item.load_address, item.size, item.uuid) for item in local.images]
    assert copied.process.pid == process.pid
    assert copied.process.path == local.process.path
    actual = addresses(copied)
    wait_undisturbed(process.pid)
    expected = {item["id"]: item["addresses"] for item in gdb(process.pid)["threads"]}
    (running,) = (t.info.id for t in copied.threads if t.info.name == "spin")
    assert actual.pop(running)[1:] == expected.pop(running)[1:]
    assert actual == expected
    # Eight threads: one round trip each would exceed this.
    assert trips <= 22


@ATTACH
def test_the_process_continues_after_the_connection_closes(
    attach, build, start, wait_blocked, wait_until, listening
):
    """It has no tracer; running threads run, blocked ones are blocked again."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    mt.snapshot(attach(listening, process.pid))
    (spinning,) = (
        task
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        if (task / "comm").read_text().strip() == "spin"
    )

    def spent():
        return [int((spinning / "schedstat").read_text().split()[0])]

    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")
    before = spent()
    wait_until(lambda: all(map(operator.gt, spent(), before)), "it runs")


def test_lldb_server_runs_the_process_between_snapshots(
    build, start, wait_blocked, wait_until, listening
):
    """It can stop the process again without a visible signal: signals reach it meanwhile."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with GdbRemoteTarget(attach_lldb(listening, process.pid)) as target:
        target.snapshot()
        wait_until(lambda: state(process.pid)[0] == "S", "it runs")
        os.kill(process.pid, signal.SIGWINCH)  # which does nothing to it, and must not stop it
        wait_until(lambda: state(process.pid)[0] == "S", "it still runs")
        second = target.snapshot()
        assert len(second.threads) == 8
        assert all(thread.stopped_for_ns for thread in second.threads)
        assert second.problems == ()
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


def test_gdbserver_keeps_the_process_stopped_between_snapshots(
    build, start, wait_blocked, wait_until, listening
):
    """Stopping it again would take a signal that its whole process group receives."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with GdbRemoteTarget(attach_gdb(listening, process.pid)) as target:
        first = target.snapshot()
        assert state(process.pid)[0] == "t"
        trips = target.round_trips
        second = target.snapshot()
        assert [thread.registers for thread in first.threads] == [
            thread.registers for thread in second.threads
        ]
        assert target.round_trips - trips <= 4
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


def test_a_program_started_by_gdbserver_stays_at_its_entry(build, listening):
    """It has not run an instruction, and waits for the next debugger."""
    port = free_port()
    listening(program("gdbserver"), f"127.0.0.1:{port}", build("threads"), port=port)
    spec = f"gdb://127.0.0.1:{port}"
    first = mt.snapshot(spec)
    time.sleep(0.2)
    second = mt.snapshot(spec)
    assert [thread.registers for thread in first.threads] == [
        thread.registers for thread in second.threads
    ]
    assert second.images
    with GdbRemoteTarget(spec):
        assert state(first.process.pid)[0] == "t"
    os.kill(first.process.pid, signal.SIGKILL)


def test_a_spec_with_a_process_id_attaches_the_stub(
    build, start, wait_blocked, wait_until, listening
):
    """The spec is ``gdb://host:port/PID``, for a stub without a process."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    ports = [free_port() for _ in range(3)]
    for port in ports:
        listening(program("gdbserver"), "--multi", f"127.0.0.1:{port}", port=port)
    with pytest.raises(TargetError, match="no process"):
        mt.snapshot(f"gdb://127.0.0.1:{ports[0]}")
    copied = mt.snapshot(f"gdb://127.0.0.1:{ports[1]}/{process.pid}")
    assert len(copied.threads) == 8
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")
    with pytest.raises(TargetError, match="cannot attach to process 4194303"):
        mt.snapshot(f"gdb://127.0.0.1:{ports[2]}/4194303")


class Cutting:
    """A proxy that cuts the first connection after a number of reply bytes."""

    def __init__(self, port, after):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self._target, self._left = port, after
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                return
            with near, far:
                self._pass(near, far)

    def _pass(self, near, far):
        readable = select.poll()
        for one in (near, far):
            readable.register(one, select.POLLIN)
        while True:
            for descriptor, _ in readable.poll(10_000):
                source = near if descriptor == near.fileno() else far
                try:
                    data = source.recv(1 << 16)
                    (far if source is near else near).sendall(data)
                except OSError:
                    return
                if not data:
                    return
                if source is far and self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        self._left = None
                        return

    def close(self):
        """Stop listening and join the threads."""
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self._thread.join(DEADLINE_S)


@pytest.mark.parametrize("after", [2000, 12000, 30000])
def test_a_process_resumes_after_a_broken_connection(
    after, build, start, wait_blocked, wait_until, listening
):
    """The same client reconnects: gdbserver would leave the process stopped for the next one."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    port = free_port()
    listening(program("gdbserver"), "--attach", f"127.0.0.1:{port}", process.pid, port=port)
    cutting = Cutting(port, after)
    errors = []
    try:
        copied = mt.snapshot(f"gdb://127.0.0.1:{cutting.port}?timeout=5")
        errors += [problem.error for problem in copied.problems]
    except ConnectionLostError as lost:
        errors.append(lost)
    finally:
        cutting.close()
    assert re.search("closed the connection|broke", str(errors[0]))
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


@ATTACH
def test_ctrl_c_before_stacks_are_read_resumes_the_process(
    attach, build, start, wait_blocked, wait_until, listening, monkeypatch
):
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("machtrace.targets.gdbremote.stacks.RemoteStackReader.read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mt.snapshot(attach(listening, process.pid))
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


def test_the_commands_take_the_spec(
    build, start, wait_blocked, listening, tmp_path, wait_undisturbed
):
    """``backtrace`` and ``snapshot``."""
    process = start(build("threads", "-g"))
    wait_blocked(process.pid, "spin")
    core = tmp_path / "remote.core"

    def machtrace(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "machtrace", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    shown = machtrace("backtrace", attach_gdb(listening, process.pid), "--format", "lldb")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("* thread #1, name = 'threads-g'\n  * frame #0: 0x")
    assert "`descend at threads.c:" in shown.stdout
    wait_undisturbed(process.pid)
    saved = machtrace("snapshot", attach_lldb(listening, process.pid), "-o", core)
    assert saved.returncode == 0, saved.stderr
    again = machtrace("backtrace", core, "--format", "lldb")
    numbers = [re.findall(r"thread #\d+", text) for text in (shown.stdout, again.stdout)]
    assert numbers[0] == numbers[1]
    assert "`descend at threads.c:" in again.stdout


# --- qemu, which emulates the CPU, without lldb's extensions ---


@pytest.fixture(scope="session")
def arm64_program(tmp_path_factory):
    """A statically linked program of arm64 Linux."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    source = Path(__file__).parent / "programs" / "remote.c"
    output = tmp_path_factory.mktemp("arm64") / "remote"
    options = ("-O1", "-g", "-fno-sanitize=all")
    return compile_elf([source], output, target="aarch64-linux-musl", options=options)


def names(stack):
    """Return the names of the frames that have one."""
    return [frame.symbol.name for frame in stack.frames if frame.symbol is not None]


def test_qemu_at_the_entry_has_one_thread_and_continues(arm64_program, listening):
    """Its program counter is the entry in the program's header."""
    port = free_port()
    stub = listening(program("qemu-aarch64"), "-g", port, arm64_program, port=port)
    copied = mt.snapshot(f"gdb://127.0.0.1:{port}")
    entry = int.from_bytes(arm64_program.read_bytes()[24:32], "little")
    (thread,) = copied.threads
    assert thread.registers.pc == entry
    assert thread.registers.arch is Arch.ARM64
    assert thread.stack.data
    # After the detach it runs until its own signal ends it.
    assert stub.wait(DEADLINE_S) == -signal.SIGUSR1


def test_qemu_shows_both_threads_functions_and_continues(arm64_program, listening):
    """The frames have names down to the threads' start functions."""
    port = free_port()
    stub = listening(program("qemu-aarch64"), "-g", port, arm64_program, port=port)
    stacks = mt.backtraces(f"gdb://127.0.0.1:{port}?until=stop", search=[arm64_program])
    main, worker = (names(stack) for stack in stacks)
    assert main[-1] == "_start"
    assert main.count("stop_here") == 4
    assert worker.count("descend") == 6
    # gdb's number of the signal, which qemu sends, is 30.
    assert stacks[0].cause == linux_cause(signal.SIGUSR1)
    assert not any(stack.thread.crashed for stack in stacks)
    assert "wait_forever" in worker
    assert stub.wait(DEADLINE_S) is not None


def test_qemu_stacks_equal_those_of_lldb(arm64_program, listening):
    """Another run of the emulator is at the same instruction."""
    debugger = program("lldb", *(f"lldb-{version}" for version in range(22, 13, -1)))
    ports = [free_port(), free_port()]
    for port in ports:
        listening(program("qemu-aarch64"), "-g", port, arm64_program, port=port)
    commands = ["-o", f"target create {arm64_program}", "-o", f"gdb-remote 127.0.0.1:{ports[0]}"]
    # What follows -k is run once the process has stopped by a signal.
    commands += ["-o", "continue", "-k", "script print('ALL')", "-k", "thread backtrace all"]
    shown = subprocess.run(
        [debugger, "-b", "-x", *commands], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    if "SIGUSR1" not in shown:
        pytest.skip(f"{Path(debugger).name} cannot speak to qemu here")
    listed = re.findall(r"frame #(\d+): 0x([0-9a-f]+)", shown.rpartition("ALL")[2])
    expected: list[list[int]] = []
    for number, address in listed:
        if number == "0":
            expected.append([])
        expected[-1].append(int(address, 16))
    copied = mt.snapshot(f"gdb://127.0.0.1:{ports[1]}?until=stop")
    actual = [[frame.address for frame in walk.addresses] for walk in mt.unwind(copied)]
    assert len(actual) == len(expected) == 2
    assert actual[0] == expected[0]
    # The second thread may be on either side of the instruction by which it begins to wait. lldb
    # ends it at its first function; the call's return address is there too.
    assert abs(actual[1][0] - expected[1][0]) <= 64
    assert len(expected[1]) >= 7
    assert actual[1][1 : len(expected[1])] == expected[1][1:]


# --- processes that signals had stopped before ---


@pytest.mark.parametrize("when", ["attached before", "by the spec"])
@pytest.mark.parametrize("stub", ["lldb-server", "gdb"])
def test_a_stopped_process_stays_stopped(
    stub, when, build, start, wait_blocked, wait_until, listening
):
    """SIGSTOP came before the stub: the process is copied, and later is stopped and untraced."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: all(state(task) == ("T", 0) for task in tasks), "it is stopped")
    if when == "attached before":
        spec = (attach_lldb if stub == "lldb-server" else attach_gdb)(listening, process.pid)
    else:
        port = free_port()
        place = f"127.0.0.1:{port}"
        if stub == "lldb-server":
            listening(program(*LLDB_SERVERS), "gdbserver", place, port=port)
        else:
            listening(program("gdbserver"), "--multi", place, port=port)
        spec = f"gdb://{place}/{process.pid}"
    with GdbRemoteTarget(spec) as target:
        copies = [target.snapshot(), target.snapshot()]
    assert [len(copy.threads) for copy in copies] == [8, 8]
    assert addresses(copies[0]) == addresses(copies[1])
    wait_until(lambda: state(process.pid) == ("T", 0), "it is stopped, untraced")
    time.sleep(0.2)
    assert state(process.pid) == ("T", 0)
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: state(process.pid) == ("S", 0), "it runs after SIGCONT")


# --- stubs and processes that die during a capture ---


@ATTACH
@pytest.mark.parametrize("who", ["stub", "process"])
@pytest.mark.parametrize("where", ["read_registers", "RemoteStackReader.read"])
def test_a_process_or_stub_killed_between_packets_is_one_error(  # noqa: PLR0917 - a fixture is a parameter
    who, where, attach, build, start, wait_blocked, wait_until, listening, monkeypatch
):
    """The error comes soon; a process whose stub died continues."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    spec = attach(listening, process.pid)
    holder = gdb_process if where == "read_registers" else gdb_process.RemoteStackReader
    name = where.rpartition(".")[2]
    real = getattr(holder, name)
    killed = []

    def killing(*arguments, **options):
        if not killed:
            killed.append(process.pid if who == "process" else state(process.pid)[1])
            assert killed[0] > 0  # 0 would be this very process, and all of its group
            os.kill(killed[0], signal.SIGKILL)
        wait_until(lambda: state(process.pid)[1] == 0 or who == "process", "it is gone")
        time.sleep(0.1)
        return real(*arguments, **options)

    monkeypatch.setattr(holder, name, killing)
    began = time.monotonic()
    reasons = []
    try:
        copied = mt.snapshot(f"{spec}?timeout=3")
        reasons += [problem.error for problem in copied.problems]
        assert len(mt.unwind(copied)) == len(copied.threads)
    except (TargetError, ConnectionLostError) as error:
        reasons.append(error)
    assert time.monotonic() - began < DEADLINE_S
    said = " ".join(map(str, reasons))
    assert re.search("closed the connection|broke|has ended|it ended|it exited|no registers", said)
    if who == "stub":
        assert len(reasons) == 1
        wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


class Calls:
    """Calls that breakpoints report, until a process has printed its own counts."""

    def __init__(self, process, functions):
        self.process = process
        self.threads = set()
        self.counts = dict.fromkeys(functions, 0)
        self.callers = set()
        self.own = None

    def take(self, call):
        """Count one."""
        self.counts[call.registers.pc] += 1
        self.threads.add(call.thread)
        (stack,) = (each.data for each in call.memory if each.start == call.registers.sp)
        self.callers.add(int.from_bytes(stack[:8], "little"))

    def have_ended(self):
        """Return whether the process has printed its counts."""
        if self.own is None and select.select([self.process.stdout], [], [], 0)[0]:
            self.own = [int(word) for word in self.process.stdout.readline().split()]
        return self.own is not None


@pytest.fixture
def watched_calls(build, start):
    """Start the program; return it and the functions to watch."""

    def run(threads, count):
        # gdbserver stops leaders of process groups only.
        process = start(build("watched_calls", "-g"), threads, count, start_new_session=True)
        return process, [int(word, 16) for word in process.stdout.readline().split()]

    return run


def go(process):
    """Let the program call its functions."""
    process.stdin.write("go\n")
    process.stdin.flush()


@ATTACH
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads return addresses from the stack")
def test_no_call_at_a_breakpoint_is_lost(watched_calls, listening, wait_until, attach):
    """Threads call at the same time; the program counts its calls itself."""
    process, functions = watched_calls("10", "100")
    calls = Calls(process, functions)
    with GdbRemoteTarget(attach(listening, process.pid)) as target:
        breakpoints = target.breakpoints()
        assert breakpoints.insert(functions) == {}
        go(process)
        trips = target.round_trips
        breakpoints.run(calls.take, should_stop=calls.have_ended)
        trips = target.round_trips - trips
        breakpoints.remove_all()
    assert calls.own == [500, 500, 1000]
    assert [*calls.counts.values()] == calls.own
    assert len(calls.threads) == 10
    assert len(calls.callers) >= 3
    if attach is attach_lldb:
        assert breakpoints.steps == calls.own[2], "only it uses its own address"
    assert trips <= sum(calls.own) + breakpoints.steps + 8
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")


@ATTACH
def test_a_process_that_ends_at_a_breakpoint_is_gone(watched_calls, listening, attach):
    process, functions = watched_calls("1", "100000")
    calls = []

    def kill(call):
        calls.append(call)
        if len(calls) == 5:
            process.kill()

    with GdbRemoteTarget(attach(listening, process.pid)) as target:
        breakpoints = target.breakpoints()
        breakpoints.insert(functions)
        go(process)
        with pytest.raises(TargetGoneError, match="has ended"):
            breakpoints.run(kill)
    assert len(calls) >= 5


@ATTACH
def test_an_address_without_memory_has_no_breakpoint(watched_calls, listening, attach):
    process, _ = watched_calls("1", "1")
    with GdbRemoteTarget(attach(listening, process.pid)) as target:
        errors = target.breakpoints().insert([16])
    assert "no breakpoint at 0x10" in str(errors[16])
