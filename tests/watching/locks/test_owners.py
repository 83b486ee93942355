"""Owners of futex words, children and files, from memory and texts as they were recorded."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

import pytest

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import LockOwner
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.polls import SystemCall
from machtrace.watching.locks.owners import (
    NOT_RECORDED,
    Libc,
    LibcKind,
    LockContext,
    WaitCall,
    child_wait,
    file_lock_kind,
    file_lock_wait,
    futex_wait,
    parse_file_locks,
    wait_call,
)
from machtrace.watching.locks.waits import libc_of

GLIBC, MUSL = Libc(LibcKind.GLIBC, (2, 36)), Libc(LibcKind.MUSL)
AT = 0x5000
OWNER, WAITER, PID = 4712, 4713, 4711
THREADS = {7: PID, 8: OWNER, 9: WAITER}
"""As in a container: the process knows other ids."""
RECORDED = LockOwner(PID, OWNER, recorded=True)
WAIT, WAIT_BITSET, LOCK_PI, SHARED_BITSET = 128, 137, 134, 265


def futex(word=AT, operation=WAIT, value=2, timeout=0):
    arguments = (word, operation, value, timeout, 0, 0xFFFFFFFF)
    return SystemCall(202, arguments, Avma(0x7000), Avma(0x8000))


def context(memory=b"", libc=GLIBC, start=AT):
    data = memory + bytes(256)
    return LockContext(PID, THREADS, RegionMemory([MemoryRegion(Avma(start), data)]), libc)


def mutex(lock=2, count=0, owner=8, users=1, kind=0, links=(0, 0)):
    return struct.pack("<IIIIIhhQQ", lock, count, owner, users, kind, 0, 0, *links)


@pytest.mark.parametrize(
    ("memory", "call", "name"),
    [
        (mutex(), futex(), "mutex"),
        (mutex(kind=1, count=3), futex(), "recursive mutex"),
        (mutex(kind=2), futex(), "error-checking mutex"),
        (mutex(kind=3), futex(), "mutex"),
        (mutex(kind=0x80), futex(operation=0), "mutex"),
        (mutex(), futex(operation=WAIT_BITSET, timeout=0x7100), "mutex"),
        (
            mutex(lock=0x80000008, count=1, kind=0x10, links=(1, 2)),
            futex(value=0x80000008),
            "robust mutex",
        ),
        (mutex(lock=5 << 19 | 2, kind=0x40), futex(value=5 << 19 | 2), "mutex"),
        (mutex(lock=0x80000008), futex(operation=LOCK_PI, value=0), "priority-inheriting mutex"),
    ],
)
def test_a_mutex_of_glibc_has_its_owner(memory, call, name):
    wait = futex_wait(call, context(memory))
    assert (wait.waits_for.what, wait.waits_for.address, wait.owner) == (name, AT, RECORDED)
    assert wait.is_timed == bool(call.arguments[3])


@pytest.mark.parametrize(
    ("memory", "call"),
    [
        pytest.param(mutex(owner=77), futex(), id="the owner does not live"),
        pytest.param(mutex(owner=0), futex(), id="it is being unlocked"),
        pytest.param(mutex(lock=1), futex(), id="it has no waiters"),
        pytest.param(mutex(lock=0), futex(), id="it is free"),
        pytest.param(mutex(users=0), futex(), id="nobody uses it"),
        pytest.param(mutex(users=4), futex(), id="more users than threads"),
        pytest.param(mutex(count=1), futex(), id="a normal mutex does not count"),
        pytest.param(mutex(kind=1), futex(), id="a recursive mutex counts"),
        pytest.param(mutex(kind=0x1234), futex(), id="no such kind"),
        pytest.param(mutex(links=(1, 0)), futex(), id="only robust ones are linked"),
        pytest.param(mutex(kind=0x20), futex(), id="the kernel waits for these otherwise"),
        pytest.param(
            mutex(lock=0x80000008, count=1, kind=0x10, owner=9),
            futex(value=0x80000008),
            id="a robust mutex states two owners",
        ),
        pytest.param(mutex(), futex(operation=WAIT_BITSET), id="the mutex of Rust's library"),
        pytest.param(mutex(lock=8), futex(operation=LOCK_PI), id="PI without waiters"),
        pytest.param(mutex(lock=0xC0000008), futex(operation=LOCK_PI), id="PI, owner died"),
        pytest.param(mutex(lock=0x80000055), futex(operation=LOCK_PI), id="PI, no such thread"),
        pytest.param(b"", futex(value=0), id="a condition variable"),
        pytest.param(b"", futex(operation=WAIT_BITSET, value=0), id="a semaphore"),
        pytest.param(mutex(), futex(word=0x99999), id="memory that cannot be read"),
    ],
)
def test_no_owner_is_guessed(memory, call):
    wait = futex_wait(call, context(memory))
    assert wait.owner is None
    assert wait.waits_for.owner == NOT_RECORDED


def rwlock(readers=3, phase=3, writers=3, writer=8, shared=0, flags=0, pads=0):
    words = (readers, 0, phase, writers, pads, 0, writer, shared)
    return struct.pack("<8IQQI", *words, 0, 0, flags)


@pytest.mark.parametrize("offset", [8, 12])
def test_a_write_lock_has_its_writer(offset):
    wait = futex_wait(futex(AT + offset, WAIT_BITSET, 3), context(rwlock()))
    assert (wait.waits_for.what, wait.waits_for.address) == ("read-write lock", AT)
    assert wait.owner == RECORDED


@pytest.mark.parametrize(
    ("memory", "libc"),
    [
        (rwlock(readers=0x1C, writer=0), GLIBC),
        (rwlock(readers=2, writer=8), GLIBC),
        (rwlock(writer=77), GLIBC),
        (rwlock(pads=5), GLIBC),
        (rwlock(flags=9), GLIBC),
        (rwlock(shared=1), GLIBC),
        (rwlock(writers=77), GLIBC),
        (rwlock(), Libc(LibcKind.GLIBC, (2, 24))),
        (rwlock(), MUSL),
    ],
)
def test_a_read_write_lock_without_a_certain_writer(memory, libc):
    wait = futex_wait(futex(AT + 8, WAIT_BITSET, 3), context(memory, libc))
    assert wait.waits_for.owner == NOT_RECORDED


def test_a_join_has_the_thread():
    head = struct.pack("<QQ", AT - 16, AT - 16)
    memory = head + bytes(32) + struct.pack("<QQ", AT - 64, AT - 64) + struct.pack("<I", 8)
    call = futex(AT, SHARED_BITSET, 8)
    wait = futex_wait(call, context(memory, start=AT - 64))
    assert (wait.waits_for.what, wait.owner) == ("end of a thread", RECORDED)
    private = futex(AT, WAIT_BITSET, 8)
    assert futex_wait(private, context(memory, start=AT - 64)).owner is None
    broken = bytes(16) + memory[16:]
    assert futex_wait(call, context(broken, start=AT - 64)).owner is None


def musl_mutex(kind=1, word=0x80000008, waiters=1, previous=AT + 64):
    fields = struct.pack("<IIIiiiQQ", kind, word, waiters, 0, 0, 0, previous, 0)
    return fields.ljust(64, b"\0") + struct.pack("<Q", AT + 32)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(1, "recursive mutex"), (2, "error-checking mutex"), (4, "robust mutex")],
)
def test_a_mutex_of_musl_has_its_owner(kind, name):
    call = futex(AT + 4, WAIT, 0x80000008)
    for libc in (MUSL, None):
        wait = futex_wait(call, context(musl_mutex(kind), libc))
        assert (wait.waits_for.what, wait.waits_for.address, wait.owner) == (name, AT, RECORDED)


@pytest.mark.parametrize(
    "memory",
    [
        musl_mutex(kind=0, word=0x80000010),
        musl_mutex(kind=0),
        musl_mutex(word=0x80000055),
        musl_mutex(word=0xC0000008),
        musl_mutex(waiters=0),
        musl_mutex(waiters=9),
        musl_mutex(previous=AT),
        musl_mutex(kind=0x100),
    ],
)
def test_a_mutex_of_musl_without_an_owner(memory):
    value = struct.unpack_from("<I", memory, 4)[0]
    assert futex_wait(futex(AT + 4, WAIT, value), context(memory, MUSL)).owner is None


def test_a_join_of_musl():
    memory = struct.pack("<Q", AT).ljust(48, b"\0") + struct.pack("<Iii", 8, 0, 2)
    wait = futex_wait(futex(AT + 56, WAIT, 2), context(memory, MUSL))
    assert wait.owner == RECORDED
    wrong = struct.pack("<Q", AT + 8) + memory[8:]
    assert futex_wait(futex(AT + 56, WAIT, 2), context(wrong, MUSL)).owner is None


@pytest.mark.parametrize("operation", [1, 3, 5, 7, 10])
def test_calls_of_futex_that_do_not_wait(operation):
    assert futex_wait(futex(operation=operation), context(mutex())) is None


@pytest.mark.skipif(sys.platform != "linux" or sys.maxsize < 1 << 32, reason="takes 64-bit Linux")
@pytest.mark.parametrize("is_recursive", [False, True])
def test_a_mutex_of_this_process_is_as_expected(is_recursive):
    """The offsets are those of the C library that runs the tests."""
    if not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("takes glibc")
    library = ctypes.CDLL(None)
    lock, attributes = (ctypes.c_long * 8)(), (ctypes.c_long * 4)()
    library.pthread_mutexattr_init(attributes)
    library.pthread_mutexattr_settype(attributes, 1 if is_recursive else 0)
    library.pthread_mutex_init(lock, attributes)
    library.pthread_mutex_lock(lock)
    memory = bytearray(lock)
    memory[:4] = struct.pack("<I", 2)  # as if somebody waited
    me = threading.get_native_id()
    wait = futex_wait(
        futex(),
        LockContext(PID, {me: me}, RegionMemory([MemoryRegion(Avma(AT), bytes(memory))]), GLIBC),
    )
    library.pthread_mutex_unlock(lock)
    assert wait.owner == LockOwner(PID, me, recorded=True)
    assert wait.waits_for.what == ("recursive mutex" if is_recursive else "mutex")


def call_of(number, *arguments):
    return SystemCall(number, (*arguments, *(0,) * (6 - len(arguments))), Avma(1), Avma(2))


@pytest.mark.parametrize(
    ("call", "kind", "owner", "name"),
    [
        (call_of(61, 31), WaitCall.WAIT4, 4800, "end of process 4800"),
        (call_of(61, 99), WaitCall.WAIT4, None, "end of process 99"),
        (call_of(61, (1 << 64) - 1), WaitCall.WAIT4, None, "end of any of 2 child processes"),
        (call_of(61, 0), WaitCall.WAIT4, None, "end of a process of a group"),
        (call_of(247, 1, 32), WaitCall.WAITID, 4801, "end of process 4801"),
        (call_of(247, 0, 0), WaitCall.WAITID, None, "end of any of 2 child processes"),
        (call_of(247, 3, 5), WaitCall.WAITID, None, "end of process of a descriptor"),
    ],
)
def test_a_wait_for_a_child(call, kind, owner, name):
    waits_for = child_wait(call, kind, {31: 4800, 32: 4801})
    assert waits_for.what == name
    assert waits_for.owner == (
        NOT_RECORDED if owner is None else LockOwner(owner, None, recorded=True)
    )


def test_any_child_of_one_is_that_child():
    waits_for = child_wait(call_of(61, 0xFFFFFFFF), WaitCall.WAIT4, {31: 4800})
    assert waits_for.owner == LockOwner(4800, None, recorded=True)


LOCKS = """\
1: FLOCK  ADVISORY  WRITE 600 fe:00:100 0 EOF
1: -> FLOCK  ADVISORY  WRITE 601 fe:00:100 0 EOF
2: POSIX  ADVISORY  WRITE 602 fe:00:100 0 EOF
2:  -> POSIX  ADVISORY  READ 601 fe:00:100 0 9
3: FLOCK  ADVISORY  WRITE 603 fe:00:200 0 EOF
3: -> FLOCK  ADVISORY  WRITE 601 fe:00:200 0 EOF
4: OFDLCK ADVISORY  WRITE -1 fe:00:300 0 EOF
4: -> OFDLCK ADVISORY  WRITE -1 fe:00:300 0 EOF
5: LEASE  ACTIVE    READ  604 fe:00:100 0 EOF
6: FLOCK  ADVISORY  WRITE 0 fe:00:400 0 EOF
6: -> FLOCK  ADVISORY  WRITE 601 fe:00:400 0 EOF
seven: FLOCK ADVISORY WRITE x y z
"""


@pytest.mark.parametrize(
    ("kind", "inode", "owner"),
    [
        ("FLOCK", 100, 600),
        ("FLOCK", 200, 603),
        ("POSIX", 100, 602),
        ("FLOCK", None, None),
        ("OFDLCK", 300, None),
        ("FLOCK", 400, None),
        ("FLOCK", 999, None),
    ],
)
def test_who_holds_the_lock_of_a_file(kind, inode, owner):
    file = None if inode is None else ((0xFE, 0), inode)
    waits_for = file_lock_wait(601, kind, parse_file_locks(LOCKS), file, "/data/db")
    assert waits_for.what.endswith(" of /data/db")
    assert waits_for.owner == (
        NOT_RECORDED if owner is None else LockOwner(owner, None, recorded=True)
    )


def test_calls_by_architecture():
    assert wait_call(futex(), Arch.X86_64) is WaitCall.FUTEX
    assert wait_call(call_of(98), Arch.ARM64) is WaitCall.FUTEX
    assert wait_call(call_of(98), Arch.X86_64) is None
    assert wait_call(futex(), Arch.I386) is None
    assert file_lock_kind(call_of(73, 3, 2), WaitCall.FLOCK) == "FLOCK"
    assert file_lock_kind(call_of(73, 3, 6), WaitCall.FLOCK) is None
    assert file_lock_kind(call_of(72, 3, 7), WaitCall.FCNTL) == "POSIX"
    assert file_lock_kind(call_of(72, 3, 6), WaitCall.FCNTL) is None


@pytest.mark.parametrize(
    ("path", "libc"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", Libc(LibcKind.GLIBC)),
        ("/lib/x86_64-linux-gnu/libc-2.24.so", Libc(LibcKind.GLIBC, (2, 24))),
        ("/lib/ld-musl-x86_64.so.1", MUSL),
        ("/usr/lib/x86_64-linux-musl/libc.so", MUSL),
        ("/system/lib64/libc.so", None),
    ],
)
def test_the_c_library_of_a_process(path, libc):
    assert libc_of(["/usr/bin/program", path]) == libc
