"""Processes that cannot be captured: the error has the reason and a remedy."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import suppress
from errno import EPERM
from pathlib import Path

import pytest

from machtrace.errors import (
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
)
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.shared.thread_copy import CaptureFailure, UncopiedThread

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to become another user")


def another_thread(pid):
    """Return the id of a thread other than the main one; a wrapped id may be lower."""
    return next(
        int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid
    )


def test_a_process_id_that_does_not_exist():
    """The id is the highest possible one."""
    with pytest.raises(TargetGoneError, match="process 4194305 does not exist"):
        LinuxProcessTarget(4194305)


def test_a_process_that_has_exited():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(TargetGoneError) as caught:
        LinuxProcessTarget(process.pid)
    assert caught.value.pid == process.pid
    assert caught.value.remedy


def test_a_zombie_has_a_reason_and_a_remedy(wait_until):
    """Its exit status has not been collected by its parent."""
    process = subprocess.Popen(["true"])
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: ") Z " in stat.read_text(), "it exits")
    try:
        with pytest.raises(TargetGoneError, match=f"process {os.getpid()} has not collected"):
            LinuxProcessTarget(process.pid)
    finally:
        process.wait()


def test_a_process_that_exits_while_it_is_a_target(build, start, wait_until, copier):
    """Every later call raises TargetGoneError."""
    process = start(build("undumpable"))
    stat = Path(f"/proc/{process.pid}/stat")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        target.snapshot()
        process.kill()
        wait_until(lambda: ") Z " in stat.read_text(), "it exits")
        asks = (target.snapshot, target.threads)
        for ask in asks:
            with pytest.raises(TargetGoneError, match="exit status"):
                ask()
        process.wait()
        for ask in asks:
            with pytest.raises(TargetGoneError, match="has exited"):
                ask()


def test_this_process_is_refused():
    with pytest.raises(TargetSpecError, match="is this process"):
        LinuxProcessTarget(os.getpid())


def test_a_thread_id_is_refused_and_its_process_named(build, start):
    process = start(build("threads"))
    thread = another_thread(process.pid)
    with pytest.raises(TargetSpecError, match=f"is a thread of process {process.pid}") as caught:
        LinuxProcessTarget(thread)
    assert str(process.pid) in caught.value.remedy


def test_a_kernel_thread_is_refused():
    stat = Path("/proc/2/stat")
    if not stat.exists() or "kthreadd" not in stat.read_text():
        pytest.skip("the kernel's threads are not visible here")
    with pytest.raises(TargetSpecError, match="kernel thread"):
        LinuxProcessTarget(2)


@pytest.mark.parametrize("pid", [0, -1])
def test_ids_of_process_groups_are_refused(pid):
    with pytest.raises(TargetSpecError):
        LinuxProcessTarget(pid)


def test_a_target_can_be_closed_twice_and_refuses_calls(build, start):
    process = start(build("undumpable"))
    target = LinuxProcessTarget(process.pid)
    target.close()
    target.close()
    for ask in (target.snapshot, target.threads):
        with pytest.raises(TargetError, match="is closed"):
            ask()


@root_only
def test_another_users_process_names_both_users(build, start, as_nobody):
    process = start(build("signals"))

    def check():
        with pytest.raises(TargetAccessError) as caught:
            LinuxProcessTarget(process.pid)
        return str(caught.value), caught.value.remedy, caught.value.errno, caught.value.pid

    message, remedy, errno, pid = as_nobody(check)
    assert f"process {process.pid} belongs to user 0, not 65534" in message
    assert "root" in remedy
    assert errno in (1, 13)
    assert pid == process.pid


@root_only
def test_a_process_that_is_not_dumpable_is_refused(build, start, as_nobody):
    """Being the same user is not enough."""
    process = start(build("undumpable"), user=65534, group=65534)

    def check():
        with pytest.raises(TargetAccessError) as caught:
            LinuxProcessTarget(process.pid)
        return str(caught.value)

    assert "not dumpable" in as_nobody(check)


@root_only
def test_an_ordinary_user_captures_own_processes(build, start, as_nobody):
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("yama lets only ancestors trace here")
    process = start(build("signals"), user=65534, group=65534)

    def check():
        with LinuxProcessTarget(process.pid) as target:
            return len(target.snapshot().threads)

    assert as_nobody(check) == 3


def test_the_error_for_a_traced_process_names_the_tracer(build, start, copier):
    process = start(build("undumpable"))
    tracer = start(build("tracer"), str(process.pid))
    with (
        LinuxProcessTarget(process.pid, copier=copier) as target,
        pytest.raises(TargetAccessError) as caught,
    ):
        target.snapshot()
    assert f"traced already, by process {tracer.pid} (tracer)" in str(caught.value)
    assert str(tracer.pid) in caught.value.remedy


class DeniedAtFirst:
    """A copier to which the kernel denies every thread the first times, as another tracer does."""

    def __init__(self, copier, times):
        self.copier = copier
        self.attempts = []
        self.times = times

    def copy(self, threads, stack_ranges, *, stack_limit):
        """Deny or copy."""
        self.attempts.append(list(threads))
        if len(self.attempts) <= self.times:
            return [
                UncopiedThread(id=thread, why=CaptureFailure.REFUSED, errno=EPERM)
                for thread in threads
            ]
        return self.copier.copy(threads, stack_ranges, stack_limit=stack_limit)


def test_a_tracer_that_detaches_soon_is_waited_for(build, start, copier):
    process = start(build("threads"))
    denied = DeniedAtFirst(copier, 2)
    with LinuxProcessTarget(process.pid, copier=denied) as target:
        snapshot = target.snapshot()
        assert {thread.info.id for thread in snapshot.threads} == set(denied.attempts[0])
    assert not snapshot.problems
    assert denied.attempts[0] == denied.attempts[1] == denied.attempts[2]


def test_a_tracer_that_stays_is_waited_for_once(build, start, monkeypatch):
    monkeypatch.setattr("machtrace.targets.linux.access._TRACER_LIMIT_S", 0.01)
    process = start(build("threads"))
    denied = DeniedAtFirst(None, 1_000_000)
    with LinuxProcessTarget(process.pid, copier=denied) as target:
        with pytest.raises(TargetAccessError):
            target.snapshot()
        before = len(denied.attempts)
        with pytest.raises(TargetAccessError):
            target.snapshot()
    assert before > 1
    assert len(denied.attempts) == before + 1


def test_a_traced_thread_is_a_problem_and_the_others_are_captured(build, start, copier):
    process = start(build("threads"))
    thread = another_thread(process.pid)
    start(build("tracer"), str(thread))
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
        assert len(snapshot.threads) == len(target.threads()) - 1
    (problem,) = snapshot.problems
    assert problem.thread == thread
    assert isinstance(problem.error, TargetAccessError)
    assert "traced already" in str(problem.error)


def open_files():
    """Return the files that this process has open, by number and name."""
    gc.collect()  # so that files of earlier tests are not closed during this one
    files = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - closed before names are read
        with suppress(FileNotFoundError):
            files.add((number, str(Path(f"/proc/self/fd/{number}").readlink())))
    return files


def test_no_file_is_left_open_by_an_error_or_a_closed_target(start, copier):
    before = open_files()
    for pid in (os.getpid(), 4194305):
        with pytest.raises(TargetError):
            LinuxProcessTarget(pid, copier=copier)
    process = start(sys.executable, "-c", "print('ready', flush=True); input()")
    opened = open_files()
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        target.snapshot()
    assert open_files() <= opened
    assert len(opened - before) == 2  # the pipes of the child
