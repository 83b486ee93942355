"""The stack of a thread of this process in one call."""

from __future__ import annotations

from machtrace.cpython.runs import PythonRuns, with_python
from machtrace.errors import MachtraceError, TargetSpecError, ThreadGoneError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import ThreadId
from machtrace.model.symbol import CallStack
from machtrace.pipeline.inprocess import session
from machtrace.targets.base import select_threads
from machtrace.targets.inprocess.threads import OwnTarget, ThreadLike


def backtrace(
    thread: ThreadLike = None,
    *,
    limit: int = 512,
    symbolicate: bool = True,
    lines: bool = True,
    python: bool = False,
    stack_limit: int = DEFAULT_STACK_LIMIT,
) -> CallStack:
    """The call stack of a thread of this process, innermost frame first.

    The thread is stopped by a signal while its registers and stack are copied; walking and naming
    come after. It may hold any lock, the interpreter's and malloc's included, or wait in a system
    call, which can end early then: see :class:`~machtrace.targets.inprocess.linux.SelfTarget`.

    Args:
        thread: a ``threading.Thread``; a native id or pthread; ``main``, ``#N`` as lldb counts, or
            a name, of several threads the first; None is the calling thread.
        limit: maximum number of frames: the innermost; the default keeps both ends of a deeper
            stack.
        symbolicate: whether to look names up.
        lines: whether source lines and inlined calls are wanted; see :func:`machtrace.backtraces`.
        python: whether each frame of CPython's loop is to have the Python functions that it runs
            (:attr:`~machtrace.model.symbol.Frame.python`), with names looked up. The interpreter's
            lock is kept while the thread is copied, so that both are of one moment.
        stack_limit: how many bytes of the stack are copied at most.

    Raises:
        TargetSpecError: no thread answers to it, or threads cannot be copied here.
        ThreadGoneError: it ended meanwhile.
        TargetError: it did not answer in time, or blocks the signal.
    """
    with session.LOCK:
        own = session.own_process()
        wanted = _thread_id(own.target, thread)
        runs: dict[ThreadId, PythonRuns] = {}
        if python:
            snapshot, runs = own.target.snapshot_with_python((wanted,), stack_limit=stack_limit)
        else:
            snapshot = own.target.snapshot((wanted,), stack_limit=stack_limit)
        if not snapshot.threads:
            raise _reason([problem.error for problem in snapshot.problems], wanted)
        walked = own.unwind(snapshot, limit=limit)[0]
        if not symbolicate:
            return own.names.locate(walked)
        stack = (own.lines if lines else own.names).symbolicate(walked)
        if wanted == own.target.thread_id(None):
            runs = {wanted: _outside(runs.get(wanted))}
        return (with_python(stack, runs.get(wanted)) or stack) if python else stack


_PACKAGE = __file__.rpartition("pipeline")[0]


def _outside(runs: PythonRuns) -> PythonRuns:
    """``runs`` of the calling thread without this package's functions at their inner end."""
    if not runs:
        return runs
    innermost = runs[0]
    while innermost and innermost[0].location.path.startswith(_PACKAGE):
        innermost = innermost[1:]
    return (innermost, *runs[1:])


def _thread_id(target: OwnTarget, thread: ThreadLike) -> ThreadId:
    if isinstance(thread, str):
        infos = target.threads()
        found = select_threads(infos, thread)
        if found is None:
            raise TargetSpecError(
                f"{thread!r} is every thread, and the stack of one is asked for",
                remedy="name one thread, or take machtrace.backtraces('self')",
            )
        return found[0]
    return target.thread_id(thread)


def _reason(errors: list[MachtraceError], thread: ThreadId) -> MachtraceError:
    gone = ThreadGoneError(f"thread {thread} has exited", thread=thread)
    return errors[0] if errors else gone
