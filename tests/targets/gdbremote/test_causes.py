"""Why a stub's process stopped: Mach exceptions as debugserver states them, and signals."""

from __future__ import annotations

import json

import pytest

from machtrace.model.arch import Arch
from machtrace.model.cause import Cause
from machtrace.targets.gdbremote.causes import exception_cause
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.gdbremote.replies import MachException
from tests.support.stand_ins.gdb_stub import Dialect, SnapshotStub
from tests.support.writers.processes import synthetic_process

PROCESS = synthetic_process(Arch.ARM64, threads=3, images=2, depth=4).snapshot
ACCESS = b"metype:1;mecount:2;medata:1;medata:10;"


class StoppedStub(SnapshotStub):
    """A stub whose second thread stopped the process."""

    stop = b"T91thread:%x;" % PROCESS.threads[1].info.id + ACCESS
    rows = ()

    def answer(self, request):
        """Answer with the stop, and with facts of threads."""
        if request == b"?":
            return self.stop
        if request == b"jThreadsInfo" and self.rows:
            rows = json.loads(super().answer(request))
            return json.dumps(
                [row | facts for row, facts in zip(rows, self.rows, strict=True)]
            ).encode()
        return super().answer(request)


def causes(stub):
    """Return each thread's cause, and which threads crashed."""
    with stub.serving() as port, GdbRemoteTarget(f"gdb://127.0.0.1:{port}") as target:
        listed = [info.cause for info in target.threads()]
        infos = [thread.info for thread in target.snapshot().threads]
    assert [info.cause for info in infos] == listed
    return listed, [info.crashed for info in infos]


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_stopped_thread_has_the_exception(dialect):
    stub = StoppedStub(PROCESS, dialect)
    (first, second, third), crashed = causes(stub)
    assert (first, third, crashed) == (None, None, [False, True, False])
    assert str(second) == ("EXC_BAD_ACCESS (SIGSEGV) at 0x10: KERN_INVALID_ADDRESS, near null")
    assert second.lldb_text == "EXC_BAD_ACCESS (code=1, address=0x10)"


def test_the_list_of_threads_states_exceptions_of_several():
    stub = StoppedStub(PROCESS)
    stub.rows = (
        {"reason": "exception", "metype": 1, "mecount": 2, "medata": [2, 0x50000]},
        {"reason": "exception"},
        {"reason": "exception", "metype": 6, "medata": [1, 0x5000]},
    )
    (first, second, third), crashed = causes(stub)
    assert str(first) == "EXC_BAD_ACCESS (SIGBUS) at 0x50000: KERN_PROTECTION_FAILURE"
    assert second is not None
    assert third is None  # a breakpoint before the process ran is the debugger's
    assert crashed == [True, True, False]


@pytest.mark.parametrize(
    ("stop", "cause"),
    [
        (b"T11", None),
        (b"T05", None),
        (b"T11metype:5;mecount:2;medata:10003;medata:11;", None),
        (b"T0b", Cause(signal="SIGSEGV", signal_number=11)),
        (b"T0a", Cause(signal="SIGBUS", signal_number=10)),
        (
            b"T0dmetype:5;mecount:2;medata:10003;medata:6;",
            Cause(signal="SIGABRT", signal_number=6),
        ),
    ],
)
def test_stops_on_request_are_no_causes(stop, cause):
    stub = StoppedStub(PROCESS)
    stub.stop = stop + b"thread:%x;" % PROCESS.threads[1].info.id
    assert causes(stub)[0] == [None, cause, None]


def test_a_breakpoint_is_a_cause_if_the_process_ran_until_it():
    exception = MachException(6, (1, 0x5000))
    assert exception_cause(exception, Arch.ARM64, is_awaited=False) is None
    awaited = exception_cause(exception, Arch.ARM64, is_awaited=True)
    assert awaited.lldb_text == "EXC_BREAKPOINT (code=1, subcode=0x5000)"
    assert awaited.is_fatal
