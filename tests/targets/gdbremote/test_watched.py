"""A watched process of a debugserver that is scripted: profiles, interrupts, crashes.

The stub follows debugserver's sources; nothing here was recorded from a Mac or a phone.
"""

import time
from dataclasses import replace

import pytest

import machtrace as mt
from machtrace.errors import TargetGoneError
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, MemoryRegion, RegionMemory
from machtrace.targets.gdbremote.watched import WatchedStub
from tests.support.stand_ins.running_stub import RunningStub, profile

pytestmark = pytest.mark.emulated

SVC = 0xD4001001
"""``svc #0x80``, Darwin's system call."""


@pytest.fixture(scope="module")
def process():
    """The emulated process, copied."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    return mt.snapshot("emulated:demo")


def watched(port, **options):
    return WatchedStub(f"gdb://127.0.0.1:{port}", **options)


def take_profiles(target, count):
    """Serve the stub until that number of profiles has come."""
    seen = set()
    deadline = time.monotonic() + 10
    while len(seen) < count:
        assert time.monotonic() < deadline
        target.service()
        seen |= {each.at_ns for each in target.profiles}
        time.sleep(0.001)


def with_main(process, pc):
    """Return the process with its main thread at another place, after a system call."""
    main, *others = process.threads
    registers = replace(main.registers, pc=Avma(pc))
    call = MemoryRegion(Avma(pc - 4), SVC.to_bytes(4, "little"))
    memory = LayeredMemory((RegionMemory((call,)), process.memory))
    moved = replace(main, registers=registers)
    return replace(process, threads=(moved, *others), memory=memory)


def test_profiles_come_without_a_stop(process):
    main, other = (thread.info.id for thread in process.threads[:2])
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        polls = target.process_polls()
        assert polls.poll(with_threads=True).cpu_ns is None
        stub.send_profile(profile({main: (1000, "main"), other: (2000, "")}, limit_mib=100))
        take_profiles(target, 1)
        first = polls.poll(with_threads=False)
        # Names so long that debugserver needs several packets.
        stub.send_profile(profile({main: (5000, "main"), other: (2000, "n" * 900)}))
        take_profiles(target, 1)
        deadline = time.monotonic() + 10
        while (poll := polls.poll(with_threads=True)).at_ns == first.at_ns:
            assert time.monotonic() < deadline
        assert (first.cpu_ns, poll.cpu_ns) == (3_000_000, 7_000_000)
        assert poll.threads[main].run_ns == 5_000_000
        assert poll.resident == 64 << 20
        assert polls.limit() is None
        assert polls.memory_details() == {"anonymous_bytes": 32 << 20}
        assert polls.counts([main])[main].run_ns >= 5_000_000
        assert target.thread_ids() == (main, other)
        hidden = target.poll_thread(main, with_status=True)
        assert (hidden.is_running, hidden.call) == (None, None)
        assert "hangs are not watched" in target.missing[1]
        assert (stub.interrupts, target.stops) == (0, 0)
    assert stub.closed.wait(10)
    assert stub.requests[-1] == b"D"


def test_a_damaged_profile_is_counted_and_the_next_is_read(process):
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        stub.send_profile(b"thread_used_id:x;--end--;")
        stub.send_profile(profile({process.threads[0].info.id: (1, "")}))
        take_profiles(target, 1)
        assert "1 profile" in target.missing[-1]


def test_output_of_the_process_is_no_reply(process):
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        for _ in range(20):
            stub.send(b"O" + b"hello\n".hex().encode())
        assert target.snapshot().threads
        stub.send(b"O00")
        target.service()


def test_a_poll_for_hangs_is_one_interrupt(process):
    main = process.threads[0].info.id
    sp = process.threads[0].registers.sp
    stub = RunningStub(with_main(process, 0x5000_0010))
    with stub.serving() as port, watched(port, interrupts=True) as target:
        first = target.poll_thread(main, with_status=True)
        assert first.call.place.pc == 0x5000_0010
        assert first.call.sp == sp
        copy, _ = target.copy_waiting([main])
        assert [thread.info.id for thread in copy.threads] == [main]
        assert stub.interrupts == 1
        second = target.poll_thread(main, with_status=True)
        assert second.call == first.call
        assert second.run_ns == first.run_ns
        stub.snapshot = process
        third = target.poll_thread(main, with_status=True)
        assert third.is_running
        assert third.run_ns > second.run_ns  # half of the time between both polls
        assert target.copy_waiting([main])[0].threads == ()
        assert stub.interrupts == 3
        assert target.stops == 3
        assert any("interrupts" in sentence for sentence in target.missing)


@pytest.mark.parametrize(
    "fields",
    ["metype:1;mecount:2;medata:1;medata:10;", "metype:6;mecount:2;medata:1;medata:0;"],
    ids=["EXC_BAD_ACCESS", "EXC_BREAKPOINT"],
)
def test_a_crash_stays_stopped_until_it_is_copied(process, fields):
    thread = process.threads[1].info.id
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        stub.stop(f"T91thread:{thread:x};{fields}".encode())
        deadline = time.monotonic() + 10
        while target.crash is None:
            assert time.monotonic() < deadline
            target.service()
        copy = target.snapshot()
        assert [one.info.id for one in copy.threads if one.info.crashed] == [thread]
        assert not stub.is_running
    assert stub.closed.wait(10)
    assert stub.requests[-1] == b"D"


def test_a_signal_that_is_no_crash_is_delivered(process):
    thread = process.threads[0].info.id
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        stub.stop(f"T1ethread:{thread:x};".encode())
        deadline = time.monotonic() + 10
        while not stub.is_running:
            assert time.monotonic() < deadline
            target.service()
        assert stub.requests[-1] == f"vCont;C1e:{thread:x};c".encode()
        assert target.crash is None


def test_an_exit_ends_watching(process):
    stub = RunningStub(process)
    with stub.serving() as port, watched(port) as target:
        stub.stop(b"W00")
        with pytest.raises(TargetGoneError):
            take_profiles(target, 1)


def test_a_stub_without_profiles_is_a_narrower_answer(process):
    stub = RunningStub(process, has_profiles=False)
    with stub.serving() as port, watched(port) as target:
        assert "no profile packets" in target.missing[1]
        poll = target.process_polls().poll(with_threads=True)
        assert (poll.cpu_ns, poll.resident, poll.threads) == (None, None, None)
