"""A conversation with a stub that serves a known process.

The stub replies like debugserver for an arm64 process of Darwin, according to its documentation; it
was not recorded from a Mac or a phone. Its process is the emulated one, whose stacks are known.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from dataclasses import replace
from uuid import UUID

import pytest

import machtrace as mt
from machtrace.errors import ConnectionLostError, MachtraceError, RemoteProtocolError, TargetError
from machtrace.model.address import Avma
from machtrace.model.image import ImageList
from machtrace.model.snapshot import SharedCache
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from tests.support.stand_ins.gdb_stub import Dialect, HangUpError, SnapshotStub


@pytest.fixture(scope="module")
def process():
    """The emulated process, copied."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    return mt.snapshot("emulated:demo")


def walks(snapshot):
    """Return every thread's addresses, with the source of each."""
    return {
        one.thread.info.id: [(frame.address, frame.kind, frame.trust) for frame in one.addresses]
        for one in mt.unwind(snapshot)
    }


def take(stub, *, options="", connections=1, **arguments):
    """Take a snapshot through ``stub``."""
    with (
        stub.serving(connections) as port,
        GdbRemoteTarget(f"gdb://127.0.0.1:{port}{options}") as target,
    ):
        return target.snapshot(**arguments)


@pytest.mark.emulated
@pytest.mark.parametrize("compresses", [False, True], ids=["plain", "compressed"])
def test_darwin_process_has_the_same_stacks(process, compresses):
    """Each address of each thread, async ones too, and how it was found; names, queues, images."""
    copied = take(SnapshotStub(process, compresses=compresses))
    assert copied.problems == ()
    assert walks(copied) == walks(process)
    assert [thread.info for thread in copied.threads] == [thread.info for thread in process.threads]
    assert [image.uuid for image in copied.images] == [image.uuid for image in process.images]
    assert [image.load_address for image in copied.images] == [
        image.load_address for image in process.images
    ]
    assert copied.process.path == process.process.path
    assert copied.process.pointer_mask.bits == (1 << 47) - 1


@pytest.mark.emulated
def test_names_come_from_memory_alone(process):
    """No file of this machine has the images, as with a phone."""
    names = [
        [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
        for stack in mt.backtraces(_CopiedTarget(take(SnapshotStub(process))))
    ]
    assert names == [
        [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
        for stack in mt.backtraces(_CopiedTarget(process))
    ]
    assert any(names)


class _CopiedTarget:
    """A target whose snapshot exists already."""

    def __init__(self, snapshot):
        self._snapshot = snapshot

    def snapshot(self, *_, **__):
        return self._snapshot


@pytest.mark.emulated
def test_round_trips_do_not_depend_on_the_number_of_threads(process):
    """A stub with pipelining serves all threads in as many round trips as two of them."""
    counts = []
    for number in (2, len(process.threads)):
        stub = SnapshotStub(replace(process, threads=process.threads[:number]))
        with stub.serving() as port, GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
            greeting = target.round_trips
            assert len(target.snapshot().threads) == number
            counts.append(target.round_trips - greeting)
            # The stub saw no more than the client counted: nothing waits without being counted.
            assert stub.readings <= target.round_trips + 1
            before = len(stub.requests)
            target.snapshot()
            again = stub.requests[before:]
    assert counts[1] <= counts[0] + 2
    assert counts[1] <= 10
    # Unchanged images are not requested again.
    assert not any(request.startswith(b"jGet") for request in again)


@pytest.mark.emulated
def test_a_minimal_stub_gives_the_same_bytes(process):
    """Acknowledged packets, hex memory, threads selected in sequence."""
    stub = SnapshotStub(process, Dialect.PLAIN, packet_size=0x800)
    copied = take(stub)
    assert [thread.registers.pc for thread in copied.threads] == [
        thread.registers.pc for thread in process.threads
    ]
    for copy, original in zip(copied.threads, process.threads, strict=True):
        # The registers that a walk reads; DWARF numbers 0 to 31.
        assert copy.registers.values[:32] == original.registers.values[:32]
        begin = copy.stack.start - original.stack.start
        size = len(original.stack.data) - max(0, begin)
        assert copy.stack.data[max(0, -begin) :][:size] == original.stack.data[max(0, begin) :]
    assert not any(request.startswith((b"x", b"j", b"Multi")) for request in stub.requests[4:])


@pytest.mark.emulated
def test_chosen_threads_and_limits(process):
    """Only requested threads are copied; a missing thread is a problem."""
    wanted = process.threads[2].info.id
    stub = SnapshotStub(process)
    with stub.serving() as port, GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
        infos = target.threads()
        copied = target.snapshot({wanted, 999}, stack_limit=256)
    assert [info.id for info in infos] == [one.info.id for one in process.threads]
    (thread,) = copied.threads
    assert thread.info.id == wanted
    assert len(thread.stack.data) <= 256
    (problem,) = copied.problems
    assert problem.thread == 999


@pytest.mark.emulated
def test_a_stub_is_left_by_detaching(process):
    """The last packet resumes the process; none ends or changes it."""
    stub = SnapshotStub(process)
    take(stub)
    assert stub.requests[-1] == b"D"
    forbidden = (b"k", b"vKill", b"M", b"X", b"G", b"P", b"Z", b"z", b"QSave", b"c", b"s", b"C")
    allowed = (b"MultiMemRead",)
    assert not [
        request
        for request in stub.requests
        if request.startswith(forbidden) and not request.startswith(allowed)
    ]


@pytest.mark.emulated
def test_a_process_that_the_stub_started_stays_stopped(process):
    """Detaching would resume it, so the connection is only closed."""
    stub = SnapshotStub(process, Dialect.PLAIN, attached=b"0")
    take(stub)
    assert not any(request.startswith((b"D", b"vCont")) for request in stub.requests)


# --- bad peers ---


def on(name, reply):
    """Return a fault: requests with this prefix get ``reply`` verbatim."""
    return lambda request, _: reply if request.startswith(name) else None


def packet(payload):
    """Encode ``payload`` as a packet."""
    return b"$%s#%02x" % (payload, sum(payload) % 256)


def fails(stub, match, kind=MachtraceError, timeout=5.0):
    """Return the error of taking a snapshot of ``stub``, raised in bounded time.

    The client may connect once more, to detach.
    """
    began = time.monotonic()
    with pytest.raises(kind, match=match) as raised:
        take(stub, options=f"?timeout={timeout}", connections=2)
    assert time.monotonic() - began < 60
    assert raised.value.remedy
    return raised.value


@pytest.mark.emulated
def test_damaged_packets_are_requested_again(process):
    """A packet that arrives corrupted and then intact is accepted."""
    damaged = []

    def damage(request, right):
        if request != b"qfThreadInfo" or damaged:
            return None
        damaged.append(right)
        # The refusal that this gets makes the stub send its last packet again.
        return right[:-2] + b"zz" + right

    stub = SnapshotStub(process, Dialect.PLAIN, fault=damage)
    with stub.serving() as port, GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
        assert len(target.threads()) == len(process.threads)
    assert damaged


@pytest.mark.emulated
def test_a_packet_that_is_always_damaged_is_an_error(process):
    """The error has its checksum and the request."""
    error = fails(
        SnapshotStub(process, Dialect.PLAIN, fault=on(b"qfThreadInfo", b"$m1#zz")),
        "corrupted 4 times",
        RemoteProtocolError,
    )
    assert error.request == "'qfThreadInfo'"


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("name", "reply", "match"),
    [
        (b"qSupported", b"", "does not respond"),
        (b"?", b"", "does not respond"),
        (b"?", packet(b"jibber"), r"request '\?', reply 'jibber'"),
        (b"?", packet(b"W00"), "no process"),
        (b"?", packet(b"X0b"), "ended by signal 11"),
        (b"?", packet(b"E01"), "no process"),
        (b"jThreadsInfo", b"", "does not respond"),
        (b"jThreadsInfo", packet(b"OK"), "request jThreadsInfo, reply 'OK'"),
        (b"jThreadsInfo", packet(b"l<target/>"), "invalid JSON"),
        (b"qXfer:features", packet(b"m"), "no part of a document"),
        (b"qXfer:features", packet(b"l<target><reg name='a'/></target>"), "registers"),
        (b"qXfer:features", packet(b"l<not xml"), "invalid document"),
        (b"qXfer:features", packet(b"m<target>"), "no end|does not end|cannot be read"),
    ],
    ids=lambda value: value.decode("latin-1")[:16] if isinstance(value, bytes) else None,
)
def test_invalid_replies_are_one_clear_error(process, name, reply, match):
    """Silence, the reply to another packet, an endless document."""
    # Silence is waited out, and parts without end for three times as long; the rest comes at once.
    timeout = 5.0 if reply and "without end" not in match else 0.3 if not reply else 1.0
    fails(SnapshotStub(process, fault=on(name, reply)), match, timeout=timeout)


def test_a_reply_without_end_ends_at_the_time_limit():
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            connection, _ = server.accept()
            with connection:
                while not stop.wait(0.01):
                    try:
                        connection.sendall(b"%Noise#00")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(ConnectionLostError, match=r"without end|does not respond"):
            GdbRemoteTarget(f"gdb://127.0.0.1:{server.getsockname()[1]}?timeout=0.2")
        assert time.monotonic() - began < 60
        stop.set()
        thread.join(5)


def test_a_port_without_a_stub_is_an_error_with_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionLostError, match=f"cannot connect to 127.0.0.1:{port}") as lost:
        mt.open_target(f"gdb://127.0.0.1:{port}")
    assert "stub is running" in lost.value.remedy


def _hang_up_at(name):
    def fault(request, _):
        if request.startswith(name):
            raise HangUpError

    return fault


@pytest.mark.emulated
def test_a_broken_connection_is_reopened_once_to_detach(process):
    """Also if it broke in the middle of a packet: the stub would keep its process stopped."""
    stub = SnapshotStub(process, fault=_hang_up_at(b"jThreadsInfo"))
    with stub.serving(connections=2) as port:
        with pytest.raises(ConnectionLostError, match=r"closed the connection.*jThreadsInfo"):
            mt.snapshot(f"gdb://127.0.0.1:{port}")
        assert stub.requests[-1] == b"D"


@pytest.mark.emulated
def test_copied_threads_are_returned_when_the_connection_breaks(process):
    """The missing bytes are a problem with the reason."""
    stub = SnapshotStub(process, fault=_hang_up_at(b"qMemoryRegionInfo"))
    copied = take(stub, connections=2)
    assert len(copied.threads) == len(process.threads)
    assert any(isinstance(problem.error, ConnectionLostError) for problem in copied.problems)
    assert stub.requests[-1] == b"D"


@pytest.mark.emulated
def test_one_thread_that_cannot_be_read_does_not_lose_the_others(process):
    """It is a problem with the reason."""
    bad = process.threads[1].info.id

    def fault(request, _):
        return packet(b"E01") if request == b"Hg%x" % bad else None

    copied = take(SnapshotStub(process, Dialect.PLAIN, fault=fault))
    assert len(copied.threads) == len(process.threads) - 1
    assert [problem.thread for problem in copied.problems] == [bad]
    assert "no registers" in str(copied.problems[0].error)


@pytest.mark.emulated
def test_interruption_leaves_the_process_as_it_was(process):
    """Ctrl-C during a reply: the outstanding reply is read, then the stub is detached."""
    stub = SnapshotStub(process)

    def interrupt(request, _):
        if request == b"jThreadsInfo":
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)

    stub.fault = interrupt
    with stub.serving() as port, pytest.raises(KeyboardInterrupt):
        take_at(port)
    assert stub.requests[-1] == b"D"


def take_at(port):
    """Take a snapshot of the stub at ``port``."""
    with GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
        return target.snapshot()


@pytest.mark.emulated
def test_memory_of_the_wrong_size_is_a_problem(process):
    """Threads are retained, without stacks."""
    stub = SnapshotStub(process, Dialect.PLAIN, fault=on(b"m", packet(b"00" * 70000)))
    copied = take(stub)
    assert len(copied.threads) == len(process.threads)
    assert any("bytes of memory" in str(problem.error) for problem in copied.problems)


@pytest.mark.emulated
def test_a_closed_target_refuses_calls(process):
    """Closing twice does nothing more."""
    stub = SnapshotStub(process)
    with stub.serving() as port:
        target = GdbRemoteTarget(f"gdb://127.0.0.1:{port}")
        target.close()
        target.close()
        with pytest.raises(TargetError, match="closed"):
            target.snapshot()
    assert stub.requests.count(b"D") == 1


@pytest.mark.emulated
def test_threads_are_copied_without_a_list_of_images(process):
    copied = take(SnapshotStub(replace(process, images=ImageList())))
    assert len(copied.threads) == len(process.threads)
    assert len(copied.images) == 0


@pytest.mark.emulated
def test_the_shared_cache(process):
    """Its address and UUID, in the round trip of the images; None without one."""
    cache = SharedCache(Avma(0x1_8000_0000), UUID("674DB25A-34B2-3C56-8BD4-7D78005B2F2E"))
    assert take(SnapshotStub(replace(process, shared_cache=cache))).shared_cache == cache
    copied = take(SnapshotStub(process))
    assert (copied.shared_cache, copied.problems) == (None, ())


@pytest.mark.emulated
@pytest.mark.parametrize(
    "reply",
    [b"", b"E01", b'{"shared_cache_uuid":7}', b'{"shared_cache_base_address":-5}', b"[1]", b"{"],
)
def test_an_invalid_shared_cache_is_none(process, reply):
    """The rest is read."""
    stub = SnapshotStub(process, fault=on(b"jGetSharedCacheInfo", packet(reply)))
    copied = take(stub)
    assert copied.shared_cache is None
    assert len(copied.images) == len(process.images)
    assert len(copied.problems) == (reply == b"{")


@pytest.mark.emulated
def test_unix_socket(process, tmp_path):
    """A stub may listen at a path."""
    path = tmp_path / "stub"
    stub = SnapshotStub(process)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        worker = threading.Thread(target=stub._serve, args=(server, 1), daemon=True)  # noqa: SLF001
        worker.start()
        copied = mt.snapshot(f"gdb://{path}")
        worker.join(10)
    assert len(copied.threads) == len(process.threads)
