"""Watching in a few lines of Python: :func:`watch`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.errors import MachtraceError, TargetSpecError
from machtrace.extension_imports import libraries_first
from machtrace.images.search_path import path_names
from machtrace.model.incident.facts import WatchIncident
from machtrace.targets.open import SCHEMES, SELF, System, process_named, this_system
from machtrace.watching.target import REMOTE, interrupts
from machtrace.watching.thresholds import (
    DEFAULT_CPU,
    DEFAULT_MEMORY,
    POLL_NS,
    WatchOptions,
    parse_cpu,
    parse_memory,
)
from machtrace.watching.watcher import FOREVER_NS, Watcher

if TYPE_CHECKING:  # imports the extension, which may be missing
    from machtrace.watching.own.watcher import OwnWatcher

_DEFAULT_HANG_S = 0.25


def watched_spec(spec: int | str) -> int | str:
    """Return the id of the process that a spec names, or the spec of one elsewhere.

    Raises:
        TargetSpecError: it names none, or something that cannot be watched.
    """
    if isinstance(spec, str) and spec.startswith(REMOTE):
        return spec
    if isinstance(spec, int) or spec.strip().isdecimal():
        return int(spec)
    if spec == SELF or spec.startswith(tuple(scheme.prefix for scheme in SCHEMES)):
        raise TargetSpecError(
            f"{spec} cannot be watched", remedy="pass the id or the name of a process"
        )
    return process_named(spec)


@contextmanager
def watch(  # noqa: PLR0913 - an option each
    target: int | str,
    *,
    hang: float | None = _DEFAULT_HANG_S,
    threads: str | Sequence[str] = "main",
    poll: float = POLL_NS / 1e9,
    launch_grace: float | None = None,
    search: Sequence[str | Path] = (),
    lines: bool = True,
    deadlocks: bool = True,
    cpu: str | None = DEFAULT_CPU,
    memory: str | None = DEFAULT_MEMORY,
    crash: bool | None = None,
    on_incident: Callable[[WatchIncident], None] = lambda _: None,
    record: str | Path | None = None,
) -> Iterator[Watcher | OwnWatcher]:
    """Watch a process of this machine in a thread of its own until the end of the block.

    At the end the incidents are complete: ``watcher.incidents``. Of more than 64, the oldest have
    no stacks any more, which ``on_incident`` was given.

    Args:
        target: the id or the name of a process, or a ``gdb://``, ``device://`` or ``frida://``;
            ``self`` is this one, which is watched by a thread
            of C, also while a C function keeps the interpreter's lock. See
            :class:`~machtrace.watching.own.watcher.OwnWatcher`, and :func:`machtrace.deadline`.
        hang: seconds that a thread may spend away from its loop; None to report no hangs. A
            ``gdb://`` or ``device://`` is interrupted for each poll: there the default is None.
        threads: the threads that are watched for hangs: ``main``, ``all``, a name or an id, or
            several of these.
        poll: seconds between two polls.
        launch_grace: seconds after the process's start in which a thread that was never idle is
            not reported; by default 5. ``self``: seconds in which no hang is reported at first.
        search: files and folders with the program's images.
        lines: whether source lines are looked up.
        deadlocks: whether deadlocks are reported.
        cpu: shares of one processor with times, such as ``80%/60s``; None to report none.
        memory: ``1GiB``, ``90%`` of the limit, ``+100MiB/1s``, ``limit/5m``; None to report none.
        crash: whether the process is traced for crashes: each signal and each new thread takes
            longer then, and no debugger can attach to it. With None, those of a ``gdb://`` or
            ``device://`` are reported, which is interrupted anyway.
        on_incident: called with each incident when it is seen and when it has ended, in another
            thread.
        record: ``self``: the path of a file from which
            :func:`~machtrace.watching.own.record.read_record` reads the incident that lasted when
            this process was killed.

    Raises:
        TargetSpecError: the target cannot be watched.
        TargetAccessError: the kernel denies access.
        ArgumentError: a threshold makes no sense.
    """
    if hang == _DEFAULT_HANG_S and interrupts(target):
        hang = None  # each poll would stop it
    options = WatchOptions(
        hang_ns=None if hang is None else round(hang * 1e9),
        poll_ns=round(poll * 1e9),
        threads=threads if isinstance(threads, str) else tuple(threads),
        launch_grace_ns=None if launch_grace is None else round(launch_grace * 1e9),
        search=path_names(search),
        lines=lines,
        deadlocks=deadlocks,
        cpu=() if cpu is None else parse_cpu(cpu, processors=os.cpu_count() or 1),
        memory=() if memory is None else parse_memory(memory),
        crash=crash,
    )
    stop = threading.Event()
    watcher: Watcher | OwnWatcher
    if target == SELF and crash:
        raise TargetSpecError(
            "crashes of this process are not seen from inside",
            remedy="leave out crash, and run machtrace watch --crash PID beside it",
        )
    if target == SELF and this_system() is System.LINUX:
        with libraries_first():
            from machtrace.watching.own.watcher import OwnWatcher

            path = None if record is None else str(record)
            watcher = OwnWatcher(options, on_incident, record=path)
    else:
        watcher = Watcher(watched_spec(target), options, on_incident)
    with watcher:
        errors: list[MachtraceError] = []
        began = threading.Event()

        def run() -> None:
            try:
                watcher.begin()
                began.set()
                watcher.run(FOREVER_NS, should_stop=stop.is_set)
            except MachtraceError as error:
                errors.append(error)
            finally:
                began.set()

        thread = threading.Thread(target=run, name="machtrace-watch", daemon=True)
        thread.start()
        began.wait()
        try:
            if not errors:
                yield watcher
        finally:
            stop.set()
            watcher.wake()
            thread.join()
        for error in errors:
            raise error
