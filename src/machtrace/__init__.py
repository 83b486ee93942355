"""The call stack of any thread, on Apple platforms and beyond.

    target ──▶ threads + registers + stack bytes ──▶ unwind ──▶ addresses ─┐
          └──▶ images (uuid, load address, segments) ──────────────────────┴▶ symbolicate ──▶ frames
    frames ──▶ report

Each arrow is a value of :mod:`machtrace.model`. Only :mod:`machtrace.target` talks to a
process; all else is a function of what it returned.

    >>> import machtrace as mt
    >>> for stack in mt.backtraces("emulated:demo"):
    ...     print(stack.thread.name, [frame.symbol.name for frame in stack.frames])

What is named here is loaded when it is first used.
"""

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; typing's own costs an import

if TYPE_CHECKING:
    from machtrace.capture.backtraces import backtraces, snapshot
    from machtrace.capture.call_stack import call_stack_return_addresses, call_stack_symbols
    from machtrace.capture.explanation import explain
    from machtrace.capture.own_backtrace import backtrace
    from machtrace.capture.report_files import read_report, read_reports, write_report
    from machtrace.capture.sampling import sample
    from machtrace.capture.saving import save_snapshot
    from machtrace.capture.unwinding import Unwinder, unwind
    from machtrace.errors import MachtraceError
    from machtrace.symbolicate.symbolicator import Symbolicator
    from machtrace.target.open import open_target

_HOMES = {
    "MachtraceError": "machtrace.errors",
    "Symbolicator": "machtrace.symbolicate.symbolicator",
    "Unwinder": "machtrace.capture.unwinding",
    "backtrace": "machtrace.capture.own_backtrace",
    "backtraces": "machtrace.capture.backtraces",
    "call_stack_return_addresses": "machtrace.capture.call_stack",
    "call_stack_symbols": "machtrace.capture.call_stack",
    "explain": "machtrace.capture.explanation",
    "open_target": "machtrace.target.open",
    "read_report": "machtrace.capture.report_files",
    "read_reports": "machtrace.capture.report_files",
    "sample": "machtrace.capture.sampling",
    "save_snapshot": "machtrace.capture.saving",
    "snapshot": "machtrace.capture.backtraces",
    "unwind": "machtrace.capture.unwinding",
    "write_report": "machtrace.capture.report_files",
}

__all__ = [
    "MachtraceError",
    "Symbolicator",
    "Unwinder",
    "backtrace",
    "backtraces",
    "call_stack_return_addresses",
    "call_stack_symbols",
    "explain",
    "open_target",
    "read_report",
    "read_reports",
    "sample",
    "save_snapshot",
    "snapshot",
    "unwind",
    "write_report",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home and keep it here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
