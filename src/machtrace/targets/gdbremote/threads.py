"""The threads of a stub's process: which they are, what they are called, their registers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from machtrace.errors import MachtraceError, RemoteProtocolError
from machtrace.frozen import dataclass
from machtrace.model.memory import MemoryRegion
from machtrace.targets.gdbremote.features import StubFeatures, read_documents
from machtrace.targets.gdbremote.json_documents import StubThread, parse_threads_info
from machtrace.targets.gdbremote.registers import RegisterReader, register_bytes
from machtrace.targets.gdbremote.replies import (
    MachException,
    ThreadName,
    is_error,
    parse_thread,
    parse_thread_list,
    refused,
)
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.gdbremote.xml_documents import parse_threads_document

_THREADS = "threads:"
_MAX_PARTS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteThread:
    """A thread, and the facts that the stub listed with it."""

    handle: ThreadName
    name: str | None = None
    queue: str | None = None
    registers: Mapping[int, bytes] = field(default_factory=dict)
    """By the stub's numbers; those that came with the list."""
    memory: tuple[MemoryRegion, ...] = ()
    exception: MachException | None = None
    """The Mach exception that stopped it, if the list states it."""


def list_threads(session: GdbSession, features: StubFeatures) -> tuple[RemoteThread, ...]:
    """List the threads in the stub's order, by its most detailed request.

    Raises:
        ConnectionLostError, RemoteProtocolError: it gives no list.
    """
    if features.has_thread_suffix:
        reply = session.ask(b"jThreadsInfo")
        if reply and not is_error(reply):
            return tuple(map(_reported, parse_threads_info(reply)))
    if "threads" in features.documents:
        (document,) = read_documents(session, [_THREADS], features)
        if document is not None:
            return tuple(
                RemoteThread(handle=handle, name=name or None)
                for handle, name in parse_threads_document(document).items()
            )
    return tuple(RemoteThread(handle=handle) for handle in _plain_list(session))


def _reported(thread: StubThread) -> RemoteThread:
    return RemoteThread(
        handle=ThreadName(f"{thread.id:x}", None, thread.id),
        name=thread.name,
        queue=thread.queue,
        registers=thread.registers,
        memory=thread.memory,
        exception=thread.exception,
    )


def _plain_list(session: GdbSession) -> list[ThreadName]:
    asked, reply = b"qfThreadInfo", session.ask(b"qfThreadInfo")
    if not reply:
        # A stub without threads has one, which it calls by no name.
        current = session.ask(b"qC")
        handle = parse_thread(current.removeprefix(b"QC").decode("ascii", "replace"))
        return [handle or ThreadName("", None, 1)]
    threads: dict[ThreadName, None] = {}
    deadline = session.deadline_of_parts()
    for _ in range(_MAX_PARTS):
        session.check(deadline)
        part = parse_thread_list(reply)
        if not part:
            return list(threads)
        threads.update(dict.fromkeys(part))
        asked = b"qsThreadInfo"
        reply = session.ask(asked)
    raise refused("a list of threads that does not end", asked, reply)


def read_registers(
    session: GdbSession,
    features: StubFeatures,
    reader: RegisterReader,
    threads: Sequence[RemoteThread],
    with_each: Sequence[bytes] = (),
) -> tuple[list[Mapping[int, bytes] | MachtraceError], list[bytes]]:
    """Read each thread's registers by the stub's numbers, or the error; also return more replies.

    Args:
        session: with the stub.
        features: what it can do.
        reader: which registers are wanted.
        threads: of which.
        with_each: other requests, answered in the same batch, if there is one.

    Raises:
        ConnectionLostError, RemoteProtocolError: the stub answers nothing.
    """
    lacking = [thread for thread in threads if not reader.has_all(thread.registers)]
    if not lacking:
        return [thread.registers for thread in threads], []
    requests: list[bytes] = []
    for thread in lacking:
        requests += _all_registers(thread.handle, features)
    replies = session.ask_all([*requests, *with_each])
    step = 1 if features.has_thread_suffix else 2
    values_of: dict[ThreadName, Mapping[int, bytes] | MachtraceError] = {}
    for index, thread in enumerate(lacking):
        selected, reply = replies[index * step], replies[index * step + step - 1]
        values = reader.split(reply) if not is_error(reply) else {}
        if step > 1 and selected not in (b"OK", b""):
            values_of[thread.handle] = _without(thread, requests[index * step], selected)
        elif not reader.has_all(values):
            values = _one_by_one(session, features, reader, thread) | dict(thread.registers)
            is_enough = reader.of_values(values) is not None
            asked = requests[index * step + step - 1]
            values_of[thread.handle] = values if is_enough else _without(thread, asked, reply)
        else:
            values_of[thread.handle] = values
    results = [values_of.get(thread.handle, thread.registers) for thread in threads]
    return results, replies[len(requests) :]


def _suffix(handle: ThreadName) -> bytes:
    return b";thread:%s;" % handle.text.encode()


def _all_registers(handle: ThreadName, features: StubFeatures) -> list[bytes]:
    if features.has_thread_suffix:
        return [b"g" + _suffix(handle)]
    return [b"Hg" + (handle.text or "0").encode(), b"g"]


def _one_by_one(
    session: GdbSession, features: StubFeatures, reader: RegisterReader, thread: RemoteThread
) -> dict[int, bytes]:
    """By ``p``, for stubs whose ``g`` has too little."""
    suffix = _suffix(thread.handle) if features.has_thread_suffix else b""
    wanted = reader.wanted
    requests = [b"p%x%s" % (register.number, suffix) for register in wanted]
    if not suffix:
        requests.insert(0, _all_registers(thread.handle, features)[0])
    replies = session.ask_all(requests)[len(requests) - len(wanted) :]
    values: dict[int, bytes] = {}
    for register, reply in zip(wanted, replies, strict=True):
        data = b"" if is_error(reply) else register_bytes(reply.decode("ascii", "replace"))
        if len(data) == register.size:
            values[register.number] = data
    return values


def _without(thread: RemoteThread, asked: bytes, came: bytes) -> RemoteProtocolError:
    error = refused(f"no registers of thread {thread.handle.id}", asked, came)
    error.remedy = "no action needed if the thread exited; the others were captured"
    return error


def chosen(
    threads: Sequence[RemoteThread], wanted: Collection[int] | None
) -> list[tuple[int, RemoteThread]]:
    """Return the threads with ``wanted`` ids (None: all), with their indexes, from 1."""
    return [
        (index, one)
        for index, one in enumerate(threads, 1)
        if wanted is None or one.handle.id in wanted
    ]
