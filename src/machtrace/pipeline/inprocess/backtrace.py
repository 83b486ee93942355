"""The stacks of this process's threads, by its cached rules and names."""

from __future__ import annotations

from machtrace.cpython.runs import PythonRuns, python_stacks, with_python_runs
from machtrace.errors import MachtraceError, TargetSpecError, ThreadGoneError
from machtrace.model.options import DEFAULT_STACK_LIMIT, NameOptions, PythonView, WalkOptions
from machtrace.model.snapshot import Problem, ThreadId
from machtrace.model.symbol import CallStack
from machtrace.pipeline.inprocess import session
from machtrace.pipeline.inprocess.session import OwnProcess
from machtrace.targets.base import ThreadChoice, select_threads
from machtrace.targets.inprocess.threads import OwnTarget, ThreadLike
from machtrace.unwinder.frame_limit import FrameLimit


def backtrace(
    thread: ThreadLike = None,
    *,
    limit: int = 512,
    symbolicate: bool = True,
    lines: bool = True,
    python: PythonView = False,
    stack_limit: int = DEFAULT_STACK_LIMIT,
) -> CallStack:
    """Return the call stack of a thread of this process, innermost frame first.

    The thread is suspended by a signal while its registers and stack are copied; unwinding and
    symbolication follow. It may hold any lock, the interpreter's and malloc's included, or wait in
    a system call, which can then end early: see
    :class:`~machtrace.targets.inprocess.linux.SelfTarget`.

    Args:
        thread: a ``threading.Thread``; a native id or pthread; ``main``, ``#N`` as lldb counts, or
            a name (the first match); None for the calling thread.
        limit: maximum number of frames: the innermost; the default keeps both ends of a deeper
            stack.
        symbolicate: whether to look up function names.
        lines: whether to look up source lines and inlined calls; see :func:`machtrace.backtraces`.
        python: whether to attach the Python functions that each frame of CPython's loop runs
            (:attr:`~machtrace.model.symbol.Frame.python`); requires names. The interpreter's lock
            is held while the thread is copied, so that both have the same moment.
        stack_limit: maximum bytes copied of the stack.

    Raises:
        TargetSpecError: no thread matches, or threads cannot be copied here.
        ThreadGoneError: the thread exited meanwhile.
        TargetError: the thread did not respond in time, or blocks the signal.
    """
    with session.LOCK:
        own = session.own_process()
        wanted = _thread_id(own.target, thread)
        walk = WalkOptions(limit=limit, stack_limit=stack_limit)
        names = NameOptions(symbolicate=symbolicate, lines=lines, python=python)
        stacks, problems = _stacks(own, (wanted,), walk, names)
        if not stacks:
            raise _reason([problem.error for problem in problems], wanted)
        return stacks[0]


def own_stacks(threads: ThreadChoice, walk: WalkOptions, names: NameOptions) -> list[CallStack]:
    """Return the call stacks of this process's threads, the calling one included.

    Raises:
        TargetSpecError: no thread matches, or threads cannot be copied here.
        TargetError: no signal or memory is available to begin.
    """
    with session.LOCK:
        own = session.own_process()
        listed = own.target.threads()
        ids = select_threads(listed, threads) or tuple(thread.id for thread in listed)
        return _stacks(own, ids, walk, names)[0]


def _stacks(
    own: OwnProcess, threads: tuple[ThreadId, ...], walk: WalkOptions, names: NameOptions
) -> tuple[list[CallStack], tuple[Problem, ...]]:
    target, runs = own.target, dict[ThreadId, PythonRuns]()
    if names.python:
        snapshot, runs = target.snapshot_with_python(threads, stack_limit=walk.stack_limit)
        caller = target.thread_id(None)
        if caller in runs:
            runs[caller] = _outside(runs[caller])
        if names.python_only:
            limit = FrameLimit.of(walk.limit)
            return list(python_stacks(snapshot, runs, limit)[0]), snapshot.problems
    else:
        snapshot = target.snapshot(threads, stack_limit=walk.stack_limit)
    symbolicator = own.lines if names.lines else own.names
    name = symbolicator.symbolicate if names.symbolicate else symbolicator.locate
    stacks = tuple(map(name, own.unwind(snapshot, limit=walk.limit)))
    if runs and names.symbolicate:
        stacks, _ = with_python_runs(stacks, runs)
    return list(stacks), snapshot.problems


_PACKAGE = __file__.rpartition("pipeline")[0]


def _outside(runs: PythonRuns) -> PythonRuns:
    """Return ``runs`` of the calling thread without this package's innermost functions."""
    if not runs:
        return runs
    innermost = runs[0]
    while innermost and innermost[0].location.path.startswith(_PACKAGE):
        innermost = innermost[1:]
    return (innermost, *runs[1:])


def _thread_id(target: OwnTarget, thread: ThreadLike) -> ThreadId:
    if isinstance(thread, str):
        infos = target.threads()
        ids = select_threads(infos, thread)
        if ids is None:
            raise TargetSpecError(
                f"{thread!r} selects every thread, not one",
                remedy="name one thread, or call machtrace.backtraces()",
            )
        return ids[0]
    return target.thread_id(thread)


def _reason(errors: list[MachtraceError], thread: ThreadId) -> MachtraceError:
    gone = ThreadGoneError(f"thread {thread} has exited", thread=thread)
    return errors[0] if errors else gone
