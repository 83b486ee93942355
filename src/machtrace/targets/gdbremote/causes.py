"""The signal or exception that a stub's process stopped for.

Sources: *Debugging with GDB*, "Stop Reply Packets" and "qXfer siginfo read"; lldb's
``docs/resources/lldbgdbremote.md``, "stop reply packet extensions" (``metype``, ``mecount``,
``medata``) and "jThreadsInfo"; gdb's ``include/gdb/signals.def``. gdb's stubs send gdb's own
numbers of signals, those of lldb the system's.
"""

from __future__ import annotations

from machtrace.errors import CoreFileError
from machtrace.formats.elf.core.notes import read_signal_information
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.model.arch import Arch
from machtrace.model.cause import (
    DARWIN_SIGNALS,
    LINUX_SIGNALS,
    SOFTWARE_SIGNAL,
    Cause,
    linux_cause,
    mach_cause,
)
from machtrace.targets.gdbremote.features import StubFeatures
from machtrace.targets.gdbremote.host import RemoteHost, RemoteSystem
from machtrace.targets.gdbremote.replies import MachException, StopReply, parse_chunk
from machtrace.targets.gdbremote.session import GdbSession

STOPPED_ON_REQUEST = frozenset({0, 2, 5, 0x11, 0x13, 0x91})
"""Signals that stubs report for a stop on request."""
_SIGINFO = b"qXfer:siginfo:read::0,80"
_SOFTWARE, _BREAKPOINT = 5, 6
_LINUX_NUMBERS = {name: number for number, name in LINUX_SIGNALS.items()}


def read_cause(
    session: GdbSession,
    features: StubFeatures,
    host: RemoteHost,
    stop: StopReply,
    *,
    is_awaited: bool,
) -> Cause | None:
    """Return why the process stopped; None if that was on request, or before it ran.

    Args:
        session: with the stub.
        features: what it can do.
        host: the system that the process runs on.
        stop: the stub's stop reply.
        is_awaited: whether the process ran until it stopped of itself.

    Raises:
        ConnectionLostError, RemoteProtocolError: the stub does not answer.
    """
    if stop.exception is not None:
        return exception_cause(stop.exception, host.arch, is_awaited=is_awaited)
    if not stop.signal or (stop.signal in STOPPED_ON_REQUEST and not is_awaited):
        return None
    if host.system is not RemoteSystem.LINUX:
        name = DARWIN_SIGNALS.get(stop.signal, f"signal {stop.signal}")
        return Cause(signal=name, signal_number=stop.signal)
    number = stop.signal
    if not features.has_native_signals:
        number = _LINUX_NUMBERS.get(DARWIN_SIGNALS.get(number, ""), number)
    stated = _signal_information(session, features, host, stop)
    return stated if stated is not None and stated.signal_number == number else linux_cause(number)


def _signal_information(
    session: GdbSession, features: StubFeatures, host: RemoteHost, stop: StopReply
) -> Cause | None:
    if "siginfo" not in features.documents:
        return None
    requests = [_SIGINFO]
    if stop.thread is not None:
        requests.insert(0, b"Hg" + stop.thread.text.encode())
    request, reply = requests[-1], session.ask_all(requests)[-1]
    chunk = parse_chunk(request, reply) if reply[:1] in (b"l", b"m") else None
    if chunk is None:
        return None
    layout = LAYOUTS[2 if host.arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)
    try:
        return read_signal_information(chunk[0], layout, "siginfo")
    except CoreFileError:
        return None


def exception_cause(exception: MachException, arch: Arch, *, is_awaited: bool) -> Cause | None:
    """Return the cause that a Mach exception is; None for a stop on request."""
    kind, codes = exception
    if kind == _SOFTWARE and codes[:1] == (SOFTWARE_SIGNAL,) and len(codes) > 1:
        number = codes[1]
        if number in STOPPED_ON_REQUEST and not is_awaited:
            return None
        name = DARWIN_SIGNALS.get(number, f"signal {number}")
        return Cause(signal=name, signal_number=number)
    if kind == _BREAKPOINT and not is_awaited:
        return None  # the stub's own, such as the one at a program's start
    return mach_cause(kind, codes, arch)
