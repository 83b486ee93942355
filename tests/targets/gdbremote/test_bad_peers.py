"""A stub that violates the protocol causes one clear error or partial threads, in bounded time."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from dataclasses import replace

import pytest

import machtrace as mt
from machtrace.errors import (
    ConnectionLostError,
    MachtraceError,
    RemoteProtocolError,
    TargetGoneError,
)
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from tests.support.stand_ins.gdb_stub import Dialect, HangUpError, SnapshotStub

LIMIT_S = 60
"""However long one error takes on a busy machine, where the time limit of one answer is 5 s."""


@pytest.fixture(scope="module")
def process():
    """Two threads of the emulated process, copied."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    whole = mt.snapshot("emulated:demo")
    return replace(whole, threads=whole.threads[:2])


def packet(payload, checksum=None):
    """Encode ``payload`` as a packet."""
    return b"$%s#%s" % (payload, checksum or b"%02x" % (sum(payload) % 256))


def outcome(stub, connections=2, timeout=5, **arguments):
    """Take a snapshot; return it, or a MachtraceError with a remedy, in bounded time.

    Args:
        stub: the stub to query.
        connections: the number of connections it accepts in sequence.
        timeout: seconds for one reply; fewer if none arrives.
        arguments: of the snapshot.
    """
    began = time.monotonic()
    with stub.serving(connections) as port:
        try:
            with GdbRemoteTarget(f"gdb://127.0.0.1:{port}?timeout={timeout}") as target:
                result = target.snapshot(**arguments)
        except MachtraceError as error:
            result = error
    assert not isinstance(result, MachtraceError) or result.remedy
    assert time.monotonic() - began < LIMIT_S
    return result


def is_well_formed(snapshot):
    for walked in mt.unwind(snapshot):
        assert walked.addresses
    return True


def instead(name, reply):
    """Return a fault: requests with this prefix get ``reply`` verbatim."""
    return lambda request, _: reply if request.startswith(name) else None


@pytest.mark.emulated
@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("checksum", [b"zz", b"", b"0g", b"\xff\xff"])
def test_a_reply_that_always_has_a_wrong_checksum_is_an_error(process, dialect, checksum):
    """The error names the request, and the stub is detached."""
    asked = b"jThreadsInfo" if dialect is Dialect.DEBUGSERVER else b"qfThreadInfo"
    stub = SnapshotStub(process, dialect, fault=instead(asked, b"$m1#" + checksum))
    error = outcome(stub, timeout=5 if checksum else 1)
    assert isinstance(error, ConnectionLostError | RemoteProtocolError)
    assert asked.decode() in str(error)
    assert stub.requests[-1] == b"D"


GIANT = [
    (b"qSupported", packet(b"PacketSize=ffffffffffffffff;qXfer:features:read+")),
    (b"qSupported", packet(b"PacketSize=-5;qXfer:features:read+;MultiMemRead+")),
    (b"jThreadsInfo", b"$0" + b"*~" * 800_000 + b"#00"),
    (b"jThreadsInfo", packet(b"[" * 200_000)),
    (b"jThreadsInfo", packet(b'[{"tid":%s}]' % (b"9" * 4000))),
    (b"jThreadsInfo", packet(b'[{"tid":1,"registers":{"999999999999999999":"00"}}]')),
    (
        b"jThreadsInfo",
        packet(b'[{"tid":1,"memory":[{"address":18446744073709551615,"bytes":"0011"}]}]'),
    ),
    (b"jGetLoadedDynamicLibrariesInfos", packet(b'{"images":[{"load_address":1e400}]}')),
    (
        b"jGetLoadedDynamicLibrariesInfos",
        packet(
            json.dumps(
                {
                    "images": [
                        {
                            "load_address": (1 << 64) - 4096,
                            "segments": [{"name": "__TEXT", "vmaddr": 0, "vmsize": (1 << 64) - 1}],
                        }
                    ]
                }
            ).encode()
        ),
    ),
    (b"qMemoryRegionInfo", packet(b"start:0;size:ffffffffffffffff;permissions:rwx;")),
    (b"qMemoryRegionInfo", packet(b"start:0;size:ffffffffffffffff;permissions:rwx;type:stack;")),
    (b"MultiMemRead", packet(b"ffffffff,ffffffff,ffffffff;")),
    (b"MultiMemRead", packet(b"10;")),
    (b"x", packet(b"A" * 200_000)),
    (b"qXfer:features", packet(b"m" + b"<" * 100_000)),
]


@pytest.mark.emulated
@pytest.mark.parametrize(("name", "reply"), GIANT, ids=lambda v: v[:28].decode("latin-1"))
def test_impossible_numbers_and_lengths_allocate_no_memory(process, name, reply):
    found = outcome(SnapshotStub(process, fault=instead(name, reply)), timeout=1)
    assert isinstance(found, MachtraceError) or is_well_formed(found)


@pytest.mark.emulated
def test_at_most_the_stack_limit_is_read_of_an_endless_stack(process):
    """The stub returns bytes for every address."""
    zeros = packet(b"l" + b"0" * 100)

    def fault(request, _):
        if request.startswith(b"qMemoryRegionInfo"):
            return packet(b"")
        if request.startswith(b"m"):
            return packet(b"00" * min(int(request.rpartition(b",")[2], 16), 0x400))
        return zeros if request.startswith(b"qXfer:auxv") else None

    found = outcome(SnapshotStub(process, Dialect.PLAIN, packet_size=0x840, fault=fault))
    assert isinstance(found, MachtraceError) or is_well_formed(found)


def endless(first, again, stop):
    """Serve a port that sends ``first`` and then ``again`` without end."""
    server = socket.create_server(("127.0.0.1", 0))

    def talk():
        try:
            connection, _ = server.accept()
            with connection:
                connection.sendall(first)
                while not stop.is_set():
                    connection.sendall(again)
        except OSError:
            return

    threading.Thread(target=talk, daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"$", b"a" * 65536),
        (b"", b"+" * 65536),
        (b"", b"%Stop#00" * 1000),
        (b"$OK#9a", b"$OK#9a" * 1000),
        (b"", b"$#00" * 1000),
        (b"", b"\0" * 65536),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<html>" * 1000),
    ],
    ids=["a packet", "acknowledgements", "notifications", "OK", "nothing", "zeros", "a web server"],
)
def test_endless_replies_end_within_the_time_limit(first, again):
    """Memory is bounded, too."""
    stop = threading.Event()
    with endless(first, again, stop) as server:
        began = time.monotonic()
        with pytest.raises(MachtraceError) as raised:
            mt.snapshot(f"gdb://127.0.0.1:{server.getsockname()[1]}?timeout=0.2")
        assert time.monotonic() - began < LIMIT_S
        assert raised.value.remedy
        stop.set()


@pytest.mark.emulated
@pytest.mark.parametrize("dialect", list(Dialect))
def test_lists_and_documents_without_end_are_errors(process, dialect):
    """Each part is valid: they end after a few times the time limit."""
    count = 0

    def fault(request, _):
        nonlocal count
        count += 1
        if request.startswith((b"qfThreadInfo", b"qsThreadInfo")):
            time.sleep(0.02)
            return packet(b"m%x" % (count + 1))
        if request.startswith(b"qXfer:features") and dialect is Dialect.DEBUGSERVER:
            time.sleep(0.02)
            return packet(b"m<!--" + b"x" * 50)
        return None

    error = outcome(SnapshotStub(process, dialect, fault=fault), timeout=1)
    assert isinstance(error, ConnectionLostError)
    assert "without end" in str(error)


NAMES = [
    b"QStartNoAckMode",
    b"qSupported",
    b"?",
    b"qAttached",
    b"qXfer:features",
    b"jThreadsInfo",
    b"jGetLoaded",
    b"qMemoryRegionInfo",
    b"MultiMemRead",
    b"x1",
]


@pytest.mark.emulated
@pytest.mark.parametrize("name", NAMES, ids=bytes.decode)
def test_a_connection_dropped_at_any_request_is_an_error_or_partial(process, name):
    """The stub is detached if possible."""
    dropped = []

    def fault(request, _):
        if request.startswith(name) and not dropped:
            dropped.append(True)
            raise HangUpError

    stub = SnapshotStub(process, fault=fault)
    result = outcome(stub, connections=3)
    if isinstance(result, MachtraceError):
        assert isinstance(result, ConnectionLostError)
        assert "closed the connection" in str(result)
    else:
        assert any(isinstance(problem.error, ConnectionLostError) for problem in result.problems)
        assert is_well_formed(result)
    assert dropped
    if name != b"QStartNoAckMode":  # before that it is not known to be a stub
        assert stub.requests[-1] == b"D"


@pytest.mark.emulated
@pytest.mark.parametrize("name", NAMES, ids=bytes.decode)
def test_an_extra_reply_is_an_error_or_partial(process, name):
    """All later replies are off by one."""
    doubled = []

    def fault(request, right):
        if request.startswith(name) and not doubled:
            doubled.append(True)
            return right + right
        return None

    found = outcome(SnapshotStub(process, fault=fault))
    assert isinstance(found, MachtraceError) or is_well_formed(found)
    assert doubled


@pytest.mark.emulated
@pytest.mark.parametrize("name", NAMES[2:], ids=bytes.decode)
def test_replies_to_another_request_are_an_error_or_partial(process, name):
    """The reply to ``?`` is sent for every other request."""
    stub = SnapshotStub(process, fault=instead(name, packet(b"T05thread:3e9;")))
    found = outcome(stub)
    assert isinstance(found, MachtraceError) or is_well_formed(found)


@pytest.mark.emulated
@pytest.mark.parametrize("said", [b"X09", b"W00", b"X09;process:1f"])
@pytest.mark.parametrize("name", [b"jThreadsInfo", b"jGetLoaded", b"MultiMemRead", b"x1"])
def test_the_end_of_the_process_is_the_error_or_a_problem(process, name, said):
    """Stubs send its status instead of a reply."""
    result = outcome(SnapshotStub(process, fault=instead(name, packet(said))))
    how = "with status 0" if said.startswith(b"W") else "by signal 9"
    if isinstance(result, MachtraceError):
        assert isinstance(result, TargetGoneError)
        assert how in str(result)
    else:
        reasons = [problem.error for problem in result.problems]
        assert [type(problem) for problem in reasons] == [TargetGoneError]
        assert is_well_formed(result)
        assert how in str(reasons[0])


@pytest.mark.emulated
@pytest.mark.parametrize("dialect", list(Dialect))
def test_ctrl_c_at_any_request_detaches_the_stub(process, dialect):
    number = 1
    while True:
        stub = SnapshotStub(process, dialect)
        seen = 0

        def interrupt(request, _, number=number):
            nonlocal seen
            seen += 1
            if seen == number + 1 and request != b"D":
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.02)

        stub.fault = interrupt
        with stub.serving() as port:
            try:
                with GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
                    target.snapshot()
                was_interrupted = False
            except KeyboardInterrupt:
                was_interrupted = True
        assert stub.requests[-1] == b"D", number
        if not was_interrupted:
            break
        number += 1 if number < 14 else 23
    assert number > 14
